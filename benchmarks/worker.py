"""A process that times one side of a comparison, so that two libraries never share a pool of threads, nor memory."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import tinymp as mp

BLOCK = 0.06  # seconds of work that are timed in one go


class Worker:
    """It does nothing but wait, unless it times. threads: how many BLAS and PyTorch may use there; None: all cores."""

    def __init__(self, threads: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        limits = {} if threads is None else dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
        before = dict(os.environ)
        os.environ.update(limits)  # the new process inherits it
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def time(self, maker: Callable[..., Callable[[], Any]], *arguments: Any, seconds: float = BLOCK) -> float:
        """The median time in seconds of a call of what maker(*arguments) returns, called for so many seconds.

        maker: a function of a module. What it made is kept until another is asked for. RuntimeError if that fails.
        """
        self._pipe.send((maker.__module__, maker.__qualname__, arguments, seconds))
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """End the process; its work then counts as this one's (see Machine)."""
        self._pipe.send(None)
        self._process.join()


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
            pipe.send(f"{name}{arguments}: {type(error).__name__}: {error}")


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)
