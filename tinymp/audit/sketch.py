"""A mark of an array: 300 bytes from which two arrays of two runs can be told apart, and how far apart they are.

The digest says whether they are the same, bit for bit. The sketch is a linear map to 31 numbers (a count sketch:
Charikar, Chen and Farach-Colton, 2002): element i is added to number i mod 31 with a random sign, the same everywhere.
The sketches of a and b differ by that of a - b, whose norm is that of a - b within 13 % (one standard deviation), and
exactly so where one element differs, or arrays have at most 31. 31 is prime: axes spread over all numbers.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..backend import cpu

Array = Any
WIDTH = 31
ROWS = 2048  # of WIDTH elements in FP64: blocks of 0.5 MB stay in the cache


class Mark(NamedTuple):
    """What is kept of an array: a digest of its bytes in the order of its axes; how many elements are infinite or NaN;
    of the others the largest magnitude, the root of the sum of squares, and the sketch, min(WIDTH, size) numbers in
    FP64.
    """

    digest: str
    nonfinite: int
    largest: float
    norm: float
    sketch: Array


def mark(x: Array) -> Mark:
    """The mark of a NumPy array of any dtype that is a number or a truth value."""
    x = np.ascontiguousarray(x)
    flat = x.reshape(-1)
    digest = hashlib.sha1(flat.view(np.uint8), usedforsecurity=False).hexdigest()[:16]  # the fastest in hashlib
    sums, squares, largest, nonfinite = np.zeros(WIDTH), 0.0, 0.0, 0
    of_rows = _signs(b"every row", 1 << (-(-x.size // WIDTH)).bit_length())
    pattern = _signs(b"pattern", ROWS * WIDTH)
    with np.errstate(all="ignore"):
        for i in range(0, x.size, ROWS * WIDTH):
            part = flat[i : i + ROWS * WIDTH]  # FP16 by way of FP32, exact: NumKong is five times as fast as NumPy
            # rounds: never, to FP64, which is exact
            block = (cpu.cast(part, np.dtype(np.float32)) if part.dtype == np.float16 else part).astype(np.float64)
            square = float(np.dot(block, block))  # rounds: a sketch of a gradient, summed in FP64
            if not math.isfinite(square):
                finite = np.isfinite(block)
                nonfinite += block.size - int(np.count_nonzero(finite))
                block[~finite] = 0
                square = float(np.dot(block, block))  # rounds: a sketch of a gradient, summed in FP64
            squares += square
            largest = max(largest, float(block.max()), -float(block.min()))
            block *= pattern[: block.size]
            whole = block.size // WIDTH
            signs = of_rows[i // WIDTH :]
            sums += np.dot(signs[:whole], block[: whole * WIDTH].reshape(whole, WIDTH))  # rounds: a sketch, in FP64
            rest = block[whole * WIDTH :]
            sums[: rest.size] += signs[whole] * rest
    return Mark(digest, nonfinite, largest, math.sqrt(squares), sums[: min(WIDTH, x.size)])


@lru_cache(maxsize=32)
def _signs(key: bytes, n: int) -> Array:
    """n signs, the same on every machine and with every NumPy; the first of them do not depend on n."""
    bits = np.unpackbits(np.frombuffer(hashlib.shake_128(key).digest(-(-n // 8)), np.uint8))
    return 2.0 * bits[:n] - 1
