"""The GPU backend: CuPy arrays, cuBLAS on Tensor Cores (`cublas.py`), and CUDA kernels (`kernels.py`).

These functions carry out what the gates in `precision.py` decide, like those of `cpu.py`; they decide nothing. CuPy is
imported when the first array goes to the GPU. No function that a training step calls reads the device from the host, so
that a whole step can be captured in a CUDA graph (fast/cuda/capture.py). Checks of values, such as the range of labels,
are noted on the device by `check`; a failed one raises at the next moment that waits for the device anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import cublas, philox, reductions, scatter, tables, threads
from .extras import hint
from .recording import Mailbox, after_capture, capturing

Array = Any
name = "gpu"
xp: Any = None  # CuPy, once a GPU is in use
array_type: Any = None  # the class of its arrays

_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)


# ------------------------------------------------------------------------------------------------------- is there one?

_problem: tuple[str | None] | None = None  # what `problem` found


def problem() -> str | None:
    """Why no GPU can be used here, and what to do about it; None where one works. Looked up once."""
    global _problem
    if _problem is None:
        _problem = (_look(),)
    return _problem[0]


def _look() -> str | None:
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            return f"CuPy cannot be imported ({error}): reinstall it with {hint('cuda13')}"
        return f"CuPy is not installed: {hint('cuda13')} (or cuda12, which still has Volta)"
    except ImportError as error:
        return f"CuPy finds a library missing ({error}): {hint('cuda13')} brings CUDA's libraries"
    if not hasattr(cupy, "cuda"):  # a folder of that name on Python's path
        return f"CuPy is hidden by {next(iter(cupy.__path__))}, a folder that Python finds first: rename it"
    runtime = cupy.cuda.runtime
    try:
        if not runtime.getDeviceCount():
            return "no NVIDIA GPU was found: `nvidia-smi` should list one"
    except runtime.CUDARuntimeError as error:
        if "InsufficientDriver" in str(error):
            return (
                f"the NVIDIA driver is missing or too old for CUDA {_version(runtime.runtimeGetVersion())} ({error}): "
                f"install a newer driver (`nvidia-smi` shows it), or {hint('cuda12')} for an older one"
            )
        return f"no NVIDIA GPU can be used ({error}): `nvidia-smi` should list one; is CUDA_VISIBLE_DEVICES set?"
    try:
        cublas.version()
        cupy.arange(2) + 1  # compiles a kernel: NVRTC is there
    except runtime.CUDARuntimeError as error:
        if "MemoryAllocation" in str(error):
            return f"the GPU's memory is full before anything started ({error}): `nvidia-smi` shows who holds it"
        return f"the GPU does not answer ({error}): try `nvidia-smi`"
    except (OSError, ImportError, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            return f"the GPU's memory is full before anything started ({error}): `nvidia-smi` shows who holds it"
        return f"a CUDA library was not found ({error}): {hint('cuda13')} brings cuBLAS and NVRTC"
    return None


def require() -> None:
    """Take the GPU into use. RuntimeError that says why there is none, and what to do."""
    global xp, array_type
    if array_type is None:
        why = problem()
        if why is not None:
            raise RuntimeError(f"device 'gpu' does not work here: {why}")
        import cupy

        xp, array_type = cupy, cupy.ndarray


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of CuPy says that the device's memory is full."""
    return type(error).__name__ == "OutOfMemoryError" or "cudaErrorMemoryAllocation" in str(error)


def free_memory() -> int:
    """The bytes that the device has left, with those that CuPy keeps for reuse."""
    return int(xp.cuda.runtime.memGetInfo()[0]) + int(xp.get_default_memory_pool().free_bytes())


def compute_capability() -> int:
    """The GPU's generation as a number: 75 Turing, 80 Ampere, 90 Hopper, 100 Blackwell."""
    return int(xp.cuda.Device().compute_capability)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def info() -> dict[str, str]:
    """What this backend runs on, for `mp.info()`; without a GPU, why there is none."""
    why = problem()
    if why is not None:
        return {"GPU": f"none: {why}"}
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    model = properties["name"]
    return {
        "GPU": model.decode() if isinstance(model, bytes) else str(model),
        "GPU memory": f"{properties['totalGlobalMem'] / 2**30:.0f} GiB",
        "compute capability": f"{properties['major']}.{properties['minor']}",
        "CuPy": cupy.__version__,
        "CUDA": f"runtime {_version(runtime.runtimeGetVersion())}, driver {_version(runtime.driverGetVersion())}",
        "cuBLAS": cublas.version(),
        "math mode": "FP16 products on Tensor Cores, FP32 accumulators and reductions; FP32 is never TF32",
    }


# -------------------------------------------------------------------------------------------------- moving and waiting


