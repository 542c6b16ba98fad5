"""A DataLoader's threads, which load batches ahead of the loop, and its state, with which another loop goes on."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from copy import copy
from functools import partial
from itertools import accumulate
from threading import RLock
from typing import Any

import numpy as np

from ...arguments import integers, listed, same_keys, whole
from ..loader import DataLoader, load
from .datasets import item_numbers

MOST_WORKERS = 1024  # threads of one loader
MOST_LISTED = 2**26  # item numbers of an epoch; a larger dataset has more anyway


class LoadingThreads:
    """Loads the batches of one loader, by threads that live as long as an epoch.

    num_workers  how many, at most 1,024. From 1 on several may be in the dataset at any time, so an item must depend on
                 its number alone. 0: one alone loads ahead
    prefetch     how many batches may be loaded ahead, by all threads together, and at least num_workers

    The threads end with the epoch: after the last batch, on an error, or when the loop is left. In a forked process
    such a loop cannot go on (RuntimeError), and new ones can. A dataset or a sampler that draws random numbers should
    have its own generator: threads would draw from tinymp's at unpredictable moments.
    """

    def __init__(self, num_workers: int, prefetch: int | None) -> None:
        (self.num_workers,) = integers("DataLoader", "num_workers", num_workers, 1, 0)
        (self.prefetch,) = integers("DataLoader", "prefetch", 2 if prefetch is None else prefetch, 1, 0)
        if num_workers > MOST_WORKERS:
            at_most = f"at most {MOST_WORKERS:,}, as they are threads"
            raise ValueError(f"DataLoader: expected `num_workers` to be {at_most}, got {num_workers:,}")
        self.loading = RLock()  # a thread whose loop was left may still load while the next epoch begins
        self.process = os.getpid()

    def batches(self, loader: DataLoader, numbers: Iterable[np.ndarray]) -> Iterator:
        """The batches of these items; `prefetch` of them are loaded ahead, and one at least by each worker."""
        if self.process != os.getpid():  # where a thread may have been loading when this one was forked
            self.process, self.loading = os.getpid(), RLock()
        jobs = (partial(self._load, loader.dataset, some, loader.collate_fn) for some in numbers)
        return _ahead(jobs, max(self.prefetch, self.num_workers), max(self.num_workers, 1))

    def _load(self, dataset: Any, numbers: np.ndarray, collate_fn: Callable | None) -> Any:
        with nullcontext() if self.num_workers else self.loading:
            return load(dataset, numbers, collate_fn)


def _ahead(jobs: Iterator[Callable[[], Any]], depth: int, threads: int) -> Iterator:
    """The results of the jobs, in order, up to `depth` of them done ahead by threads that end when this iterator does.

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


def position(loader: DataLoader) -> dict[str, Any]:
    """The loader's `state_dict`."""
    left, sampler = loader.left, _drawn(loader)
    if left is not None:
        check_length("DataLoader.state_dict", loader)
        left = [*copy(left)]  # reads the sampler to its end
    return {
        "epoch": loader.epoch - (left is not None and not loader.resumes),
        "left": None if left is None else np.concatenate([np.zeros(0, int), *left]),
        "sizes": None if left is None else np.array([*map(len, left)], int),
        "items": len(loader.dataset),
        "generator": None if loader.generator is None else loader.generator.bit_generator.state,
        "sampler": sampler.state_dict() if sampler is not None else None,
    }


def go_to(loader: DataLoader, state_dict: dict[str, Any]) -> None:
    """The loader's `load_state_dict`."""
    where, sampler, n = "DataLoader.load_state_dict", _drawn(loader), len(loader.dataset)
    same_keys(where, "state_dict", state_dict, position(loader))
    if whole(where, "items", state_dict["items"]) != n:
        raise ValueError(f"{where}: expected the state of a loader of {n} items, got {state_dict['items']}")
    epoch, left = whole(where, "epoch", state_dict["epoch"]), state_dict["left"]
    if left is not None:
        left, sizes = item_numbers(where, "left", left, n), listed(where, "sizes", state_dict["sizes"])
        ends = [*accumulate(whole(where, "sizes", size) for size in sizes)]
        if [0, *ends][-1] != len(left):
            raise ValueError(f"{where}: expected `sizes` of {len(left)} items together, got {[0, *ends][-1]}")
        left = np.split(left, ends[:-1]) if ends else []
    for name, own in (("generator", loader.generator), ("sampler", sampler)):
        if (own is None) != (state_dict[name] is None):
            needs, got = ("None", "a state") if own is None else ("its state", "None")
            raise ValueError(f"{where}: expected `{name}` to be {needs}, got {got}: seed the order as it was, or not")
    if loader.generator is not None:
        kind = type(loader.generator.bit_generator)
        try:
            kind().state = state_dict["generator"]
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{where}: expected `generator` to be the state of a {kind.__name__}: {error}") from None
    if sampler is not None:
        sampler.load_state_dict(state_dict["sampler"])
    if loader.generator is not None:
        loader.generator.bit_generator.state = state_dict["generator"]
    loader.epoch, loader.left, loader.resumes = epoch, left, left is not None


def check_length(where: str, loader: DataLoader) -> None:
    """ValueError where what a (batch) sampler gives in an epoch is too much for a list."""
    most, n = max(MOST_LISTED, len(loader.dataset)), (len(loader) - 1) * loader.batch_size
    if n >= most:
        raise ValueError(
            f"{where} lists the item numbers of an epoch: expected a sampler of at most {most}, got one of more than "
            f"{n}; give it a smaller num_samples"
        )


def _drawn(loader: DataLoader) -> Any:
    """The (batch) sampler, if it has a state."""
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return sampler if hasattr(sampler, "state_dict") else None
