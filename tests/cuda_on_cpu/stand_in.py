"""The module object that takes CuPy's place in the tests.

`array.py` computes, `device.py` keeps memory and streams, and `compile.py` runs the CUDA kernels.

For tests: `launched` (the names of the kernels that were launched), `foreign` (what CuPy's own kernels and copies
did, and for whom), `synchronisations` (what waited for the device) and `no_synchronisation()`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import threading
import types

import numpy as np

from . import array, cublas, device
from .compile import Program, addresses
from .device import foreign, launched, no_synchronisation, synchronisations

__all__ = ["foreign", "install_modules", "launched", "no_synchronisation", "synchronisations"]


# ----------------------------------------------------------------------------------------------------------- kernels


@functools.cache
def _program(code, options):
    defines = [re.fullmatch(r"-D(\w+)(?:=(.*))?", option) for option in options]
    return Program(code, {d[1]: d[2] or "1" for d in defines if d})


class RawModule:
    """cupy.RawModule; compiled at the first use."""

    def __init__(self, *, code, options=()):
        if not isinstance(options, tuple):
            raise TypeError("options: expected a tuple")
        self.code, self.options = code, options

    def compile(self, log_stream=None):
        return _program(self.code, self.options)

    def get_function(self, name):
        if name not in self.compile().arguments:
            raise device.CUDADriverError(f"CUDA_ERROR_NOT_FOUND: named symbol not found ({name})")
        return Function(self, name)


class Function:
    """cupy.cuda.Function: a kernel, called as kernel(grid, block, arguments, shared_mem=bytes)."""

    shared_size_bytes = 0  # what it declares by itself: not counted here; a test may

    def __init__(self, module, name):
        self.name, self._module, self._shared = name, module, None

    @property
    def max_dynamic_shared_size_bytes(self):
        return 48 * 1024 - self.shared_size_bytes if self._shared is None else self._shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        if size > device.MAX_SHARED:
            raise device.CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: invalid argument ({size} bytes of shared memory)")
        self._shared = size

    def __call__(self, grid, block, args, shared_mem=0, stream=None):
        if not all(isinstance(x, tuple) for x in (grid, block, args)):
            raise TypeError(f"{self.name}: grid, block and arguments are tuples")
        grid, block = (tuple(map(int, x)) + (1,) * (3 - len(x)) for x in (grid, block))
        limits = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
        for size, limit in ((grid, limits[0]), (block, limits[1])):
            if any(not 1 <= n <= most for n, most in zip(size, limit, strict=True)):
                raise device.CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: {self.name} with {grid} blocks of {block}")
        if math.prod(block) > 1024 or shared_mem > self.max_dynamic_shared_size_bytes:
            raise device.CUDADriverError(
                f"CUDA_ERROR_INVALID_VALUE: {self.name} with {block} threads, {shared_mem} bytes"
            )
        tables = [x for x in args if isinstance(x, np.ndarray) and x.size == 1 and x.dtype.names]
        for x in args:
            if not isinstance(x, (array.ndarray, np.generic)) and not any(x is table for table in tables):
                raise TypeError(f"{self.name}: takes arrays of the device and NumPy scalars, got {type(x)}")
        memories = [x.data.mem for x in args if isinstance(x, array.ndarray)]
        memories += [mem for x in tables for at in addresses(x).ravel().tolist() for mem in device.memory_at(at)]
        values = [x._a if isinstance(x, array.ndarray) else x.copy() if isinstance(x, np.ndarray) else x for x in args]
        program, name = self._module.compile(), self.name
        device.perform(
            lambda: program.launch(name, grid, block, values, shared_mem, _resolve), memories, stream, True, name
        )


def _resolve(address):
    block = device.block_at(address)
    return None if block is None else block.bytes


# ----------------------------------------------------------------------------------------------------------- runtime


class Runtime(types.ModuleType):
    """cupy.cuda.runtime, as far as tinymp may use it."""

    CUDARuntimeError = device.CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost = 1, 2
    streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = range(3)
    cudaDevAttrMultiProcessorCount = 16

    def getDevice(self):
        return 0

    def getDeviceCount(self):
        return 1

    def getDeviceProperties(self, number):
        device.Device(number)
        major, minor = map(int, device.Device.compute_capability)
        found = {
            "name": b"a CPU in place of a GPU",
            "totalGlobalMem": device.TOTAL_MEMORY,
            "major": major,
            "minor": minor,
        }
        return found | {"multiProcessorCount": device.MULTIPROCESSORS, "l2CacheSize": 50 << 20}

    def deviceGetAttribute(self, attribute, number):
        return {16: device.MULTIPROCESSORS}[attribute]

    def runtimeGetVersion(self):
        return 13000

    driverGetVersion = runtimeGetVersion

    def memcpyAsync(self, to, source, size, kind, stream):
        with device.stream_at(stream):
            if kind == self.memcpyHostToDevice:
                device.upload(device.device_bytes(to, size), source, size, device.memory_at(to))
            else:
                device.download(to, device.device_bytes(source, size), device.memory_at(source))


# ----------------------------------------------------------------------------------------------------------- modules


class Module(types.ModuleType):
    """The module `cupy`: its own names, and those of NumPy that CuPy has as well."""

    def __getattr__(self, name):
        if name in array.ufuncs:
            found = array.ufuncs[name]
        elif name in array.API["functions"]:
            found = array.functions(name)
        else:
            raise AttributeError(f"the stand-in for CuPy has no attribute {name!r}")
        setattr(self, name, found)
        return found


class _Ogrid:
    """cupy.ogrid: arrays on the device."""

    def __getitem__(self, key):
        grids = np.ogrid[key]
        return tuple(map(array.asarray, grids)) if isinstance(grids, (tuple, list)) else array.asarray(grids)


@functools.cache
def _modules():
    """The module objects by name; the same at each installation, so that kernels stay compiled."""
    names = (
        *("cupy.cuda", "cupy.cuda.memory", "cupy.cuda.stream", "cupy.lib", "cupy.lib.stride_tricks"),
        *("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs"),
    )
    made = {"cupy": Module("cupy", __doc__), "cupy.cuda.runtime": Runtime("cupy.cuda.runtime")}
    made.update((name, types.ModuleType(name)) for name in names)
    for name, module in made.items():
        module.__path__ = []
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
    cupy, cuda = made["cupy"], made["cupy.cuda"]
    cupy.__version__ = array.API["version"]
    cupy.ndarray, cupy.ufunc, cupy.RawModule = array.ndarray, array.ufunc, RawModule
    cupy.launched, cupy.foreign = launched, foreign
    cupy.synchronisations, cupy.no_synchronisation = synchronisations, no_synchronisation
    cupy.newaxis, cupy.inf, cupy.nan, cupy.pi, cupy.e = None, np.inf, np.nan, math.pi, math.e
    cupy.ogrid = _Ogrid()
    for name in ("dtype", "generic", "number", "integer", "floating", "bool_", "iinfo", "finfo", "intp", "ndindex"):
        setattr(cupy, name, getattr(np, name))
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        setattr(cupy, kind, getattr(np, kind))
    for kind in ("float16", "float32", "float64", "complex64", "complex128"):
        setattr(cupy, kind, getattr(np, kind))
    for name in (
        "Device", "Event", "Graph", "Memory", "MemoryPointer", "MemoryPool", "Stream", "alloc", "alloc_pinned_memory",
        "get_allocator", "get_current_stream", "get_elapsed_time", "set_allocator", "using_allocator",
    ):  # fmt: skip
        setattr(cuda, name, getattr(device, name))
    cuda.Function, cuda.device = Function, types.SimpleNamespace(get_cublas_handle=threading.get_ident)
    cuda.is_available = lambda: True
    cupy._core = types.SimpleNamespace(set_reduction_accelerators=lambda accelerators: None)
    cuda.stream.Stream = device.Stream
    made["cupy.lib.stride_tricks"].as_strided = array.as_strided
    made["cupy_backends.cuda.libs"].cublas = cublas.Bindings()
    return made


@contextlib.contextmanager
def install_modules(modules):
    """Within the block, `import cupy` finds the stand-in. modules: sys.modules."""
    made = _modules()
    before = {
        name: module for name, module in modules.items() if name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")
    }
    for name in before:
        del modules[name]
    modules.update(made)
    launched.clear()
    foreign.clear()
    synchronisations.clear()
    try:
        yield made["cupy"]
    finally:
        for name in made:
            modules.pop(name, None)
        modules.update(before)
