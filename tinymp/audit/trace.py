"""The trace of a run: a mark of every tensor that ops read and write, in order, in a file that `diff` compares.

The file has a line of JSON for each. It is written line by line, so that memory does not grow with the run, and what
was seen is there if the program is killed. The first line says what ran where. Then come, as they happen,

    {"place": 7, ...}                 a place is seen for the first time: its PLACE, under a number
    {"iteration": 3, ...}             an iteration begins, or goes on under another policy: "seed" as `mp.manual_seed`
                                      had it last, "rng" a digest of the state of the generators
    [7, 3, digest, nonfinite, largest, norm, scale, [inputs], sketch]
                                      a tensor: place and iteration; its Mark (backend/sketch.py); the loss scale that
                                      it carries; of a result the numbers of the tensors that its op read, counted from
                                      0 through the file (of a backward also those of its forward); the sketch in base64
    {"end": ""}                       the run has ended; else by which exception
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from .. import backend
from ..autograd import Array, Op, Variable, values_of
from ..backend import info
from ..checkpoint.writing import room_for
from ..events import here
from ..ops.convert import Move
from ..parameter import Parameter
from ..precision import UPDATE, current_policy
from ..tensor import Tensor
from .listener import Instrument, Place, begins_backward
from .sampling import distinct, version_of_result
from .sketch import Mark, mark

FILE, FORMAT = "trace.jsonl", 1
PLACE = ("role", "name", "module", "op", "phase", "caller", "shape", "dtype", "policy", "device")
BEGIN_AGAIN = "`tinymp audit --trace --out {0} PROGRAM` makes one, and so does `with mp.audit(trace='{0}'):`"


class Trace(Instrument):
    """Writes the trace of what runs to a folder: `mp.audit(trace="runs/a")`.

    A tensor is written once, when it is first seen: as the "output" of an op (backward: the gradients of its
    arguments), as the "input" of one where it comes from outside (data, and what was changed in place), as the
    "parameter" that an op reads after a change, as the "gradient" that an optimizer reads and the "update" that it
    writes, and as the "loss" that backward begins with.

    config  what to say of the run, further: "every", "modules"
    """

    def __init__(self, folder: str | os.PathLike[str], **config: Any) -> None:
        self.path, self.config = Path(folder).absolute() / FILE, config  # the program may change the folder
        self._file: IO[str] | None = None
        self._places: dict[tuple, int] = {}
        self._known: dict[int, tuple[ref, int, int]] = {}  # by the id of an array: its version, the number of its line
        # NumPy's scalars become other arrays in the Tensor: they are found by the op that made them
        self._scalars: WeakKeyDictionary[Op, dict[int, int]] = WeakKeyDictionary()
        self._reads: WeakKeyDictionary[Op, list[int | None]] = WeakKeyDictionary()  # what forward read, backward may
        self._deposits: dict[
            int, int | None
        ] = {}  # by the id of a parameter that waits for its update: of its gradient
        self._tensors = 0
        self._begun: dict[str, int] = {}  # by the policy: the last iteration whose beginning was written

    def open(self) -> None:
        """Begin the file. OSError where it cannot be written, or is being written by another process or audit."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "a", encoding="ascii", buffering=1)  # noqa: SIM115  # a line at a time
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
        except BlockingIOError as error:
            file.close()
            text = "another trace is being written here: give each process a folder of its own, such as runs/{rank}"
            raise BlockingIOError(error.errno, text, str(self.path)) from None
        if os.fstat(file.fileno()).st_size:
            file.truncate(0)
        self._file = file
        about = {"program": " ".join(sys.argv), "commit": _commit(sys.path[0] or "."), **self.config}
        self._write({"tinymp trace": FORMAT, **about, "environment": dict(info())})

    def close(self, ended: str = "") -> None:
        """End the file; ended: by which exception."""
        if self._file is not None:
            self._write({"end": ended})
            self._file.close()
            self._file = None
            self._known.clear()

    # ---- what happens

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if isinstance(op, Move):  # the same numbers on another device: written where they are read
            return
        if op.phase == "forward":
            read = [self._read(place, op.name_of(i), x) for i, x in enumerate(inputs) if isinstance(x, Tensor)]
            scale = 1.0 if op.loss_scale is None else float(op.loss_scale)
            if op.needs:
                self._reads[op] = read
            self._results(place, op, inputs, outputs, scale, read)
            return
        run = here.backward
        scale = 1.0 if run is None else float(run.scale)
        after = scale if op.loss_scale is None else scale * float(op.loss_scale)
        if run is not None and begins_backward(op):
            self._tensor("loss", "", place, run.root.array, after, [self._line_of(run.root)])
        given = [dy for dy in inputs if dy is not None and not isinstance(dy, np.generic)]
        read = [self._given("input", "gradient", place, dy, 0, scale) for dy in given] + self._reads.get(op, [])
        self._results(place, op, (), outputs, after, read)

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        if place.kind is UPDATE:  # else the user's own writing, which shows where an op reads the parameter
            read, made = [], self._deposits.pop(id(parameter), None)
            if parameter.grad_array is not None:
                scale = float(parameter.grad_scale)
                read = [self._tensor("gradient", "", place, parameter.grad_array, scale, [made])]
            self._tensor("update", "", place, value, 1.0, read)

    def deposited(self, leaf: Tensor, gradient: Any, scale: Any) -> None:
        if isinstance(leaf, Parameter):
            self._deposits[id(leaf)] = self._line_at(gradient, 0)

    # ---- tensors

    def _line_of(self, x: Variable) -> int | None:
        """The line of a Tensor that has been written."""
        line = self._scalars.get(x.grad_fn, {}).get(x.output_nr) if x.grad_fn is not None else None
        return self._line_at(x.array, x.version) if line is None else line

    def _line_at(self, x: Any, version: int) -> int | None:
        """The line of an array that has been written, and not changed since."""
        array, seen, line = self._known.get(id(values_of(x)), (None, 0, -1))
        return line if array is not None and array() is values_of(x) and seen == version else None

    def _read(self, place: Place, argument: str, x: Tensor) -> int | None:
        """The line of a Tensor that an op reads."""
        line = self._line_of(x)
        if line is not None:
            return line
        if isinstance(x, Parameter):
            return self._given("parameter", self.listener.name_of(x), place, x.array, x.version)
        return self._given("input", argument, place, x.array, x.version)

    def _given(self, role: str, name: str, place: Place, x: Array, version: int, scale: float = 1.0) -> int | None:
        """The line of an array; it is written unless it is there."""
        line = self._line_at(x, version)
        if line is None:
            line = self._tensor(role, name, place, x, scale)
            self._remember(x, version, line)
        return line

    def _results(self, place: Place, op: Op, args: tuple, ys: tuple, scale: float, read: list) -> None:
        for i, y in enumerate(ys):
            if not hasattr(y, "dtype"):
                continue
            name = op.name_of(i) if op.phase == "backward" else str(i) * (len(ys) > 1)
            line = self._tensor("output", name, place, y, scale, read)
            if not isinstance(y, np.generic):
                self._remember(y, version_of_result(values_of(y), args), line)
            elif line is not None:
                self._scalars.setdefault(op, {})[i] = line

    def _remember(self, x: Any, version: int, line: int | None) -> None:
        x = values_of(x)
        if line is not None and not isinstance(x, np.generic):
            self._known[id(x)] = ref(x, _Forget(self._known, id(x))), version, line

    def _tensor(
        self, role: str, name: str, place: Place, x: Any, scale: float = 1.0, inputs: list | None = None
    ) -> int | None:
        """Write a tensor; the number of its line, None for one without memory."""
        device = backend.of(values_of(x)).name
        if device == "meta" or self._file is None:
            return None
        policy, where = str(current_policy()), (place.module, place.op, place.phase, place.caller)
        key = role, name, *where, tuple(x.shape), str(x.dtype), policy, device
        if key not in self._places:
            self._places[key] = len(self._places)
            self._write({"place": self._places[key], **dict(zip(PLACE, key))})
        iteration = self.listener.iteration
        if iteration > self._begun.get(policy, -1):
            self._begun[policy] = iteration
            state = hashlib.sha1(str(backend.get_rng_state()).encode(), usedforsecurity=False).hexdigest()[:16]
            self._write({"iteration": iteration, "seed": backend.last_seed, "rng": state})
        m = _mark(x)
        numbers = [float(f"{n:.7g}") for n in (m.largest, m.norm, scale)]
        sketch = base64.b64encode(m.sketch.tobytes()).decode()
        given = [line for line in inputs or () if line is not None]
        self._write([self._places[key], iteration, m.digest, m.nonfinite, *numbers, given, sketch])
        self._tensors += 1
        return self._tensors - 1

    def _write(self, line: Any) -> None:
        assert self._file is not None
        try:
            with room_for(self.path):
                self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except OSError:  # the trace ends here
            file, self._file = self._file, None
            with suppress(OSError):
                file.close()
            raise


