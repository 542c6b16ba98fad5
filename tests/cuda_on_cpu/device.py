"""The device that the stand-in for CuPy pretends to have: its memory, its streams, and the capture of CUDA graphs.

It is as strict as a GPU, and as slow as one may be:

- Work queues on its stream until something waits for it, and then that alone is done; with `chance`, all streams go on
  at random moments, in any order that they allow. (CUDA_LAUNCH_BLOCKING=1 does it at once, as it does for CUDA.)
- Fresh memory is full of 0xFF: NaN, -1. So is what was given back, once its stream is there; pinned memory at once.
- Whatever waits for the device is noted in `synchronisations`, and refused within `no_synchronisation()`.
- While a stream captures, work is written down instead of done: its results are 0xFF until the graph is launched. As in
  CUDA, what would wait for the device, or would read host memory that may be gone by then, is an error.
- What is given back in a capture, its pool hands out again in it, by CuPy's rule: a replay writes there twice.
- A graph knows the memory that it works on, and refuses to run when that was given back.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import os
import pathlib
import random
import sys
import threading
import time
import weakref
from collections import deque

import numpy as np

_OWN = {str(pathlib.Path(__file__).with_name(name)) for name in ("array.py", "device.py", "stand_in.py")}

# ---------------------------------------------------------------------------------------------------------- errors

_ERRORS = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    900: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    905: ("cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"),
    907: ("cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"),
}


class CUDARuntimeError(RuntimeError):
    """cupy.cuda.runtime.CUDARuntimeError; `why` is the stand-in's own addition."""

    def __init__(self, status, why=""):
        self.status = status
        name, text = _ERRORS[status]
        super().__init__(f"{name}: {text}" + (f" ({why})" if why else ""))


class CUDADriverError(RuntimeError):
    """cupy.cuda.driver.CUDADriverError."""


# --------------------------------------------------------------------------------------------------- synchronisation

synchronisations: list[str] = []  # what waited for the device, in order
_forbidden = 0


def synchronise(what, stream=None, number=None):
    """`what` waits until a stream (the current one) has done so many pieces of work (all).

    CUDARuntimeError during capture, AssertionError where it is forbidden.
    """
    if capturing():
        _here.current._broken = True
        raise CUDARuntimeError(900, what)
    if _forbidden:
        raise AssertionError(f"{what} waits for the device")
    synchronisations.append(what)
    stream = _here.current if stream is None else stream
    reach(stream, stream._given if number is None else number)


# CuPy 14.2 lets these calls into no graph: here are its errors, the lines of its source that raise, and who ends there.
# All else is kernels, scratch memory from the pool, memset and copies on the device: a graph takes these.
_IN_CAPTURE = {
    "H2D": (  # asarray, set, indices, counts, addresses: core.pyx:2242 and 3080, _routines_indexing.pyx:291
        *(RuntimeError, "the current stream is capturing, so H2D transfers are disallowed"),
        "cupy/cuda/memory.pyx:617 copy_from_host_async",
    ),
    "D2H": (  # get, masks, nonzero: core.pyx:2203, _routines_indexing.pyx:123 and 802
        *(RuntimeError, "the current stream is capturing, so D2H transfers are disallowed"),
        "cupy/cuda/memory.pyx:715 copy_to_host_async",
    ),
    "cuBLAS": (  # products of floating arrays, but for a single result: _routines_linalg.pyx:635
        *(NotImplementedError, "calling cuBLAS API during stream capture is currently unsupported"),
        "cupy_backends/cuda/libs/cublas.pyx:648 setStream",
    ),
}


def refuse_in_capture(kind):
    """Raise CuPy's error for a call while a stream captures: see _IN_CAPTURE."""
    if capturing():
        error, message, where = _IN_CAPTURE[kind]
        raise error(f"{message} ({where})")


def read(what):
    """Note that `what` waits for values of the device."""
    refuse_in_capture("D2H")
    synchronise(what)


@contextlib.contextmanager
def no_synchronisation():
    """Within the block, whatever waits for the device raises AssertionError."""
    global _forbidden
    _forbidden += 1
    try:
        yield
    finally:
        _forbidden -= 1


# ------------------------------------------------------------------------------------------------------------ memory

ALIGNMENT = 512  # CuPy's pool hands out multiples of it