def asarray(x: Any) -> Array:
    """x, from a CPU or GPU, as a device array."""
    if array_type is not None and isinstance(x, array_type):
        return x
    require()
    if getattr(x, "dtype", np.dtype(bool)).kind == "V":
        raise TypeError(
            "BF16 lies on the CPU alone: convert it with .half() or .float(), or cast the model to mp.MIXED"
        )
    return xp.asarray(x)


def to_numpy(x: Array) -> np.ndarray:
    """A copy of x on the host. It waits for the device, so what `check` noted is raised here."""
    host = xp.asnumpy(x)
    raise_noted()
    return host


def synchronize() -> None:
    """Wait for the device, and raise what `check` noted."""
    xp.cuda.get_current_stream().synchronize()
    raise_noted()


_MOST_CHECKS = 256
_notes: dict[Any, int] = {}  # what is checked -> its place in the flags
_errors: list[Exception] = []
_flags: Array = None  # int32, (_MOST_CHECKS,): at the place of each entry of _notes, whether it failed
_flags_box: Mailbox | None = None


def check(good: Array, key: Any, error: Exception) -> None:
    """Note on the device whether all of `good` holds; if not, `error` is raised later: see `flag`."""
    if (failed := flag(key, error)) is not None:
        failed |= (~good).any()


def flag(key: Any, error: Exception) -> Array | None:
    """An int32 array of one element, which a kernel sets to 1 if a check fails. `error` is then raised at the next read
    from the device, or by a check some steps later.

    key tells checks apart: the same check in every step takes one flag. Kernels must not trust values that are checked
    so: an index out of range is reported only later. Returns None where there are too many checks already and nothing
    can wait for them now: the check is then left out.
    """
    global _flags, _flags_box
    if _flags is None:
        made = _flags = xp.empty(_MOST_CHECKS, "int32")
        after_capture(lambda: made.fill(0))  # not in each replay, and also if the capture fails
        _flags_box = Mailbox(_flags, _raise_first)
    if key not in _notes:
        if len(_notes) == _MOST_CHECKS:
            if capturing():
                return None
            synchronize()
            _notes.clear()
            _errors.clear()
        _notes[key] = len(_errors)
        _errors.append(error)
    assert _flags_box is not None
    _flags_box.poll()
    i = _notes[key]
    return _flags[i : i + 1]


def check_range(index: Array, least: int, end: int, key: Any, error: Exception) -> None:
    """`check` that all of an integer array is in [least, end), in one launch."""
    scatter.check_range(index, least, end, flag(key, error))


def raise_noted() -> None:
    """Raise the error of the first check that failed; for callers that have waited for the device."""
    if not _notes or capturing():
        return
    _raise_first(xp.asnumpy(_flags))


def _raise_first(flags: np.ndarray) -> None:
    failed = np.flatnonzero(flags[: len(_errors)])
    if failed.size:
        _flags.fill(0)
        raise _errors[failed[0]]


# ----------------------------------------------------------------------------------------------------- for the gates


def cast(x: Array, dtype: np.dtype) -> Array:
    """x in another floating dtype, rounded to nearest, ties to even. The memory order of x is kept."""
    return x.astype(dtype)


def cast_stochastic(x: Array) -> Array:
    """x in FP16, rounded up or down at random; see `cpu.cast_stochastic`."""
    return philox.cast_stochastic(x)


gemm_rounds = True


def gemm(a: Array, b: Array, bias: Any, acc: Any, compute: str, chunk: int, storage: np.dtype, rounded: bool) -> Array:
    """a @ b (+ bias) (+ acc) on operands of dtype `storage`: FP16 goes to the Tensor Cores.

    compute: the accumulator, "float32", "float16" (whose chunks are then the hardware's), "tf32" or "float64".
    rounded: whether cuBLAS rounds to the storage dtype, else FP32 accumulators come back. A bias is put in place
    first and the product added to it (beta = 1), so that it takes part in the one rounding: one more write and read of
    the result. (cublasLt adds one for free, but only a bias per column, by plans that are to be searched and kept per
    shape. A 1 x 1 convolution, which has one per row, has a kernel of ours instead.) An `acc` of FP32 becomes the
    result where that is wide; if not, the sum is rounded once it is complete.
    """
    a, b = (x if x.dtype == storage else x.astype(storage) for x in (a, b))  # undoes `widen`: exact
    wide = _F32 if storage == _F16 else storage
    result = storage if rounded else wide
    dtype = storage if compute == "float16" else result if acc is None else wide
    start = bias if acc is None else acc if bias is None else acc + bias
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if acc is not None and start.dtype == dtype:
        c = start
    else:
        c = xp.empty(shape, dtype)
        if start is not None:
            c[...] = start
    cublas.gemm(a, b, c, accumulate=compute, beta=0 if start is None else 1)
    return c if c.dtype == result else c.astype(result)