class _Forget:
    """Called when an array has gone."""

    def __init__(self, known: dict, key: int) -> None:
        self.known, self.key = known, key

    def __call__(self, array: ref) -> None:
        if self.key in self.known and self.known[self.key][0] is array:
            del self.known[self.key]


def _mark(x: Any) -> Mark:
    x = distinct(x)
    found = mark(backend.to_cpu(values_of(x)))
    if not hasattr(x, "indices"):
        return found
    rows = mark(backend.to_cpu(x.indices)).digest + found.digest
    return found._replace(digest=hashlib.sha1(rows.encode(), usedforsecurity=False).hexdigest()[:16])


def _commit(folder: str) -> str:
    """What git calls the commit of a folder; empty where there is none, or no git."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# ------------------------------------------------------------------------------------------------------------ reading


class Line(NamedTuple):
    """A tensor of a trace: its number, the fields of its PLACE, its mark, and what is said of it above."""

    number: int
    role: str
    name: str
    module: str
    op: str
    phase: str
    caller: str
    shape: tuple[int, ...]
    dtype: str
    policy: str
    device: str
    digest: str
    nonfinite: int
    largest: float
    norm: float
    scale: float
    inputs: tuple[int, ...]
    sketch: Array

    @property
    def signature(self) -> tuple[str, ...]:
        """What it is in any run of the program: not the line that called it, which a commit may move."""
        return ("loss",) if self.role == "loss" else (self.role, self.name, self.module, self.op, self.phase)

    def __str__(self) -> str:
        where = " ".join(dict.fromkeys((self.module, self.op, self.phase))).strip()
        if self.role == "parameter":
            return self.name
        if self.role in ("input", "gradient"):
            return f"{self.name or self.role} of {where}"
        if self.role == "loss":
            return "the loss"
        return f"{where} ({self.name})" if self.name else where


class Step(NamedTuple):
    """An iteration of a run, from 0, and its tensors. seed and rng: as they were when it began; whole: not cut off."""

    iteration: int
    seed: int | None
    rng: str
    lines: list[Line]
    whole: bool = True


class Run:
    """A trace that can be read: `steps` goes through the file.

    source    folder, or folder:policy, as it was asked for
    header    the first line: what ran where
    policies  what was in use, and `devices`, both filled in by `steps`
    tensors   how many there were, likewise
    ended     None until the end was read: then "" or the exception that ended the run. Missing if it was killed
    """

    def __init__(self, source: str | os.PathLike[str]) -> None:
        """FileNotFoundError where there is no trace; ValueError for one of another format."""
        self.source = os.fspath(source)
        self.path, self.policy = Path(self.source), ""
        if not self.path.exists() and ":" in self.path.name:  # of one policy alone
            folder, _, self.policy = self.source.rpartition(":")
            self.path = Path(folder)
        self.path = self.path / FILE if self.path.is_dir() else self.path
        if not self.path.is_file():
            folder = str(self.path.parent if self.path.name == FILE else self.path)
            raise FileNotFoundError(f"diff: there is no trace in {folder!r}: {BEGIN_AGAIN.format(folder)}")
        with self.path.open(encoding="ascii", errors="replace") as file:
            first = file.readline()
        try:
            self.header = json.loads(first)
            found = self.header["tinymp trace"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"diff: expected a trace in {str(self.path)!r}, which begins with {first[:30]!r}"
            ) from None
        if found != FORMAT:
            wrote = self.header.get("environment", {}).get("tinymp", "unknown")
            raise ValueError(
                f"diff: {str(self.path)!r} has format {found!r}, of tinymp {wrote}, and this tinymp reads {FORMAT}: "
                "trace both runs with the same tinymp"
            )
        self.policies: dict[str, None] = {}
        self.devices: dict[str, None] = {}
        self.tensors, self.ended = 0, None

    def steps(self) -> Iterator[Step]:
        """The iterations in their order. ValueError for lines that are no trace's; a last one may be cut off."""
        steps: dict[int, Step] = {}
        self.tensors, self.ended = 0, None
        first = None  # of this policy
        for line in self._lines():
            step = steps.setdefault(line[0].iteration, line[0])
            first = step.iteration if first is None else first
            step.lines.append(line[1])
            for i in [i for i in steps if i < step.iteration - 1]:  # the networks of a GAN may be one step apart
                yield steps.pop(i)._replace(iteration=i - first)
        for i in sorted(steps):
            yield steps[i]._replace(iteration=i - (first or 0), whole=self.ended is not None or i < max(steps))

    def _lines(self) -> Iterator[tuple[Step, Line]]:
        places: dict[int, tuple] = {}
        begun: dict[int, tuple] = {}
        number = 0
        with self.path.open(encoding="ascii", errors="replace") as file:
            for n, text in enumerate(file, 1):
                if not text.endswith("\n"):
                    return  # the program was killed
                try:
                    line = json.loads(text)
                    if isinstance(line, dict):
                        if "place" in line:
                            line["shape"] = tuple(line["shape"])
                            places[line["place"]] = tuple([line[name] for name in PLACE])
                        elif "iteration" in line:
                            begun[line["iteration"]] = line["seed"], line["rng"]
                        self.ended = line.get("end")
                        continue
                    place, iteration, *mark, inputs, sketch = line
                    values = np.frombuffer(base64.b64decode(sketch))
                    fields: list[Any] = [number, *places[place], *mark, tuple(inputs), values]
                    made = Line(*fields)
                    seed, rng = begun.get(iteration, (None, ""))
                except (ValueError, TypeError, KeyError):
                    raise ValueError(
                        f"diff: line {n} of {str(self.path)!r} is no line of a trace: {text[:40]!r}"
                    ) from None
                number += 1
                self.policies[made.policy] = None
                if not self.policy or self.policy.lower() == made.policy.partition("(")[0].lower():
                    self.tensors += 1
                    self.devices[made.device] = None
                    yield Step(iteration, seed, rng, []), made
