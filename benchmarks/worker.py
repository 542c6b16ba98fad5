"""Processes that time a side of a comparison each, so that two libraries never share a pool of threads, nor memory."""

from __future__ import annotations

import importlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import tinymp as mp

Task = tuple[Any, ...]  # a function of a module and its arguments; what it returns is called again and again
Times = dict[str, list[float]]  # seconds of a call, by name: a median for every round


class Workers:
    """A process for each name, which time in turn: a machine whose speed drifts slows all of them alike."""

    def __init__(self, names: Iterable[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._workers = {}
        for name in names:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers[name] = process, ours

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._workers.values():
            pipe.send(None)
            process.join()  # its work then counts as this one's (see Machine)

    def time(self, name: str, task: Task, seconds: float) -> float:
        """The median time in seconds of a call of what the task makes, called for so many seconds.

        What was made is kept until another is asked for. RuntimeError if that fails.
        """
        maker, *arguments = task
        pipe = self._workers[name][1]
        pipe.send((maker.__module__, maker.__qualname__, arguments, seconds))
        answer = pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def times(self, tasks: Mapping[str, Task], rounds: int, seconds: float = 0.3) -> Times:
        """Time the task of each name, round after round, for so many seconds each.

        A task that fails is said to, and left out: some libraries cannot do all that others can.
        """
        times: Times = {name: [] for name in tasks}
        for _ in range(rounds):
            for name in list(times):
                try:
                    times[name].append(self.time(name, tasks[name], seconds))
                except RuntimeError as error:
                    print(f"{name} does not run here: {error}")
                    del times[name]
        return times


def ratio(times: Times, a: str, b: str) -> float:
    """How many times as long a takes as b."""
    return statistics.median(times[a]) / statistics.median(times[b])


def _serve(pipe: Connection) -> None:
    mp.backend.cpu.keep_freed_memory()
    made: Any = None
    while (task := pipe.recv()) is not None:
        module, name, arguments, seconds = task
        try:
            if made is None or made[0] != task:
                made = None  # frees the last one's memory
                call = getattr(importlib.import_module(module), name)(*arguments)
                call()
                made = task, call
            call = made[1]
            first = _timed(call)  # which also warms up
            pipe.send(statistics.median(_timed(call) for _ in range(max(1, min(200, round(seconds / first))))))
        except Exception as error:
            pipe.send(f"{name}{tuple(arguments)}: {type(error).__name__}: {error}")


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)
