"""The trace of a run: a mark of every tensor that ops read and write, in a file that `tinymp diff` compares. Each
process has its own: trace.jsonl, trace.1.jsonl, ...

A line of JSON for each, written as it happens. The first says what ran where. Then come

    {"place": 7, ...}                 a place is seen for the first time: its PLACE, under a number
    {"iteration": 3, ...}             an iteration begins, or goes on under another policy: "seed" as `mp.manual_seed`
                                      had it last
    [7, 3, digest, nonfinite, largest, norm, scale, [inputs], sketch]
                                      a tensor: place and iteration; its Mark (sketch.py); its loss scale; the numbers
                                      of the tensors that its op read, from 0 through the file (of a backward also those
                                      of its forward; of a parameter its update); the sketch in base64
    {"end": ""}                       the run has ended; else by which exception
"""

from __future__ import annotations

import base64
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any
from weakref import WeakKeyDictionary

import numpy as np

from .. import backend
from ..autograd import Array, Op
from ..checkpoint.writing import room_for
from ..events import here
from ..gradients import values_of
from ..ops.more.convert import Move
from ..parameter import Parameter
from ..precision import UPDATE, current_policy
from ..tensor import Tensor
from .listener import Instrument, Place, begins_backward
from .machine import info
from .sampling import ByTensor, distinct, version_of_result
from .sketch import Mark, mark

try:
    import fcntl
except ModuleNotFoundError:  # Windows, and browsers
    fcntl = None  # type: ignore[assignment]

FILE, FORMAT = "trace.jsonl", 1
PLACE = ("role", "name", "module", "op", "phase", "caller", "shape", "dtype", "policy", "device")


class Trace(Instrument):
    """Writes the trace of what runs to a folder: `mp.audit(trace="runs/a")`.

    A tensor is written once, when it is first seen: as the "output" of an op (backward: the gradients of its
    arguments), as the "input" of one where it comes from outside, as the "parameter" that an op reads after a change,
    as the "gradient" that an optimizer reads and the "update" that it writes, and as the "loss". config: what to say of
    the run, further.
    """

    def __init__(self, folder: str | os.PathLike[str], **config: Any) -> None:
        self.path, self.config = Path(folder).absolute() / FILE, config  # the program may change the folder
        self._file: IO[str] | None = None
        self._places: dict[tuple, int] = {}
        self._known: ByTensor[int | None] = ByTensor()  # the number of its line
        self._reads: WeakKeyDictionary[Op, list[int | None]] = WeakKeyDictionary()  # what forward read, backward may
        self._deposits: dict[int, int | None] = {}  # by the id of a parameter that waits: of its gradient
        self._updates: dict[int, int | None] = {}  # by the id of a parameter: the number of its last update
        self._tensors = 0
        self._begun: dict[str, int] = {}  # by the policy: the last iteration whose beginning was written

    def open(self) -> None:
        """Begin the file: while another process writes it, the next. OSError where it cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for i in count(_process()):
            self.path = self.path.with_name(f"trace.{i}.jsonl" if i else FILE)
            file = open(self.path, "a", encoding="ascii", buffering=1)  # noqa: SIM115  # a line at a time
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.close()
        if os.fstat(file.fileno()).st_size:  # a device cannot be truncated
            file.truncate(0)
        self._file = file
        about = {"program": " ".join(sys.argv), "commit": commit(sys.path[0] or "."), **self.config}
        self._write({"tinymp trace": FORMAT, **about, "environment": dict(info())})

    def leave(self) -> None:
        """Write no more: the file is another process's, from which this one was forked."""
        self._file = None

    def close(self, ended: str = "") -> None:
        """End the file; ended: by which exception."""
        if self._file is not None:
            self._write({"end": ended})
            self._file.close()
            self._file = None

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
            self._tensor("loss", "", place, run.root.array, after, [self._known.of(run.root)])
        given = [dy for dy in inputs if dy is not None and not isinstance(dy, np.generic)]
        read = [self._given("input", "gradient", place, dy, 0, scale) for dy in given] + self._reads.get(op, [])
        self._results(place, op, (), outputs, after, read)

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        if place.kind is UPDATE:  # else the user's own writing, which shows where an op reads the parameter
            read, made = [], self._deposits.pop(id(parameter), None)
            if parameter.grad_array is not None:
                scale = float(parameter.grad_scale)
                read = [self._tensor("gradient", "", place, parameter.grad_array, scale, [made])]
            self._updates[id(parameter)] = self._tensor("update", "", place, value, 1.0, read)

    def deposited(self, leaf: Tensor, gradient: Any, scale: Any) -> None:
        if isinstance(leaf, Parameter):
            self._deposits[id(leaf)] = self._known.of_array(gradient, 0)

    # ---- tensors

    def _read(self, place: Place, argument: str, x: Tensor) -> int | None:
        line = self._known.of(x)
        if line is not None:
            return line
        if isinstance(x, Parameter):
            made = [self._updates.get(id(x))]
            return self._given("parameter", self.listener.name_of(x), place, x.array, x.version, inputs=made)
        return self._given("input", argument, place, x.array, x.version)

    def _given(
        self, role: str, name: str, place: Place, x: Array, version: int, scale: float = 1.0, inputs: list | None = None
    ) -> int | None:
        line = self._known.of_array(x, version)
        if line is None:
            line = self._tensor(role, name, place, x, scale, inputs)
            self._known.put(x, version, line)
        return line

    def _results(self, place: Place, op: Op, args: tuple, ys: tuple, scale: float, read: list) -> None:
        for i, y in enumerate(ys):
            if not hasattr(y, "dtype"):
                continue
            name = op.name_of(i) if op.phase == "backward" else str(i) * (len(ys) > 1)
            line = self._tensor("output", name, place, y, scale, read)
            self._known.put(y, version_of_result(values_of(y), args), line, op, i)

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
            self._write({"iteration": iteration, "seed": backend.last_seed})
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


def _process() -> int:
    """The number of this process: of the group in which it runs, else among those that `multiprocessing` started."""
    number = multiprocessing.current_process().name.rpartition("-")[2]
    return here.rank or (int(number) if multiprocessing.parent_process() and number.isdecimal() else 0)


def _mark(x: Any) -> Mark:
    x = distinct(x)
    found = mark(backend.to_cpu(values_of(x)))
    if not hasattr(x, "indices"):
        return found
    rows = mark(backend.to_cpu(x.indices)).digest + found.digest
    return found._replace(digest=hashlib.sha1(rows.encode(), usedforsecurity=False).hexdigest()[:16])


def commit(folder: str) -> str:
    """The commit of a folder, with "-dirty" if files differ from it; empty where there is none, or no git."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
