"""Threads that load the batches of a DataLoader ahead of the loop."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from threading import RLock
from typing import Any

import numpy as np

from ..loader import DataLoader, load

MOST_WORKERS = 1024  # threads of one loader


class LoadingThreads:
    """Loads the batches of one loader, by threads that live as long as an epoch."""

    def __init__(self, num_workers: int) -> None:
        if num_workers > MOST_WORKERS:
            raise ValueError(
                f"DataLoader: expected `num_workers` to be at most {MOST_WORKERS:,}, got {num_workers:,}: they are "
                f"threads, and more than there are cores ({os.cpu_count()}) help only where items are waited for"
            )
        self.loading = RLock()  # a thread whose loop was left may still load while the next epoch begins
        self.process = os.getpid()

    def batches(self, loader: DataLoader, dataset: Any, cut: list[np.ndarray]) -> Iterator:
        """The batches of these items; loader.prefetch of them are loaded ahead, and one at least by each worker."""
        if self.process != os.getpid():  # where a thread may have been loading when this one was forked
            self.process, self.loading = os.getpid(), RLock()
        jobs = (partial(self._load, loader, dataset, numbers) for numbers in cut)
        if threads := loader.num_workers or min(loader.prefetch, 1):
            return _ahead(jobs, max(loader.prefetch, loader.num_workers), threads)
        return (job() for job in jobs)

    def _load(self, loader: DataLoader, dataset: Any, numbers: np.ndarray) -> Any:
        with nullcontext() if loader.num_workers else self.loading:
            return load(dataset, numbers, loader.collate_fn)


def _ahead(jobs: Iterator[Callable[[], Any]], depth: int, threads: int) -> Iterator:
    """What the jobs return, in order, up to `depth` of them done ahead by threads that end when this iterator does.

    They work in copies of this context, so that the dataset sees the policy and the no_grad of the loop.
    """
    pool, process = ThreadPoolExecutor(threads, "DataLoader prefetch"), os.getpid()
    coming: deque[Future] = deque()
    try:
        for job in jobs:
            coming.append(pool.submit(copy_context().run, job))
            if len(coming) > depth:
                yield coming.popleft().result()
                if os.getpid() != process:  # it would wait for ever: a fork copies no threads
                    raise RuntimeError("DataLoader: this loop began in another process: begin a new one after a fork")
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
