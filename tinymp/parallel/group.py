"""Processes that train together, and what each of them tells all others.

    with mp.parallel.init() as group:      # mpiexec -n 4 python train.py; alone, it is a group of one
        ...

Every process runs the same program and calls the same methods of its group in the same order. A call that waits for the
others does so for `timeout` seconds at most; then it ends with an error that names who did not come. A process that
ends with an error ends all.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..arguments import choice, number
from ..autograd import Array
from ..dtypes import real
from ..events import here, type_name

HOW = ("sum", "min", "max")
FORWARD = 0.5  # seconds in which mpiexec passes on what a process has written: it drops the rest when it ends all


class _Entered(threading.local):
    group: Group | None = None  # the one of more than one process in whose block this thread is


entered = _Entered()


def _enter(group: Group | None, rank: int, agree: Any) -> None:
    entered.group, here.rank, here.agree = group, rank, agree


class Group:
    """The processes that train together. This class is a group of one; see `start.init` for others.

    rank, size  this process's number, from 0, and how many there are
    timeout     seconds that a call waits for the others

    It sends arrays on the CPU. Within its `with` block loss scalers agree about every step (all skip or none), mp.save
    and Checkpointer write on rank 0 alone, and an error or a sys.exit of one process ends all of them.
    """

    rank, size = 0, 1
    timeout = 300.0

    def __init__(self) -> None:
        self.closing = ExitStack()  # what ends with the block

    def __enter__(self) -> Group:
        if self.size > 1:
            self.closing.callback(_enter, entered.group, here.rank, here.agree)
            _enter(self, self.rank, self.agree)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        self.closing.close()
        failed = error is not None
        if failed and self.size > 1:
            trace, code = traceback.format_exception(kind, error, where), 1
            if isinstance(error, SystemExit):  # as Python has it: None is 0, and what is no number a message
                trace = [] if isinstance(error.code, (int, type(None))) else [f"{error.code}\n"]
                code = 1 if trace else int(error.code or 0)
            said = f"rank {self.rank} of {self.size} has ended with {kind.__name__}, and so all end\n"
            sys.stderr.write("".join([*trace, said]))  # at once: other processes write, too
            sys.stdout.flush()
            sys.stderr.flush()
            time.sleep(FORWARD)
            self.abort(code)
        self.close(failed)

    # ---- what MPI gives, in mpi.py

    def start(self, what: str, x: Array, *how: Any) -> Pending:
        """Begin to send; see `Pending`."""
        return Pending()

    def abort(self, code: int) -> None:
        """End all processes at once."""

    def close(self, failed: bool = False) -> None:
        """Wait until all are here, and end."""

    # ---- arrays

    def all_reduce(self, x: Array, how: str = "sum") -> None:
        """The sum (or "min", "max") of all processes' x, a contiguous array, in place and in x's dtype; the same bits
        in each. A sum in FP16 is rounded at every addition.
        """
        choice("all_reduce", "how", how, HOW)
        self._require("all_reduce", x)
        if x.dtype.name == "bfloat16":
            raise TypeError("all_reduce: expected `x` in a dtype that MPI adds up, got bfloat16: send it as FP32")
        self.start("all_reduce", x, how).wait()

    def broadcast(self, x: Array) -> None:
        """x of rank 0, in place, in all. x: contiguous, of one shape and dtype everywhere."""
        self._require("broadcast", x)
        self.start("broadcast", x).wait()

    def all_gather(self, x: Array) -> list[Array]:
        """x of every process, by rank. The first axis may have another length in each."""
        self._require("all_gather", x)
        if not x.ndim:
            raise ValueError("all_gather: expected `x` to have an axis, got shape ()")
        if self.size == 1:
            return [x]
        lengths = np.zeros(self.size, "int64")
        lengths[self.rank] = len(x)
        self.all_reduce(lengths)
        padded = np.zeros((self.size, lengths.max(), *x.shape[1:]), x.dtype)
        padded[self.rank, : len(x)] = x
        self.start("all_gather", padded).wait()
        return [rows[:n] for rows, n in zip(padded, lengths)]

    def _require(self, op: str, x: Any) -> None:
        if not isinstance(x, np.ndarray) or not x.flags.c_contiguous:
            got = "one with gaps" if isinstance(x, np.ndarray) else type_name(x)
            raise TypeError(f"{op}: expected `x` to be a contiguous array on the cpu, got {got}")
        if real(op, x, x) is not x:
            raise TypeError(f"{op}: expected `x` in this machine's byte order, got {x.dtype}")

    # ---- anything that JSON can say

    def tell(self, value: Any) -> list[Any]:
        """The values that every process tells, by rank: numbers, strings, lists and dicts of them, None."""
        x = np.frombuffer(_said("tell", "value", value), np.uint8)
        return [json.loads(one.tobytes()) for one in self.all_gather(x)]

    def first(self, where: str, **values: Any) -> None:
        """ValueError, in every process, if one has another value than rank 0; it names the process and the value."""
        if not isinstance(where, str):
            raise TypeError(f"first: expected `where` to be text, got {where!r}")
        for name, value in values.items():
            _said("first", name, value)
        for rank, told in enumerate(found := self.tell(values)):
            for name, value in told.items():
                if value != found[0][name]:
                    at, ours, theirs = _difference(found[0][name], value)
                    raise ValueError(
                        f"{where}: expected the same {name} in all processes, got {theirs} in rank {rank} and {ours} "
                        f"in rank 0{at}: start all with the same program and arguments"
                    )

    def agreed(self, *found: Any) -> list[Any]:
        """Each value, from the first process in which it is not None; then all processes have the same."""
        some = np.array([float(any(value is not None for value in found))])
        self.all_reduce(some, "max")  # quicker than telling what, which is rare
        if not some[0]:
            return list(found)
        told = self.tell(found)
        return [next((value for value in column if value is not None), None) for column in zip(*told)]

    def agree(self, value: Any, how: str = "first") -> Any:
        if how == "first":
            return self.agreed(*value)
        return [item for one in self.tell(value) for item in one]

    def mean(self, value: float, weight: float = 1.0) -> float:
        """The mean of all processes' values, such as losses; weight: of this process's, such as its number of items."""
        if not isinstance(value, (int, float, np.number)):  # NaN is a mean, too
            raise TypeError(f"mean: expected `value` to be a number, got {value!r}")
        weight = number("mean", "weight", weight, 0)
        both = np.array([value * weight, weight])
        self.all_reduce(both)
        total, weights = both.tolist()
        return total / weights if weights else float("nan")

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.start("barrier", np.zeros(1)).wait()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size})"


class Pending:
    """A task that runs while the program goes on. `wait` returns when it is done, and raises its error."""

    def wait(self) -> None:
        """Until the array holds the result."""


def _said(op: str, name: str, value: Any) -> bytes:
    """A value as JSON; TypeError for what that has no form for."""
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{op}: expected `{name}` to be what JSON can say: {error}") from None


def _difference(ours: Any, theirs: Any) -> tuple[str, Any, Any]:
    """The first place at which two values of JSON differ, and what is there."""
    if isinstance(ours, list) and isinstance(theirs, list):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            if a != b:
                at, x, y = _difference(a, b)
                return f" (at {i}{at})", x, y
        return "", f"{len(ours)} entries", f"{len(theirs)} entries"
    return "", repr(ours), repr(theirs)
