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

from ..precision import widen

Array = Any
WIDTH = 31
ROWS = 2048  # of WIDTH elements: blocks of 0.5 MB stay in the cache


class Mark(NamedTuple):
    """A summary of an array: a digest of its bytes in the order of its axes; how many elements are infinite or NaN;
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
    flat: Array = np.ascontiguousarray(x).reshape(-1)
    digest = hashlib.sha1(flat.view(np.uint8), usedforsecurity=False).hexdigest()[:16]  # the fastest in hashlib
    sums, squares, largest, nonfinite = np.zeros(WIDTH), 0.0, 0.0, 0
    of_rows = _signs(b"every row", 1 << (-(-flat.size // WIDTH)).bit_length())
    pattern = _signs(b"pattern", ROWS * WIDTH).reshape(ROWS, WIDTH)
    for first in range(0, flat.size, ROWS * WIDTH):
        part = flat[first : first + ROWS * WIDTH]
        block = np.zeros((-(-part.size // WIDTH), WIDTH))
        block.reshape(-1)[: part.size] = widen(part)  # exact, and of FP16 faster than NumPy's own cast to FP64
        finite = np.isfinite(block)
        nonfinite += int(np.count_nonzero(~finite))
        block[~finite] = 0
        with np.errstate(all="ignore"):
            squares += float(np.vdot(block, block))  # rounds: a sketch of a gradient, summed in FP64
            largest = max(largest, float(np.abs(block).max()))
            signs = of_rows[first // WIDTH :][: len(block)]
            sums += np.dot(signs, block * pattern[: len(block)])  # rounds: a sketch, in FP64
    return Mark(digest, nonfinite, largest, math.sqrt(squares), sums[: min(WIDTH, flat.size)])


@lru_cache(maxsize=32)
def _signs(key: bytes, n: int) -> Array:
    """n signs, the same on every machine and with every NumPy; the first of them do not depend on n."""
    bits = np.unpackbits(np.frombuffer(hashlib.shake_128(key).digest(-(-n // 8)), np.uint8))
    return 2.0 * bits[:n] - 1
