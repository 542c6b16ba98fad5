"""A trace that was written before, read line by line: for `tinymp diff`."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..autograd import Array
from .trace import FILE, FORMAT, PLACE

BEGIN_AGAIN = "`tinymp audit --trace --out {0} PROGRAM` makes one, and so does `with mp.audit(trace='{0}'):`"


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
        """Its identity in any run of the program, without the calling line, which a commit may move."""
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
    """An iteration of a run, from 0, and its tensors. seed: as it was when it began; whole: not cut off."""

    iteration: int
    seed: int | None
    lines: list[Line]
    whole: bool = True


class Run:
    """A trace that can be read: `steps` goes through the file.

    source    folder, or folder:policy, as it was asked for; or the file of one of several processes in it
    others    the files of other processes in the folder
    header    the first line: what ran where
    policies, devices, tensors  those in use, and how many tensors there were, as far as `steps` has read
    ended     None until the end was read: then "" or the exception that ended the run. None stays if it was killed
    """

    def __init__(self, source: str | os.PathLike[str]) -> None:
        """FileNotFoundError where there is no trace; ValueError for one of another format."""
        self.source = os.fspath(source)
        self.path, self.policy = Path(self.source), ""
        if not self.path.exists() and ":" in self.path.name:  # of one policy alone
            folder, _, self.policy = self.source.rpartition(":")
            self.path = Path(folder)
        self.path = self.path / FILE if self.path.is_dir() else self.path
        self.others = [path.name for path in sorted(self.path.parent.glob("trace.*.jsonl")) if path != self.path]
        if not self.path.is_file():
            folder = str(self.path.parent if self.path.name == FILE else self.path)
            raise FileNotFoundError(f"diff: there is no trace in {folder!r}: {BEGIN_AGAIN.format(folder)}")
        with self.path.open(encoding="ascii", errors="replace") as file:
            first = file.readline()
        try:
            self.header = json.loads(first)
            known = self.header["tinymp trace"] == FORMAT
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            begins = f"which begins with {first[:50]!r}; trace both runs with the same tinymp"
            raise ValueError(f"diff: expected a trace of format {FORMAT} in {str(self.path)!r}, {begins}")
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
        seeds: dict[int, int | None] = {}
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
                            seeds[line["iteration"]] = line["seed"]
                        self.ended = line.get("end")
                        continue
                    place, iteration, *mark, inputs, sketch = line
                    values = np.frombuffer(base64.b64decode(sketch))
                    fields: list[Any] = [number, *places[place], *mark, tuple(inputs), values]
                    made = Line(*fields)
                except (ValueError, TypeError, KeyError):
                    where = f"line {n} of {str(self.path)!r}"
                    raise ValueError(f"diff: {where} is no line of a trace: {text[:40]!r}") from None
                number += 1
                self.policies[made.policy] = None
                if not self.policy or self.policy.lower() == made.policy.partition("(")[0].lower():
                    self.tensors += 1
                    self.devices[made.device] = None
                    yield Step(iteration, seeds.get(iteration), []), made
