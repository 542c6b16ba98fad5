"""The work of one op on a CPU's cores: as many threads as BLAS has take its parts in turn.

BLAS shares a large product among its threads, but one core alone would do the work between products, and small
products. Therefore independent parts, with their products, are each done by one thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import numpy as np  # loads BLAS

from ...events import here

Item = TypeVar("Item")
Result = TypeVar("Result")

LEAST = 1 << 18  # elements that are worth a thread: to hand them over takes 0.1 ms
CACHED = 1 << 18  # elements: FP32 copies of so many stay in the cache. Of fewer, threads wait for each other's Python

_helps: ContextVar[bool] = ContextVar("helps", default=False)  # this thread does parts of another's work

_get: Any = None
_set: Any = None
with suppress(AttributeError, KeyError, OSError):  # OpenBLAS, as NumPy's wheels bring it
    _library = ctypes.CDLL(sys.modules["numpy._core._multiarray_umath"].__file__)
    _get, _set = _library.scipy_openblas_get_num_threads64_, _library.scipy_openblas_set_num_threads64_

_sharing: set[object] = set()  # the running calls of `share`
_before = _get() if _set else 1  # the number of BLAS's threads without such calls
_pool: ThreadPoolExecutor | None = None


def count() -> int:
    """The number of threads that share the work: BLAS's (OPENBLAS_NUM_THREADS), or one if that is unknown."""
    return (_before if _sharing else _get()) if _set else 1


def slices(n: int, size: int, most: int, threads: int | None = None) -> list[slice]:
    """range(n) in slices. Together they have `size` elements, each has at most `most` (or is a single place), and if
    there is enough to do, they can be shared out evenly among `threads` threads, by default all.
    """
    threads = max(min(count() if threads is None else threads, size // LEAST), 1)
    number = max(-(-size // (max(most, 1) * threads)) * threads, 1)
    step = -(-n // number)
    return [slice(i, min(i + step, n)) for i in range(0, n, step)] if step else []


def share(f: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """[f(item) for item in items], by several threads. f must not depend on the order of its calls, nor on others.

    While an observer listens, one thread does it all, with the same results.
    """
    threads = min(count(), len(items))
    if threads < 2:
        return [f(item) for item in items]
    call = object()
    try:
        _begin(call)
        results = [f(item) for item in items] if _helps.get() or here.inside else _shared(f, items, threads)
        _end(call)
        return results
    finally:
        _end(call)  # again: an interrupt that comes right before a `finally` finds nothing left to do


def elementwise(f: Callable[..., Any], x: Any, *others: Any) -> Any:
    """f(x, *others), which has x's shape, dtype and memory order, in parts along x's slowest axis.

    NotImplemented if x is small, or there is only one part.
    """
    axis = max(range(x.ndim), key=x.strides.__getitem__, default=None)
    if axis is None or x.size < LEAST or len(parts := slices(x.shape[axis], x.size, CACHED)) < 2:
        return NotImplemented
    y = np.empty_like(x)

    def fill(some: slice) -> None:
        place = (slice(None),) * axis + (some,)
        y[place] = f(x[place], *[a[place] for a in others])

    share(fill, parts)
    return y


def cut(some: slice, *arrays: Any) -> list:
    return [None if x is None else x[some] for x in arrays]


def _shared(f: Callable, items: Sequence, threads: int) -> list:
    todo: deque = deque(enumerate(items))
    results: list[Any] = [None] * len(items)
    pool = _threads()
    helpers = [pool.submit(copy_context().run, _help, f, todo, results) for _ in range(threads - 1)]
    try:
        _work(f, todo, results)
    finally:
        todo.clear()  # after an error the others do not begin anew
        wait(helpers)
    for helper in helpers:
        helper.result()  # raises its error
    return results


def _work(f: Callable, todo: deque, results: list) -> None:
    while todo:
        try:
            i, item = todo.popleft()
        except IndexError:  # another thread took the last one
            return
        results[i] = f(item)


def _help(*work: Any) -> None:
    """`_work` in a thread of the pool: the op that runs and the policy come with the context."""
    _helps.set(True)
    _work(*work)


def _begin(call: object) -> None:
    """From now on BLAS computes a product in the calling thread."""
    global _before
    if (threads := _get()) > 1:  # else another call has set it
        _before = threads
    _sharing.add(call)
    _settle()


def _end(call: object) -> None:
    _sharing.discard(call)
    _settle()


def _settle() -> None:
    """Give BLAS its number of threads. There is no lock, which an interrupt could leave locked: a thread that changes
    `_sharing` checks this afterwards, and repeats it.
    """
    while _get() != (threads := 1 if _sharing else _before):
        _set(threads)


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), "tinymp")
    return _pool


def _forget() -> None:
    """In a forked process only the thread that forked continues."""
    global _pool
    _pool = None
    _sharing.clear()
    if _set:
        _settle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