def _rounded(size):
    return -(-size // ALIGNMENT) * ALIGNMENT


class Block:
    """Bytes of device memory. They stay as long as an array, or a graph that works on them, is there.

    In a capture several allocations may have parts of one, at once or one after the other.
    """

    ptr = None  # until there are bytes: an allocation may fail

    def __init__(self, size):
        raw = np.empty(_rounded(size) + ALIGNMENT, np.uint8)
        offset = -raw.__array_interface__["data"][0] % ALIGNMENT
        self._room = raw[offset : offset + _rounded(size)]
        self._room.fill(0xFF)
        self.ptr = self._room.__array_interface__["data"][0]
        self.size = 0  # as large as was asked for, though the pool counts more
        self._parts = []  # references to the allocations
        _blocks[self.ptr] = weakref.ref(self)
        bisect.insort(_starts, self.ptr)

    @property
    def bytes(self):
        return self._room[: self.size]

    def part(self, memory, start):
        """The bytes from `start` on, for an allocation."""
        self.size = max(self.size, start + memory.size)
        self._parts.append(weakref.ref(memory))
        return self._room[start : start + memory.size]

    def memory(self, address):
        """The allocation that has this address now, or None."""
        for part in self._parts:
            if (memory := part()) is not None and memory.ptr <= address < memory.ptr + memory.size:
                return memory
        return None

    def __del__(self):
        if not sys.is_finalizing() and _blocks.pop(self.ptr, None) is not None:
            del _starts[bisect.bisect_left(_starts, self.ptr)]


_blocks: dict[int, weakref.ref] = {}  # where a block starts -> the block
_starts: list[int] = []  # the same addresses, sorted


def block_at(address):
    """The block that contains an address, or None."""
    i = bisect.bisect_right(_starts, address) - 1
    block = _blocks[_starts[i]]() if i >= 0 else None
    return block if block is not None and address < block.ptr + block.size else None


def memory_at(address):
    """The allocations (one, or none) that contain an address."""
    block = block_at(address)
    memory = None if block is None else block.memory(address)
    return [] if memory is None else [memory]


def device_bytes(address, count):
    """Device memory from an address on as a writable NumPy array. CUDARuntimeError where it is not allocated."""
    block = block_at(address)
    if block is None or address + count > block.ptr + block.size:
        raise CUDARuntimeError(700, f"{count} bytes at {address:#x}")
    return block.bytes[address - block.ptr : address - block.ptr + count]


class Memory:
    """cupy.cuda.Memory: one allocation. When no array points to it any more, its pool may give it to others."""

    device_id, block = 0, None

    def __init__(self, size, pool=None, part=None):
        self.size, self.pool = size, weakref.ref(pool) if pool else lambda: None  # a pool does not outlive its owner
        self.block, start = part or (Block(size) if size else None, 0)
        self.ptr = self.block.ptr + start if size else 0
        self.bytes = self.block.part(self, start) if size else np.empty(0, np.uint8)
        self._stream = weakref.ref(_here.current)  # whose work may get it next: CuPy's pool has arenas

    def __del__(self):
        if sys.is_finalizing():
            return
        pool = self.pool()
        if pool is not None:
            pool._freed(_rounded(self.size))
        if self.block is not None and (stream := self._stream()) is not None:
            fill = functools.partial(self._fill, self.block, self.bytes)
            if stream._work is None:
                stream._give(fill, freed=True)
            else:  # at each replay
                stream._work.append(fill)
                if pool is not None:
                    stream._keep(pool, self.block, self.ptr - self.block.ptr, _rounded(self.size))

    @staticmethod
    def _fill(block, its_bytes):  # a block is there as long as work may use it
        its_bytes.fill(0xFF)


class MemoryPointer:
    """cupy.cuda.MemoryPointer: an allocation and an offset into it."""

    def __init__(self, mem, offset):
        self.mem, self._offset = mem, offset

    @property
    def ptr(self):
        return self.mem.ptr + self._offset if self.mem.ptr else 0

    device_id, device = 0, property(lambda self: Device(0))

    def __add__(self, offset):
        return MemoryPointer(self.mem, self._offset + offset)

    def copy_from_host_async(self, address, size, stream=None):
        refuse_in_capture("H2D")
        upload(self._bytes(size), address, size, [self.mem])

    def _bytes(self, size):
        if self._offset < 0 or self._offset + size > self.mem.size:
            raise CUDARuntimeError(1, f"{size} bytes at offset {self._offset} of {self.mem.size}")
        return self.mem.bytes[self._offset : self._offset + size]


class MemoryPool:
    """cupy.cuda.MemoryPool: keeps what is freed, so that it rarely asks the device for memory."""

    def __init__(self, allocator=None):
        self._used = self._total = 0

    def malloc(self, size):
        """A MemoryPointer to `size` bytes (CuPy rounds up to 512)."""
        used = self._used + _rounded(size)
        if used > self._total:  # nothing kept would do: this goes to the device
            if any(stream._mode != STREAM_CAPTURE_RELAXED for stream in _capturing_streams()):
                raise CUDARuntimeError(900, "cudaMalloc")
            self._total = used
        memory = Memory(size, self, _here.current._again(self, _rounded(size)))
        self._used = used
        for stream in _capturing_streams():  # kernels may find it by an address in a table
            stream._touch(memory)
        return MemoryPointer(memory, 0)

    def _freed(self, size):
        self._used -= size

    def used_bytes(self):
        return self._used

    def total_bytes(self):
        """The most that was in use at once since the last free_all_blocks."""
        return self._total

    def free_all_blocks(self, stream=None):
        self._total = self._used


_pinned: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # address -> buffer
_free_pinned: dict[int, list] = {}  # size -> memory that was given back


def alloc_pinned_memory(size):
    """cupy.cuda.alloc_pinned_memory: a buffer for `numpy.frombuffer(memory, dtype, count)`.

    Like CuPy's pool: sizes are powers of two from 512 on, and what was given back last goes out first, at once. Others
    have written 0xFF to it meanwhile.
    """
    rounded = max(512, 1 << (size - 1).bit_length())
    free = _free_pinned.setdefault(rounded, [])
    if not free:
        _given_back((ctypes.c_uint8 * rounded)(), free)
    raw = free.pop()
    kind = type("PinnedMemoryPointer", (ctypes.Array,), {"_type_": ctypes.c_uint8, "_length_": rounded})
    memory = kind.from_buffer(raw)
    memory.ptr = ctypes.addressof(memory)
    _pinned[memory.ptr] = memory
    weakref.finalize(memory, _given_back, raw, free).atexit = False
    return memory


def _given_back(raw, free):
    ctypes.memset(raw, 0xFF, len(raw))
    free.append(raw)


def _pinned_at(address, size):
    """The pinned buffer that holds these bytes, or None."""
    for start, memory in list(_pinned.items()):
        if start <= address and address + size <= start + len(memory):
            return memory
    return None


def _host_bytes(address, size):
    kind = ctypes.c_uint8 * size
    return np.frombuffer(kind.from_address(address), np.uint8) if size else np.empty(0, np.uint8)


def upload(to, address, size, memories):
    """Copy host memory into `to` (bytes on the device). While a stream captures, it must be pinned.

    From pageable memory the driver may wait for the device first (CUDA Runtime API, "API synchronization behavior").
    Pinned memory is read when the copy is done: who gives it back before, loses what was in it.
    """
    pinned = _pinned_at(address, size) is not None
    if not pinned:
        if capturing():
            raise CUDARuntimeError(900, "a copy from host memory that is not pinned")
        synchronise("a copy from pageable memory")
    host = _host_bytes(address, size)
    host = host if pinned else host.copy()
    perform(lambda: np.copyto(to, host), memories, own=pinned)


def download(address, what, memories):
    """Copy bytes of the device into host memory; see `upload`."""
    pinned = _pinned_at(address, what.size) is not None
    if capturing() and not pinned:
        raise CUDARuntimeError(900, "a copy to host memory that is not pinned")
    perform(lambda: np.copyto(_host_bytes(address, what.size), what), memories)
    if not pinned:
        synchronise("a copy to pageable memory")


default_pool = MemoryPool()
_allocator = default_pool.malloc


def alloc(size):
    """cupy.cuda.alloc."""
    return get_allocator()(size)


def get_allocator():
    return _here.allocators[-1] if _here.allocators else _allocator


def set_allocator(allocator=None):
    """cupy.cuda.set_allocator: None (or the runtime's malloc) stands for memory without a pool."""
    global _allocator
    _allocator = allocator or MemoryPool().malloc


@contextlib.contextmanager
def using_allocator(allocator=None):
    """cupy.cuda.using_allocator: for this thread."""
    before = _here.allocators
    _here.allocators = (*before, allocator or MemoryPool().malloc)
    try:
        yield
    finally:
        _here.allocators = before


# ------------------------------------------------------------------------------------------------ streams and graphs

STREAM_CAPTURE_GLOBAL, STREAM_CAPTURE_THREAD_LOCAL, STREAM_CAPTURE_RELAXED = range(3)


chance: random.Random | None = None  # decides when streams go on, and which of them; see `order`
_DEPTH = 1024  # so many pieces of work queue on a stream; then the host waits, as a driver makes it wait
_device = threading.RLock()  # held while work is done: one device


@contextlib.contextmanager
def order(seed):
    """Within the block, streams go on at random moments, in a random order of those that they allow."""
    global chance
    before, chance = chance, random.Random(seed)
    try:
        yield
    finally:
        chance = before


def reach(stream, number):
    """Do work until `stream` has done `number` pieces of its own, and what these wait for."""
    with _device:
        while stream._done < number:
            if chance is not None and chance.random() < 0.5:
                _wander()
            elif (awaited := stream._awaits()) is not None:
                reach(*awaited)
            elif stream._done < number:
                stream._next()


def _wander():
    """Do a few pieces of work, if any are ready."""
    assert chance is not None
    with _device:
        for _ in range(chance.choice((1, 2, 5, 30))):
            ready = [stream for stream in _all_streams() if stream._queue and stream._awaits() is None]
            if not ready:
                return
            chance.choice(ready)._next()


def forget():
    """Leave undone what is queued: it may be what a planted fault has left behind."""
    for stream in _all_streams():
        stream._queue.clear()
        stream._done = stream._given


def busy():
    """True if any stream has work left."""
    return any(stream._queue for stream in _all_streams())


def arrive():
    """Do all work of all streams."""
    for stream in _all_streams():
        reach(stream, stream._given)


def _all_streams():
    return sorted([Stream.null, *_streams.values()], key=lambda stream: stream._number)


class Stream:
    """cupy.cuda.Stream: a queue of work, which is written down instead while the stream captures."""

    null: Stream
    _made = 0

    def __init__(self, null=False, non_blocking=False):
        self.is_non_blocking, self.ptr = non_blocking, 0 if null else id(self)
        self._number = Stream._made = Stream._made + 1
        self._queue = deque()  # (work, the streams that it waits for and how many pieces these must have done)
        self._given = self._done = 0  # pieces of work
        self._work = None  # a list while it captures
        self._names = []  # of the kernels in it, and None for all else that was given
        self._mode = None
        self._broken = False  # whether something that is not permitted ended the capture
        self._touched = {}  # a reference to an allocation -> (its block, a reference to the pool)
        self._free = []  # what was given back while it captures: (pool, block, start, size), multiples of 512 bytes
        self._joined = []  # streams that wait for an event of this capture
        if self.ptr == id(self):
            _streams[self.ptr] = self
        self._before = []

    def __del__(self):
        if not sys.is_finalizing():
            reach(self, self._given)  # as CUDA does before it destroys a stream

    def _give(self, work, waits=(), freed=False):
        """Queue a piece of work that waits for other streams' (stream, how many pieces).

        freed: whether it stands for memory that was given back, at any moment of the host.
        """
        with _device:
            waits = list(waits)
            if not self.is_non_blocking:  # the null stream and those that heed it wait for each other
                waits += [
                    (other, other._given)
                    for other in ([Stream.null] if self.ptr else _all_streams())
                    if other is not self and not other.is_non_blocking and other._queue
                ]
            self._queue.append((work, waits))
            self._given += 1
        if freed:
            return
        if "CUDA_LAUNCH_BLOCKING" in os.environ:
            reach(self, self._given)
        elif len(self._queue) > _DEPTH:
            reach(self, self._given - _DEPTH // 2)
        elif chance is not None and chance.random() < 0.3:
            _wander()

    def _awaits(self):
        """The event that the next piece of work waits for, as arguments of `reach`, or None."""
        waits = self._queue[0][1] if self._queue else ()
        return next(((other, number) for other, number in waits if other._done < number), None)

    def _next(self):
        work, _ = self._queue.popleft()
        self._done += 1
        work()

    def __enter__(self):
        self._before.append(_here.current)
        _here.current = self
        return self

    def __exit__(self, *_):
        _here.current = self._before.pop()

    @property
    def done(self):
        if self._work is not None:
            raise CUDARuntimeError(900, "Stream.done")
        return _is_done(self, self._given)

    def synchronize(self):
        if self._work is not None:
            self._broken = True
            raise CUDARuntimeError(900, "Stream.synchronize")
        synchronise("Stream.synchronize", self)

    def record(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event):
        """Later work waits for the event as it was recorded last.

        A stream that waits for a captured event joins that capture until it ends: its work is also recorded.
        """
        origin = event._capturing
        if origin is not None and origin._work is not None and self._work in (None, origin._work):
            if self._work is None:
                self._work, self._names, self._touched = origin._work, origin._names, origin._touched
                self._mode, self._broken, self._free = origin._mode, False, []
                origin._joined.append(self)
            return
        if self._work is not None:
            self._broken = True
            raise CUDARuntimeError(905)
        event._refuse_if_captured()
        if event._at is not None:
            self._give(lambda: None, [event._at])

    def begin_capture(self, mode=None):
        """From here on, work on this stream is written down. Not for the null stream."""
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if self._work is not None:
            raise CUDARuntimeError(900, "begin_capture twice")
        self._mode = STREAM_CAPTURE_RELAXED if mode is None else mode
        self._work, self._names, self._touched, self._free, self._broken = [], [], {}, [], False

    def end_capture(self):
        """The graph of what was written down."""
        if self._work is None:
            raise CUDARuntimeError(1, "end_capture without begin_capture")
        graph = Graph(self._work, self._touched, self._names)
        joined, self._joined = self._joined, []
        broken = self._broken or any(stream._broken for stream in joined)
        for stream in (self, *joined):
            stream._work, stream._free = None, []
        if broken:
            raise CUDARuntimeError(901)
        return graph

    def is_capturing(self):
        return self._work is not None

    def _touch(self, memory):
        """Keep memory that the graph works on, and see at its replays that nobody else got it."""
        if memory.size:
            self._touched[weakref.ref(memory)] = memory.block, memory.pool

    def _keep(self, pool, block, start, size):
        """Memory that was given back in this capture, joined to what is free on either side of it."""
        for free in self._free[:]:
            if free[:2] == (pool, block) and (free[2] + free[3] == start or start + size == free[2]):
                self._free.remove(free)
                start, size = min(start, free[2]), size + free[3]
        self._free.append((pool, block, start, size))

    def _again(self, pool, size):
        """The block and offset of memory that was given back in this capture; None where there is none.

        As in CuPy's arena of a stream: the smallest that is large enough, the last one of these; the rest stays free.
        """
        large = [(free[3], -i) for i, free in enumerate(self._free) if free[0] is pool and 0 < size <= free[3]]
        if not large:
            return None
        _, block, start, room = self._free.pop(-min(large)[1])
        if room > size:
            self._free.append((pool, block, start + size, room - size))
        return block, start


_streams: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
Stream.null = Stream(null=True)


class _OfThread(threading.local):
    current = Stream.null
    allocators: tuple = ()


_here = _OfThread()


def get_current_stream(device_id=None):
    return _here.current


def stream_at(ptr):
    """The stream with this handle. CUDARuntimeError if there is none."""
    found = Stream.null if ptr == 0 else _streams.get(ptr)
    if found is None:
        raise CUDARuntimeError(400, f"stream {ptr}")
    return found


def capturing():
    """True if work given now is recorded."""
    return _here.current._work is not None


def _capturing_streams():
    return [stream for stream in list(_streams.values()) if stream._work is not None]


foreign: list[str] = []  # what else than tinymp's kernels and cuBLAS was given to the device: "add in sum_to", in order


def _who():
    """The running operation of CuPy and its caller: "astype in tinymp/backend/gpu.py:202 cast"."""
    frame, asked = sys._getframe(2), None  # from who called `perform`
    while frame is not None and frame.f_code.co_filename in _OWN:
        asked, frame = frame, frame.f_back
    if frame is None or asked is None:
        return "?"
    operands = asked.f_locals
    what = getattr(operands.get("self", operands.get("f")), "__name__", operands.get("name", asked.f_code.co_name))
    path = "/".join(pathlib.Path(frame.f_code.co_filename).parts[-3:])
    return f"{what} in {path}:{frame.f_lineno} {frame.f_code.co_name}"


launched: list[str] = []  # kernels, in the order of their launches; a graph's launch counts them again


def perform(work, memories=(), stream=None, own=False, name=None):
    """Queue `work` (a function without arguments that changes memory), or write it down while the stream captures.

    memories: the allocations that it reads or writes. own: whether it is a kernel of tinymp's (of this name), a product
    of cuBLAS's, a copy that tinymp asks for or a graph's launch; all else is noted in `foreign`.
    """
    if not own:
        foreign.append(_who())
    stream = _here.current if stream is None else stream
    if stream._work is None:
        if name is not None:
            launched.append(name)
        stream._give(work)
        return
    if stream._broken:
        raise CUDARuntimeError(901)
    stream._work.append(work)
    stream._names.append(name)
    for memory in memories:
        stream._touch(memory)


class Graph:
    """cupy.cuda.Graph: work that was written down, for the same memory each time."""

    graph = graphExec = 1

    def __init__(self, work, touched, names):
        self._work, self._touched, self._names = work, [(memory, *kept) for memory, kept in touched.items()], names

    def upload(self, stream=None):
        pass

    def launch(self, stream=None):
        """Queue it. RuntimeError if some of the memory was given back to a pool that others use, or that is gone.

        What was allocated and freed while the graph was captured lies in a pool that must be the graph's alone:
        `with cupy.cuda.using_allocator(pool.malloc)`, and the pool must live as long as the graph.
        """
        for memory, _, pool in self._touched:
            if memory() is None and pool() in (None, default_pool):
                raise RuntimeError("Graph.launch: memory that the graph works on was given back; others may use it now")
        work, blocks = self._work, [block for _, block, _ in self._touched]  # they outlive the graph while it runs
        launched.extend(name for name in self._names if name is not None)
        perform(lambda _=blocks: [piece() for piece in work], (), stream, own=True)


class Event:
    """cupy.cuda.Event: a place in a stream's queue; times are those of the host."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self._timed, self._time = not disable_timing, None
        self._at = None  # the stream, and how many pieces of work were given to it before
        self._capturing = None  # the stream, if it captured when the event was recorded

    @property
    def done(self):
        """True if earlier work is done. Asking does not make the device do it."""
        self._refuse_if_captured()
        return self._at is None or _is_done(*self._at)

    def record(self, stream=None):
        stream = _here.current if stream is None else stream
        self._time, self._capturing = time.perf_counter(), stream if stream._work is not None else None
        self._at = None if self._capturing else (stream, stream._given)

    def synchronize(self):
        self._refuse_if_captured()
        synchronise("Event.synchronize", *(self._at or ()))

    def _refuse_if_captured(self):
        if self._capturing is not None:
            self._capturing._broken = True
            raise CUDARuntimeError(907)


def _is_done(stream, number):
    """True if a stream has done this much work. Asking may, by chance, let it get there first."""
    if stream._done < number and _device.acquire(blocking=False):  # else another thread is at work
        try:
            if chance is None:
                reach(stream, number)
            elif chance.random() < 0.5:
                _wander()
        finally:
            _device.release()
    return stream._done >= number


def get_elapsed_time(start, end):
    """Milliseconds between two events."""
    if start._time is None or end._time is None or not (start._timed and end._timed):
        raise CUDARuntimeError(400, "get_elapsed_time of an event that was not recorded, or does not time")
    return (end._time - start._time) * 1000


# ------------------------------------------------------------------------------------------------------------ device

TOTAL_MEMORY = 80 << 30
MAX_SHARED = 227 * 1024  # what a block of compute capability 9.0 may ask for
MULTIPROCESSORS = 132
# compute capability, multiprocessors, KiB of shared memory that a block may ask for
GPUS = {
    "V100": ("70", 80, 96),
    "T4": ("75", 40, 64),
    "A100": ("80", 108, 163),
    "RTX 3050": ("86", 20, 99),
    "H100": ("90", 132, 227),
    "none that exists": ("75", 20, 48),  # grants no more than a kernel has unasked
}


@contextlib.contextmanager
def playing(name):
    """Within the block, the stand-in is one of GPUS instead of an H100."""
    global MAX_SHARED, MULTIPROCESSORS
    before = Device.compute_capability, MULTIPROCESSORS, MAX_SHARED
    Device.compute_capability, MULTIPROCESSORS, shared = GPUS[name]
    MAX_SHARED = shared * 1024
    try:
        yield
    finally:
        Device.compute_capability, MULTIPROCESSORS, MAX_SHARED = before


class Device:
    """cupy.cuda.Device: one GPU, an H100 unless `playing` says otherwise."""

    compute_capability = "90"

    def __init__(self, device=None):
        self.id = 0 if device is None else int(device)
        if self.id != 0:
            raise CUDARuntimeError(101)

    def use(self):
        return self

    def synchronize(self):
        for stream in _capturing_streams():
            stream._broken = True
            raise CUDARuntimeError(900, "Device.synchronize")
        synchronise("Device.synchronize")
        arrive()