def gemm_aligned(a: Array, b: Array, bias: Any, acc: Any, bits: int, chunk: int, promote: int) -> Array:
    """ValueError: a GPU sums as it does; what it was found to do is studied on the CPU (`cpu.gemm_aligned`)."""
    raise ValueError(
        f"gemm: expected a policy without `aligned` on a GPU, got {bits} aligned bits: run the study on the CPU"
    )


def reduce(x: Array, axis: Any, how: str) -> Array:
    """sum, mean, max, min or cumsum of x in FP32 (FP64 for FP64, int64 for integers); reduced axes keep length 1."""
    if x.dtype in (_F16, _F32) and how != "cumsum":
        return reductions.reduce(x, axis, how)
    if x.dtype == _F16:
        x = x.astype(_F32)
    if x.dtype.kind == "u" and how in ("sum", "cumsum"):
        x = x.astype(np.int64)
    if how == "cumsum":
        return xp.cumsum(x, axis=axis)
    if how == "mean":
        return xp.sum(x, axis=axis, keepdims=True) / count(x, axis)
    return getattr(xp, how)(x, axis=axis, keepdims=True)


def reduce_fp16(x: Array, axis: Any, how: str) -> Array:
    """sum, mean or cumsum with one FP16 accumulator that runs along the axes; see `cpu.reduce_fp16`."""
    return reductions.reduce_fp16(x, axis, how)


def add_fp16(total: Array, part: Array) -> None:
    """total += part in place, with an FP16 accumulator: each sum is rounded to FP16, but kept in an FP32 array."""
    total += part
    total[...] = total.astype(_F16)


def count(x: Array, axis: Any) -> int:
    """How many elements of x are reduced to one over axis."""
    return math.prod(x.shape[a] for a in ((axis,) if isinstance(axis, int) else axis))


def isfinite(x: Array) -> bool:
    """Whether x holds neither an infinity nor a NaN. It waits for the device: not for use in a step."""
    return bool(to_numpy(xp.isfinite(x).all()))


# ------------------------------------------------------------------------------------------------------- for the ops


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """The arrays one after another along axis, in the memory order of the first.

    Slice by slice: of more than 8 arrays CuPy's concatenate uploads a table of addresses, which capturing refuses, and
    its result is C-contiguous.
    """
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    y, end = xp.empty_like(arrays[0], np.result_type(*[x.dtype for x in arrays]), shape=tuple(shape)), 0
    for x in arrays:
        y[(slice(None),) * axis + (slice(end, end := end + x.shape[axis]),)] = x
    return y


def slices(n: int, size: int, most: int) -> list[slice]:
    """range(n), to which `size` elements belong, in slices of at most `most` elements."""
    return threads.slices(n, size, most, 1)


def share(f: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """[f(item) for item in items]: only a CPU's threads share work."""
    return [f(item) for item in items]


def blockwise(f: Callable[..., Array], *arrays: Array) -> Array:
    """f(*arrays), of views whose axes lie as the first one's do in memory: what CuPy computes is C-contiguous, and
    images that a convolution wrote stay as they are.
    """
    order = sorted(range(arrays[0].ndim), key=lambda a: -arrays[0].strides[a])
    y = f(*[x.transpose(order) for x in arrays])
    return y.transpose([order.index(a) for a in range(y.ndim)])


def along(axis: int, f: Callable[..., tuple], *arrays: Array | None, size: int | None = None) -> tuple:
    """f(*arrays), see `blockwise`."""
    return f(*arrays)


def select(mask: Array, x: Array) -> Array:
    """x where mask holds, else +0, exactly."""
    return xp.where(mask, x, xp.zeros((), x.dtype))


def where(mask: Array, x: Array, y: Array) -> Array:
    """x where mask holds, else y, broadcast; both of one dtype."""
    return xp.where(mask, x, y)


def bits(x: Array) -> Array:
    """The bit patterns of x as unsigned integers, in the same memory."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def erfc(x: Array) -> Array:
    """1 - erf(x), with a small relative error also where it is tiny."""
    from cupyx.scipy.special import erfc as device_erfc

    return device_erfc(x)


def uniform(shape: tuple[int, ...]) -> Array:
    """FP32 numbers in [0, 1)."""
    return philox.uniform(shape)


def scatter_add_rows(n_rows: int, index: Array, rows: Array) -> Array:
    """Zeros (n_rows, ...) with rows[i] added to row index[i], in FP32 and in order of i. Deterministic."""
    return scatter.scatter_add_rows(n_rows, index, rows)


def copy_all(sources: Sequence[Array], targets: Sequence[Array], wanted: Any = True) -> None:
    """target[...] = source for each pair, if `wanted`: a bool, or an array of one on the device."""
    tables.copy_all(sources, targets, wanted)


manual_seed, get_rng_state, set_rng_state = philox.manual_seed, philox.get_rng_state, philox.set_rng_state
