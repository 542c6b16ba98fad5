"""Threads that load the batches of a DataLoader, or their items, ahead of the loop."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from itertools import islice
from operator import itemgetter
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any, NamedTuple

import numpy as np

from ..dataset import TensorDataset
from ..loader import DataLoader, collate, item, load

MOST_WORKERS = 1024  # threads of one loader
Parts = tuple[list[Callable[[], Any]], Callable[[list], Any]]


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
        """The batches of these items; up to loader.prefetch of them are loaded ahead."""
        if self.process != os.getpid():  # where a thread may have been loading when this one was forked
            self.process, self.loading = os.getpid(), RLock()
        batches = (self._parts(loader, dataset, numbers) for numbers in cut)
        if threads := loader.num_workers or min(loader.prefetch, 1):
            return _ahead(batches, min(loader.prefetch, len(cut)), threads)
        return (whole([part() for part in parts]) for parts, whole in batches)

    def _parts(self, loader: DataLoader, dataset: Any, numbers: np.ndarray) -> Parts:
        """The parts that threads load in one go (a batch, or with num_workers its items), and how to join them."""
        if type(dataset) is TensorDataset and loader.collate_fn is None:
            return [partial(load, dataset, numbers, None)], itemgetter(0)
        if not loader.num_workers:
            return [partial(self._load, dataset, numbers, loader.collate_fn)], itemgetter(0)
        order = numbers.tolist()
        whole = partial(collate, numbers=order, collate_fn=loader.collate_fn)
        return [partial(item, dataset, i) for i in order], whole

    def _load(self, dataset: Any, numbers: np.ndarray, collate_fn: Callable | None) -> Any:
        with self.loading:
            return load(dataset, numbers, collate_fn)


class _Batch(NamedTuple):
    """A batch on its way. The thread that loads the last part makes the batch."""

    parts: list[Callable[[], Any]]
    whole: Callable[[list], Any]
    loaded: list  # (part,) or an error, in the order of the parts
    left: list[int]  # a number for each part that is not loaded; no two threads pop the same, who pops 0 is the last
    made: SimpleQueue  # (batch,) or an error


def _ahead(batches: Iterator[Parts], depth: int, threads: int) -> Iterator:
    """whole([part() for part in parts]) of each (parts, whole), up to `depth` of them loaded ahead by threads that end
    when this iterator does. Of the errors in one batch, that of the first part is raised.

    The `finally` below may run in a garbage collection, at any point of any thread, where waiting for a lock may never
    end: so no Queue, Event or join there. SimpleQueue.put never waits.
    """
    jobs: SimpleQueue = SimpleQueue()  # (batch, part's number); None ends the thread that gets it
    wanted, process = [True], os.getpid()

    def send(batch: Parts) -> SimpleQueue:
        n = len(batch[0])
        sent = _Batch(*batch, [None] * n, list(range(n)), SimpleQueue())
        for i in range(n):
            jobs.put((sent, i))
        return sent.made

    def work() -> None:
        while (job := jobs.get()) and wanted:
            batch, i = job
            try:
                batch.loaded[i] = (batch.parts[i](),)
            except BaseException as error:  # whatever it is, the loop raises it
                batch.loaded[i] = error
            if not batch.left.pop():
                batch.made.put(_made(batch.whole, batch.loaded))
            job = batch = None  # errors' tracebacks hold this frame, and it would hold the batch while it waits

    def stop() -> None:
        wanted.clear()
        for _ in crew:
            jobs.put(None)

    # In copies of this context, so that the dataset sees the policy and the no_grad of the loop.
    crew = [
        Thread(target=copy_context().run, args=(work,), name="DataLoader prefetch", daemon=True) for _ in range(threads)
    ]
    try:
        for thread in crew:
            thread.start()
        got, coming = None, deque(map(send, islice(batches, depth + 1)))
        while coming and isinstance(got := coming.popleft().get(), tuple):
            yield got[0]
            if os.getpid() != process:  # it would wait for ever: a fork copies no threads
                raise RuntimeError("DataLoader: this loop began in another process: begin a new one after a fork")
            coming.extend(map(send, islice(batches, 1)))
        stop()
        for thread in crew:
            thread.join()
        if isinstance(got, BaseException):
            raise got
    finally:
        got = None  # an error's traceback holds this frame: break the cycle, or the error would live on
        stop()


def _made(whole: Callable[[list], Any], loaded: list) -> Any:
    """The batch that the loaded parts make, as (batch,), or the first error."""
    if errors := [x for x in loaded if not isinstance(x, tuple)]:
        return errors[0]
    try:
        return (whole([part for (part,) in loaded]),)
    except BaseException as error:
        return error
