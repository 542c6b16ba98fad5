"""The blocks of a launch in lockstep: a register is an array with a number for every thread, and one instruction runs
for all threads at once that have come to it. Of threads that went different ways, those run first that are furthest
behind in the text, so that they meet again where the ways do.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

SHARED, LOCAL = 1 << 62, 1 << 61  # where generic addresses of these spaces begin
MOST_PARAMETER = 1 << 15  # bytes
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
GUARD = 64  # bytes between two variables of shared memory
POISON = 0xFF  # what memory holds that nobody has written: as a float or a half nan
LANES = np.arange(32)


class PTXError(RuntimeError):
    """A program did what it must not do."""


class Region:
    """Global memory that a kernel may use: the bytes [low, high)."""

    def __init__(self, low: int, high: int, bytes_at: Any) -> None:
        self.low, self.high = low, high
        self.base = low & ~15
        raw = bytes_at(self.base, -(-(high - self.base) // 16) * 16)
        self.views = {size: raw.view(dtype) for size, dtype in UNSIGNED.items()}


class Registers(dict):
    """By name; one that nothing was written to holds ones in all bits."""

    def __missing__(self, name: str) -> np.ndarray:
        kinds = {"p": np.bool_, "rs": np.uint16, "r": np.uint32, "f": np.uint32, "rd": np.uint64, "fd": np.uint64}
        kind = name.rstrip("0123456789")
        raw = ~np.zeros(1, kinds.get(kind, np.uint64))
        return raw.view(np.float32) if kind == "f" else raw.view(np.float64) if kind == "fd" else raw


class Machine:
    """Some blocks of a launch.

    counts  bytes and transactions, if measured: see `measure`
    """

    def __init__(self, grid: Any, block: Any, first: int, blocks: int, regions: list[Region], shared: int, guards: Any,
                 local: int, measure: bool = False) -> None:  # fmt: skip
        self.threads = threads = block[0] * block[1] * block[2]
        self.n = n = blocks * threads
        self.regions, self.last = regions, regions[0] if regions else None
        thread = np.tile(np.arange(threads, dtype=np.uint32), blocks)
        number = np.repeat(np.arange(first, first + blocks, dtype=np.uint32), threads)
        self.special = {}
        for axis, size, before in zip("xyz", block, (1, block[0], block[0] * block[1])):
            self.special[f"tid.{axis}"] = thread // np.uint32(before) % np.uint32(size)
            self.special[f"ntid.{axis}"] = np.full(1, size, np.uint32)
        for axis, size, before in zip("xyz", grid, (1, grid[0], grid[0] * grid[1])):
            at = number // np.uint32(before) % np.uint32(size)
            self.special[f"ctaid.{axis}"] = at if blocks > 1 else at[:1]
            self.special[f"nctaid.{axis}"] = np.full(1, size, np.uint32)
        self.thread, self.number = thread, number
        self.warp = np.arange(n) // threads * (-(-threads // 32)) + thread // 32  # of each thread, through all blocks
        self.lane = self.warp * 32 + thread % 32  # the same, with the lane
        self.room = -(-shared // 16) * 16 + 16  # of one block
        self.shared_bytes = shared
        self.base = (np.arange(n) // threads * self.room).astype(np.int64)
        raw = np.full(blocks * self.room, POISON, np.uint8)
        self.shared = {size: raw.view(dtype) for size, dtype in UNSIGNED.items()}
        self.guarded = np.zeros(self.room, bool)
        for low, high in guards:
            self.guarded[low:high] = True
        raw = np.full(n * max(-(-local // 8) * 8, 8), POISON, np.uint8)
        self.local = {size: raw.view(dtype) for size, dtype in UNSIGNED.items()}
        self.local_base = np.arange(n, dtype=np.int64) * (raw.size // n)
        # of every two bytes of shared memory: who used them last, and when (which barrier, which __syncwarp)
        units = blocks * self.room // 2
        self.wrote, self.wrote_at = np.full(units, -1, np.int32), np.full(units, -1, np.int32)
        self.wrote_sync, self.read_sync = np.zeros(units, np.int32), np.zeros(units, np.int32)
        self.reader, self.read_at = np.full(units, -1, np.int32), np.full(units, -1, np.int32)
        self.more, self.others = np.zeros(units, bool), np.zeros(units, bool)
        self.atomic_at = np.full(units, -1, np.int32)
        self.epoch, self.sync = 0, np.zeros(self.warp.max(initial=0) + 1, np.int32)
        self.copies: list[tuple] = []  # of cp.async, under way
        self.committed = np.zeros(n, np.int64)  # groups of them, of each thread
        self.measure = measure
        self.counts: Counter = Counter()
        self.parameters: list[np.ndarray] = []  # of the kernel, each as an array of one number or structure
        self.constants: dict[str, bytes] = {}  # variables of the module

    def fail(self, text: str) -> None:
        raise PTXError(text)

    def parameter_at(self, address: np.ndarray, next_: int, dtype: str, act: Any) -> np.ndarray:
        """Numbers in one of the parameters, which lie MOST_PARAMETER bytes apart; or so many further on."""
        if act is not None and address.size > 1:
            address = np.where(act, address, address[act.argmax()])
        number, offset = np.divmod(address.astype(np.int64), MOST_PARAMETER)
        content = np.frombuffer(self.parameters[int(number.flat[0])].tobytes(), np.uint8)
        size = np.dtype(dtype).itemsize
        places = offset[:, None] + size * next_ + np.arange(size)
        return np.ascontiguousarray(content[places]).view(dtype)[:, 0]

    def constant_at(self, name: str, offset: int, dtype: str) -> np.ndarray:
        """A number of a variable of the module."""
        return np.frombuffer(self.constants[name], dtype, 1, offset)

    def wide(self, x: np.ndarray) -> np.ndarray:
        """A register with a number for every thread."""
        return x if x.size == self.n else np.broadcast_to(x, self.n)

    # ---- memory

    def active(self, act: Any) -> np.ndarray:
        """The numbers of the threads that take part."""
        return np.arange(self.n) if act is None else np.flatnonzero(act)

    def load(self, space: str, a: np.ndarray, size: int, count: int, act: Any) -> list[np.ndarray]:
        """`count` neighbours of `size` bytes from address a of every thread, as unsigned integers."""
        if space == "generic":
            space, a = self.space_of(a, act)
        if space == "global":
            if act is not None and a.size > 1:
                a = np.where(act, a, a[act.argmax()])
            if self.measure:
                self.note("load", a, size * count, act)
            region = self.region(a, size * count)
            if region is None:
                return self.load_parts(a, size, count)
            place = self.place(a, region.base, size, count)
            view = region.views[size]
            return [view[place + j] if j else view[place] for j in range(count)]
        memory, place = self.own(space, a, size, count, act, write=False)
        return [memory[place + j] if j else memory[place] for j in range(count)]

    def load_parts(self, a: np.ndarray, size: int, count: int) -> list[np.ndarray]:
        """The same where threads read different arrays."""
        found = [np.empty(a.size, UNSIGNED[size]) for _ in range(count)]
        left = np.ones(a.size, bool)
        while left.any():
            region = self.region(a[left][:1], size * count) or self.stray(a[left][:1])
            here = left & (a >= region.low) & (a + np.uint64(size * count) <= region.high)
            place = self.place(a[here], region.base, size, count)
            for j, x in enumerate(found):
                x[here] = region.views[size][place + j]
            left &= ~here
        return found

    def store(self, space: str, a: np.ndarray, values: list[np.ndarray], size: int, act: Any) -> None:
        """The reverse."""
        if space == "generic":
            space, a = self.space_of(a, act)
        if space != "global":
            memory, place = self.own(space, a, size, len(values), act, write=True)
            for j, x in enumerate(values):
                memory[place + j] = x[act] if act is not None and x.size > 1 else x
            return
        if act is not None and a.size > 1:
            a = a[act]
        if self.measure:
            self.note("store", a, size * len(values), act, chosen=True)
        values = [x[act] if act is not None and x.size > 1 else x for x in values]
        while True:
            region = self.region(a, size * len(values))
            here = slice(None)
            if region is None:
                region = self.region(a[:1], size * len(values)) or self.stray(a[:1])
                here = (a >= region.low) & (a + np.uint64(size * len(values)) <= region.high)
            place = self.place(a[here], region.base, size, len(values))
            for j, x in enumerate(values):
                region.views[size][place + j] = x[here] if x.size > 1 else x
            if isinstance(here, slice):
                return
            a, values = a[~here], [x[~here] if x.size > 1 else x for x in values]

    def region(self, a: np.ndarray, size: int) -> Region | None:
        """The one in which all of these lie."""
        low, high = int(a.min()), int(a.max()) + size
        if self.last is not None and self.last.low <= low and high <= self.last.high:
            return self.last
        for region in self.regions:
            if region.low <= low and high <= region.high:
                self.last = region
                return region
        return None

    def stray(self, a: np.ndarray) -> Any:
        near = min(self.regions, key=lambda r: max(r.low - int(a[0]), int(a[0]) - r.high), default=None)
        what = f", {int(a[0]) - near.low} bytes behind the start of one of {near.high - near.low}" if near else ""
        return self.fail(f"uses memory that is not its own: address {int(a[0]):#x}{what}")

    def place(self, a: np.ndarray, base: int, size: int, count: int) -> np.ndarray:
        if (a & np.uint64(size * count - 1)).any():
            self.fail(f"an address of {count} x {size} bytes is not a multiple of {count * size}")
        return (a - np.uint64(base)).view(np.int64) >> (size.bit_length() - 1)

    def space_of(self, a: np.ndarray, act: Any) -> tuple[str, np.ndarray]:
        """What a generic address stands for; all threads' in the same space."""
        top = a >> np.uint64(61)
        kinds = top if act is None or a.size == 1 else top[act]
        if (kinds != kinds[0]).any():
            self.fail("threads use different spaces of memory in one instruction")
        if kinds[0] == 0:
            return "global", a
        return ("shared", a - np.uint64(SHARED)) if kinds[0] == 2 else ("local", a - np.uint64(LOCAL))

    def own(self, space: str, a: np.ndarray, size: int, count: int, act: Any, write: bool) -> tuple[Any, np.ndarray]:
        """Shared or local memory, and where in it. Of a load for all threads, of a store for the active ones."""
        a = a.astype(np.int64) if a.dtype != np.uint64 else a.view(np.int64)
        if act is not None:
            a = self.wide(a)[act]
        chosen = self.active(act)
        if ((a & (size * count - 1)) != 0).any():
            self.fail(f"an address of {count} x {size} bytes is not a multiple of {count * size}")
        if space == "local":
            memory, at = self.local, a + self.local_base[chosen]
        else:
            if a.min() < 0 or a.max() + size * count > self.shared_bytes or self.guarded[a].any():
                self.fail(f"uses shared memory outside of its arrays: byte {int(a.max())} of {self.shared_bytes}")
            memory, at = self.shared, a + self.base[chosen]
            if self.measure:
                self.note_banks(a, size * count, chosen, write)
            self.check_races(at, size * count, chosen, write)
        place = at >> (size.bit_length() - 1)
        if not write and act is not None:
            whole = np.zeros(self.n, np.int64)
            whole[chosen] = place
            place = whole
        return memory[size], place

    def check_races(self, at: np.ndarray, nbytes: int, who: np.ndarray, write: bool, atomic: bool = False) -> None:
        """An error where two threads use the same bytes, one of them writes, and no barrier is between.

        In a warp bar.warp.sync is enough. Reads and writes of one instruction by several threads count, too; atomics
        against each other do not.
        """
        units = (at[:, None] + np.arange(0, max(nbytes, 2), 2)).ravel() >> 1 if nbytes > 2 else at >> 1
        who = np.repeat(who, nbytes // 2).astype(np.int32) if nbytes > 2 else who.astype(np.int32)
        if who.size != units.size:
            who = np.broadcast_to(who, units.shape)
        warp = self.warp[who]
        sync = self.sync[warp]
        wrote, here = self.wrote[units], self.wrote_at[units] == self.epoch
        clash = here & (wrote != who) & ((self.warp[wrote] != warp) | (self.wrote_sync[units] == sync))
        if atomic:
            clash &= self.atomic_at[units] != self.epoch
            self.atomic_at[units] = self.epoch
        if clash.any():
            i = int(clash.argmax())
            self.fail(f"thread {self.thread[who[i]]} {'writes' if write else 'reads'} shared memory that thread "
                      f"{self.thread[wrote[i]]} wrote, without a barrier between")  # fmt: skip
        read = self.read_at[units] == self.epoch
        if write:
            reader = self.reader[units]
            ordered = (self.warp[reader] == warp) & (self.read_sync[units] != sync)
            clash = read & (self.others[units] | ~(ordered | ((reader == who) & ~self.more[units])))
            if clash.any():
                i = int(clash.argmax())
                self.fail(f"thread {self.thread[who[i]]} writes shared memory that thread {self.thread[reader[i]]} "
                          "read, without a barrier between")  # fmt: skip
            self.wrote[units], self.wrote_at[units], self.wrote_sync[units] = who, self.epoch, sync
            if not atomic and (double := self.wrote[units] != who).any():
                self.fail(f"threads {self.thread[who[double.argmax()]]} and another write the same shared memory")
            return
        new = ~read
        other = read & (self.warp[self.reader[units]] != warp)
        same = read & ~other
        self.others[units[new]] = False
        self.more[units[new]] = False
        self.others[units[other]] = True
        again = units[same]
        self.more[again] = (self.read_sync[again] == sync[same]) & (
            self.more[again] | (self.reader[again] != who[same])
        )
        self.reader[units], self.read_at[units], self.read_sync[units] = who, self.epoch, sync
        double = self.reader[units] != who  # several threads at once
        self.more[units[double]] = True
        self.others[units[double & (self.warp[self.reader[units]] != warp)]] = True

    # ---- what is counted

    def note(self, what: str, a: np.ndarray, nbytes: int, act: Any, chosen: bool = False) -> None:
        """Bytes asked for, and sectors of 32 bytes that the warps' accesses touch (coalescing)."""
        who = self.active(act)
        if a.size == 1 and who.size != 1:
            a = np.broadcast_to(a, who.size)
        elif not chosen and act is not None and a.size > 1:
            a = a[act]
        assert nbytes <= 32
        sectors, first = self.by_warp((a >> np.uint64(5)).view(np.int64)[:, None], who)
        self.counts[f"{what} bytes"] += nbytes * a.size
        self.counts[f"{what} sectors"] += int(np.count_nonzero(first))
        self.counts[f"{what}s"] += int(np.count_nonzero(sectors[:, -1] >= 0))

    def by_warp(self, x: np.ndarray, who: np.ndarray, share: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """(numbers >= 0 of threads, sorted in each warp, or each part of 1 / share; where one differs from the last).

        A row is filled up with -1 for threads that do not take part.
        """
        rows = np.full((32 * self.sync.size, x.shape[1]), -1)
        rows[self.lane[who]] = x
        rows = rows.reshape(share * self.sync.size, -1)
        rows.sort(1)
        first = rows >= 0
        first[:, 1:] &= rows[:, 1:] != rows[:, :-1]
        return rows, first

    def many_warps(self, act: Any) -> int:
        """In how many at least one thread takes part."""
        if act is None:
            return self.sync.size
        here = np.zeros(32 * self.sync.size, bool)
        here[self.lane] = act
        return int(np.count_nonzero(here.view(np.uint64).reshape(-1, 4).any(1)))

    def note_banks(self, a: np.ndarray, nbytes: int, who: np.ndarray, write: bool) -> None:
        """Passes over the 32 banks of 4 bytes, and how many more they are than the bytes need."""
        share = max(nbytes // 4, 1)  # an access of 8 or 16 bytes goes in halves or quarters of the warp
        words, first = self.by_warp((a[:, None] >> 2) + np.arange(share), who, share)
        part, at = first.nonzero()
        most = np.bincount(part * 32 + (words[part, at] & 31), minlength=words.size).reshape(-1, 32).max(1)
        accesses = int(np.count_nonzero(most))
        self.counts["shared accesses"] += accesses
        self.counts["bank conflicts"] += int(most.sum()) - accesses

    # ---- atomics

    def atomic(self, space: str, how: str, a: np.ndarray, x: np.ndarray, act: Any) -> np.ndarray:
        """x is added to (or the least kept at) the number at a; returns what was there. In the order of the threads."""
        size, who = x.dtype.itemsize, self.active(act)
        a, x = (self.wide(v)[who] for v in (a, x))
        if space == "generic":
            space, a = self.space_of(a, None)
        if space == "shared":
            self.check_races(a.astype(np.int64) + self.base[who], size, who, True, atomic=True)
            memory, place = self.shared[size], (a.astype(np.int64) + self.base[who]) >> (size.bit_length() - 1)
        else:
            region = self.region(a, size) or self.stray(a)
            memory, place = region.views[size], self.place(a, region.base, size, 1)
        memory = memory.view(x.dtype)
        before = np.zeros(self.n, x.dtype)
        for i, at, value in zip(who, place, x):
            before[i] = memory[at]
            memory[at] = {"add": np.add, "min": np.minimum, "max": np.maximum}[how](memory[at], value)
        return before

    # ---- cp.async

    def copy_async(self, to: np.ndarray, source: np.ndarray, nbytes: int, valid: np.ndarray, act: Any) -> None:
        """The data arrive at cp.async.wait_group and not before: who reads earlier reads what was there."""
        who = self.active(act)
        to, source, valid = (self.wide(v)[who] for v in (to, source, valid))
        data = np.zeros((who.size, nbytes), np.uint8)
        if (read := valid != 0).any():
            act_read = np.zeros(self.n, bool)
            act_read[who[read]] = True
            whole = np.zeros(self.n, np.uint64)
            whole[who] = source
            words = np.stack(self.load("global", whole, 4, nbytes // 4, act_read), 1)
            data[read] = np.ascontiguousarray(words[who[read]]).view(np.uint8)
        data[np.arange(nbytes) >= valid[:, None]] = 0
        data = data.view(np.uint32)
        to = to.astype(np.int64)
        if (to & (nbytes - 1)).any() or to.max() + nbytes > self.shared_bytes or self.guarded[to].any():
            self.fail("cp.async: an address in shared memory is outside of its arrays, or no multiple")
        at = to + self.base[who]
        self.check_races(at, nbytes, who, write=True)
        self.copies.append((who, at, data, self.committed[who]))

    def commit(self, act: Any) -> None:
        self.committed[slice(None) if act is None else act] += 1

    def wait_group(self, left: int, act: Any) -> None:
        waits = np.zeros(self.n, bool)
        waits[self.active(act)] = True
        kept = []
        for who, at, data, group in self.copies:
            done = waits[who] & (group < self.committed[who] - left)
            if done.any():
                self.check_races(at[done], 4 * data.shape[1], who[done], write=True)
                self.shared[4][(at[done][:, None] >> 2) + np.arange(data.shape[1])] = data[done]
            if not done.all():
                kept.append((who[~done], at[~done], data[~done], group[~done]))
        self.copies = kept

    # ---- what the lanes of a warp do together

    def warps(self, act: Any) -> None:
        """An error unless in every warp all lanes, or none, are here."""
        if act is None:
            return
        if self.many_warps(act) + self.many_warps(~act) != self.sync.size:
            self.fail("lanes of a warp are missing where all must come")

    def lanes(self, x: np.ndarray) -> np.ndarray:
        """(warps, 32) of a register; block sizes are multiples of 32 where this is used."""
        if self.threads % 32:
            self.fail("a block is not made of whole warps")
        return self.wide(x).reshape(-1, 32)

    def shuffle(self, how: str, x: np.ndarray, b: np.ndarray, c: np.ndarray, mask: np.ndarray, act: Any) -> Any:
        """(what the other lane gave, whether there is one): PTX ISA, shfl.sync."""
        if (mask != 0xFFFFFFFF).any():
            self.fail("shfl.sync: expected a mask of all lanes")
        self.warps(act)
        x, b, c = (self.lanes(v) for v in (x, b, c))
        lane, b, c = LANES[None, :], b.astype(np.int64), c.astype(np.int64)
        segment, clamp = c >> 8 & 31, c & 31
        most = (lane & segment) | (clamp & ~segment)
        j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": (lane & segment) | (b & ~segment & 31)}[how]
        inside = j >= most if how == "up" else j <= most
        j = np.where(inside, j, lane)
        return np.take_along_axis(x, j & 31, 1).ravel(), np.broadcast_to(inside, x.shape).ravel()

    def warp_barrier(self, act: Any) -> None:
        self.warps(act)
        self.sync[self.warp[self.active(act)]] += 1  # once each, however many threads it has

    def ldmatrix(self, a: np.ndarray, transposed: bool, act: Any) -> list[np.ndarray]:
        """Four 8 x 8 matrices of halves, whose rows lie at the addresses of lanes 0 to 7, 8 to 15, ..."""
        self.warps(act)
        a = a.astype(np.int64)
        who = self.active(act)
        at = self.wide(a)[who]
        if (at & 15).any() or at.max() + 16 > self.shared_bytes or self.guarded[at].any():
            self.fail("ldmatrix: a row lies outside of shared memory, or not at a multiple of 16")
        self.check_races(at + self.base[who], 16, who, write=False)
        if self.measure:
            self.note_banks(at, 16, who, False)
        rows = self.lanes(np.where(np.isin(np.arange(self.n), who), a, 0) + self.base)
        r, c = LANES // 4, LANES % 4 * 2
        found = []
        for i in range(4):
            if transposed:
                low, high = (self.shared[2][(rows[:, 8 * i + c + k] >> 1) + r] for k in (0, 1))
            else:
                low, high = (self.shared[2][(rows[:, 8 * i + r] >> 1) + c + k] for k in (0, 1))
            found.append((low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)).ravel())
        return found

    def mma(self, a: list, b: list, d: list, act: Any) -> list[np.ndarray]:
        """d + a b of 16 x 8 numbers, a (16, 8 or 16) and b in FP16, laid out as hardware.cuh says; sums are exact."""
        self.warps(act)
        depth = 4 * len(a)
        A, B = np.zeros((self.n // 32, 16, depth)), np.zeros((self.n // 32, depth, 8))
        D = np.zeros((self.n // 32, 16, 8))
        g, t = LANES // 4, LANES % 4
        for i, x in enumerate(a):
            for j, half in enumerate(self.halves(x)):
                A[:, g + i % 2 * 8, 2 * t + i // 2 * 8 + j] = half
        for i, x in enumerate(b):
            for j, half in enumerate(self.halves(x)):
                B[:, 2 * t + i * 8 + j, g] = half
        for i, x in enumerate(d):
            D[:, g + i // 2 * 8, 2 * t + i % 2] = self.lanes(x)
        D = (D + A @ B).astype(np.float32)
        return [D[:, g + i // 2 * 8, 2 * t + i % 2].ravel() for i in range(4)]

    def halves(self, x: np.ndarray) -> list[np.ndarray]:
        x = self.lanes(x)
        return [(x >> np.uint32(16 * j)).astype(np.uint16).view(np.float16).astype(np.float64) for j in (0, 1)]
