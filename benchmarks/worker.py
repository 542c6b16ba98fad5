"""Processes that time a side of a comparison each, so that two libraries never share a pool of threads, nor memory."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any

import tinymp as mp

Task = tuple[Any, ...]  # a function of a module and its arguments; what it returns is called again and again
Times = dict[str, list[float]]  # seconds of a call, by name: a median for every round
_made: list[Callable[[], Any]] = []  # in a process: what its task has made


def in_turn(tasks: Mapping[str, Task], rounds: int, seconds: float = 0.3) -> Times:
    """Time the task of each name in a process of its own, round after round, for so many seconds each: a machine whose
    speed drifts slows all of them alike.

    A task that fails is said to, and left out: some libraries cannot do all that others can.
    """
    context = multiprocessing.get_context("spawn")
    times: Times = {name: [] for name in tasks}
    with ExitStack() as stack:  # at its end processes end, and their work counts as this one's (see Machine)
        pools = {name: stack.enter_context(ProcessPoolExecutor(1, context)) for name in tasks}
        for _ in range(rounds):
            for name in list(times):
                try:
                    times[name].append(pools[name].submit(_median, tasks[name], seconds).result())
                except Exception as error:
                    print(f"{name} does not run here: {type(error).__name__}: {error}")
                    del times[name]
    return times


def ratio(times: Times, a: str, b: str) -> float:
    """Time of a divided by time of b."""
    return statistics.median(times[a]) / statistics.median(times[b])


def _median(task: Task, seconds: float) -> float:
    """The median time in seconds of a call of what the task makes, called for so many seconds."""
    maker, *arguments = task
    if not _made:
        mp.backend.cpu.keep_freed_memory()
        _made.append(maker(*arguments))
        _made[0]()
    first = timed(_made[0])  # which also warms up
    return statistics.median(timed(_made[0]) for _ in range(max(1, min(200, round(seconds / first)))))


def timed(call: Callable[[], Any]) -> float:
    """The seconds of one call."""
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)
