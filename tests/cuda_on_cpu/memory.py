"""Memory between fences: what is not an array's own cannot be read or written unnoticed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

PAGE = mmap.PAGESIZE
FENCE = 256 * PAGE  # so that a step far out of an array is still near it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NO_ACCESS, _FAILED = 0, ctypes.c_void_p(-1).value


def bytes_at(address: int, size: int) -> np.ndarray:
    """The `size` bytes at an address, as an array."""
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8) if size else np.empty(0, np.uint8)


def extent(x: np.ndarray) -> tuple[int, int]:
    """The addresses of the first byte of x, and of the one behind its last."""
    return np.lib.array_utils.byte_bounds(x) if x.size else (x.ctypes.data, x.ctypes.data)


class Fenced:
    """`size` bytes with a fence directly behind them (`at_end`) or before them, at an address that is `residue` mod 16.

    The residue may leave less than 16 bytes to the fence. They, and the bytes up to the other fence, hold `filler`.
    """

    def __init__(self, size: int, residue: int, at_end: bool, filler: int) -> None:
        self.size = size
        pages = max(PAGE, -(-(size + 15) // PAGE) * PAGE)
        length = pages + 2 * FENCE
        mapped = _libc.mmap(None, length, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if mapped == _FAILED or _libc.mprotect(mapped + FENCE, pages, mmap.PROT_READ | mmap.PROT_WRITE):
            raise MemoryError(f"{length} bytes between fences: errno {ctypes.get_errno()}")
        self.low, self.high = mapped, mapped + length
        start, end = self.low + FENCE, self.high - FENCE
        self.address = end - size - (end - size - residue) % 16 if at_end else start + residue
        bytes_at(start, pages)[:] = filler
        self.data = bytes_at(self.address, size)

    def free(self) -> None:
        self.data = np.empty(0, np.uint8)
        _libc.munmap(self.low, self.high - self.low)


class Group:
    """Arrays that overlap in memory, as one block of it. members: their numbers."""

    def __init__(self, low: int, high: int, members: list[int]) -> None:
        self.low, self.high, self.members = low, high, members
        self.before = bytes_at(low, high - low)  # the memory itself

    def gaps(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The offsets of the bytes that belong to none of the arrays: where views skip elements."""
        belongs = np.zeros(self.high - self.low, bool)
        for x in (arrays[m] for m in self.members):
            first = belongs[extent(x)[0] - self.low :]
            np.lib.stride_tricks.as_strided(first, (*x.shape, x.itemsize), (*x.strides, 1))[...] = True
        return np.flatnonzero(~belongs)


def groups(arrays: Sequence[np.ndarray]) -> list[Group]:
    """The arrays in as many groups as there are blocks of memory.

    Arrays that overlap share theirs, so that a kernel sees in one of them what it does to the other.
    """
    found: list[Group] = []
    for (low, high), number in sorted((extent(x), i) for i, x in enumerate(arrays)):
        if found and (low < found[-1].high or (low, high) == (found[-1].low, found[-1].high)):
            last = found.pop()
            found.append(Group(last.low, max(high, last.high), [*last.members, number]))
        else:
            found.append(Group(low, high, [number]))
    return found
