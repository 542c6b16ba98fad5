"""Where a training step's time goes on one core, and the least that it must take: `benchmarks.cpu --part where`.

A second thread looks every half millisecond at the instruction that the first is in. A call or an operator there is
work on arrays, and the text of its line says which; whatever else it does is Python.
"""

from __future__ import annotations

import dis
import itertools
import linecache
import os
import re
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from mmap import mmap
from types import CodeType, FrameType
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import tinymp as mp

from . import steps
from .worker import timed

PACKAGE = os.path.dirname(mp.__file__)
KINDS = {  # the first whose pattern "file:function: text" matches
    "products": r":gemm: |matmul|einsum",
    "columns": r"conv\.py:|pool\.py:",
    "copies": r"contiguous|\.copy\(|concatenate|stack\(|reshape\(|\[.*\] = |:_in_order: |empty|zeros\(|full|add\.at",
    "elementwise": "",
}
CASTS, PYTHON = "casts", "Python"
WORK = ("CALL", "BINARY_", "COMPARE_", "UNARY_", "STORE_SUBSCR")
EVERY = 0.0005  # seconds between two looks


@cache
def _works(code: CodeType) -> set[int]:
    """The offsets of the instructions that may work on arrays."""
    return {i.offset for i in dis.get_instructions(code) if i.opname.startswith(WORK)}


@cache
def _kind(code: CodeType, offset: int) -> str:
    """The kind of work that an instruction of tinymp does."""
    line, last, start, end = list(code.co_positions())[offset // 2]
    text = linecache.getline(code.co_filename, line or 1)[start if line == last else 0 : end if line == last else None]
    where = f"{os.path.basename(code.co_filename)}:{code.co_name}: {text}"
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, where))


def _seen(frame: FrameType | None) -> str:
    """The kind of work that a thread does at this moment."""
    works = frame is not None and frame.f_lasti in _works(frame.f_code)
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name == "cast":  # NumKong lets no other thread run, and none look
        return CASTS
    return _kind(frame.f_code, frame.f_lasti) if frame is not None and works else PYTHON


def spent(step: Callable[[], Any], seconds: float) -> tuple[Counter, float, float]:
    """Counts of each kind of work in samples of the stack; seconds and page faults of a step."""
    seen: Counter[str] = Counter()
    main, ended, before = threading.get_ident(), threading.Event(), sys.getswitchinterval()

    def look() -> None:
        while not ended.wait(EVERY):
            seen[_seen(sys._current_frames().get(main))] += 1

    step()
    sys.setswitchinterval(1e-6)  # else Python runs on for 5 ms before the other thread gets to look
    looking = threading.Thread(target=look)
    faults, start, steps, taken = _faults(), time.perf_counter(), 0, 0.0
    looking.start()
    try:
        while taken < seconds:
            step()
            steps, taken = steps + 1, time.perf_counter() - start
    finally:
        ended.set()
        looking.join()
        sys.setswitchinterval(before)
    return seen, taken / steps, (_faults() - faults) / steps


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _best(work: Callable[[], Any]) -> float:
    """The shortest of five times of a call, in seconds."""
    return min(timed(work) for _ in range(5))


def rates() -> tuple[float, float, float]:
    """This machine's FP32 operations per second in a product, bytes per second in a copy, seconds per page fault."""
    a, b = np.random.default_rng(0).standard_normal((2, 1024, 1024), np.float32)
    x, y = np.ones((2, 1 << 24), np.float32)
    pages = 1 << 14

    def touch() -> None:
        with mmap(-1, pages * resource.getpagesize()) as fresh:
            fresh[:: resource.getpagesize()] = bytes(pages)

    return 2 * 1024**3 / _best(lambda: a @ b), 2 * x.nbytes / _best(lambda: np.copyto(y, x)), _best(touch) / pages


def table(networks: list[str], seconds: float) -> dict[str, Any]:
    """The machine's rates, and a row for each network in FP32 and in mixed precision, in ms of a step."""
    columns = ["products", CASTS, "elementwise", "columns", "copies", PYTHON]
    rows: list[dict[str, Any]] = []
    with threadpool_limits(1):
        speed, bandwidth, fault = rates()
        text = f"{speed / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s, {fault * 1e6:.2f} us per page fault"
        print(
            f"\none core: {text}\n\n{'ms of a step':<20}", *[f"{c:>11}" for c in [*columns, "faults", "all", "least"]]
        )
        for network, kind in itertools.product(networks, ("FP32", "mixed")):
            step = steps.make(network, kind)
            step()
            with mp.audit() as a:
                step()
            seen, each, faults = spent(step, seconds)
            ms = {c: 1000 * each * seen[c] / seen.total() for c in columns}
            ms |= {"faults": 1000 * faults * fault, "all": 1000 * each}
            ms |= {"least": 1000 * (a.products.flops / speed + a.bytes.moved / bandwidth)}
            print(f"{network + ', ' + kind:<20}", *[f"{n:>11.1f}" for n in ms.values()], flush=True)
            rows.append({"network": network, "kind": kind, "ms": ms})
    return {"one core": text, "rows": rows}
