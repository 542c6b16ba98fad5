"""The GPU: CuPy's arrays, with which the definitions run as they do on NumPy's, and products by cuBLAS.

CuPy is imported when the first array goes to the GPU. Kernels of tinymp's own are found as fast paths (fast_path.py).

**Products.** cuBLAS computes C' = op(A') op(B') on column-major matrices; CuPy's are row-major. Memory that holds a
row-major X is, read by columns, X^T. Since C = A B means C^T = B^T A^T, cuBLAS is asked for C' = C^T with A' = B^T and
B' = A^T, which is just how C, B and A lie in memory: the operands trade places, m and n trade places, nothing is moved.
An operand that lies transposed reads as X, and op = T makes it X^T again.

**Precision** (MPT section 3.3, NVG section 2.2). FP16 operands go to the Tensor Cores as they are stored, with FP32
accumulators. Where cuBLAS splits k over several blocks it must add their sums in FP32, not in the FP16 of the result:
DISALLOW_REDUCED_PRECISION_REDUCTION, which CuPy's own matmul never sets. FP32 operands are multiplied in FP32 whatever
NVIDIA_TF32_OVERRIDE says ("pedantic"); TF32 only where the policy asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import fast_path
from .devices import Array, Device, part, replaceable
from .extras import held

_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
TYPES = {_F16: 2, _F32: 0, _F64: 1}  # cudaDataType_t: CUDA_R_16F, CUDA_R_32F, CUDA_R_64F
# cublasComputeType_t by the dtype of the operands: COMPUTE_32F, 32F_PEDANTIC, 64F
COMPUTE, TF32 = {_F16: 68, _F32: 69, _F64: 70}, 77
_scalars = [np.array([0, 1], dtype) for dtype in (_F32, _F64)]  # rounds: never, 0 and 1
ZERO_ONE = [scalars.ctypes.data for scalars in _scalars]  # cuBLAS reads alpha and beta there: 0, then 1
MATH_MODE = 16  # cublasMath_t: DEFAULT_MATH | DISALLOW_REDUCED_PRECISION_REDUCTION
DEFAULT_ALGORITHM = -1
MOST = 2**31 - 1  # cuBLAS's sizes are C ints
LONG = 4096  # CuPy sums along an axis with at least 16 threads: each adds at most 256 of so many terms


def _look() -> str | None:
    try:
        import cupy

        return None if cupy.cuda.runtime.getDeviceCount() else "no NVIDIA GPU was found"
    except Exception as error:  # CuPy is not installed, or has no driver
        return str(error)


class Gpu(Device):
    """CuPy's arrays, once a GPU is in use."""

    keeps_order = False  # it would cost a copy, and a GPU's bits are not promised

    def __init__(self) -> None:
        super().__init__("gpu")
        self._problem: tuple[str | None] | None = None  # the result of `problem`

    def problem(self) -> str | None:
        """The reason why no GPU can be used here, with a remedy; None if one works. Looked up once."""
        if self._problem is None:
            self._problem = (held("backend.gpu.look", _look)(),)
        return self._problem[0]

    def first_use(self) -> None:
        """Begin to use the GPU. RuntimeError, with the reason and a remedy, if none works."""
        if self.array_type is None:
            if (why := self.problem()) is not None:
                raise RuntimeError(f"device 'gpu' does not work here: {why}")
            import cupy

            cupy._core.set_reduction_accelerators([])  # CUB's templates: 2 s of NVRTC each, CuPy's own 0.1
            self.xp, self.array_type = cupy, cupy.ndarray

    def compute_capability(self) -> int:
        """The GPU's generation as a number: 75 Turing, 80 Ampere, 90 Hopper, 100 Blackwell."""
        return int(self.xp.cuda.Device().compute_capability)

    def info(self) -> dict[str, str]:
        """The lines about it in `mp.info()`."""
        return held("backend.gpu.about", lambda: {"GPU": self.problem() or "there"})()

    def asarray(self, x: Any) -> Array:
        """x, from a CPU or GPU, as a device array."""
        if self.array_type is not None and isinstance(x, self.array_type):
            return x
        self.first_use()
        if getattr(x, "dtype", np.dtype(bool)).kind == "V":
            raise TypeError("BF16 lies on the CPU alone: use .half() or .float(), or cast the model to mp.MIXED")
        return self.xp.asarray(x)

    # ---- for the precision primitives

    def cast(self, x: Array, dtype: np.dtype) -> Array:
        """As `Device.cast`."""
        x, back = arranged(x)
        # rounds: `store`: to nearest, ties to even
        return back(self.map(lambda x: x.astype(dtype), x))

    def gemm(self, a: Array, b: Array, bias: Any = None, tf32: bool = False, rounded: bool = False) -> Array:
        """By cuBLAS. A bias is added to the FP32 sums, and both are rounded once, in one kernel."""
        wide = _F32 if a.dtype == _F16 else a.dtype
        final, lead = a.dtype if rounded else wide, np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        c = self.xp.empty((*lead, a.shape[-2], b.shape[-1]), final if bias is None else wide)
        multiply(self.xp, a, b, c, TF32 if tf32 else COMPUTE[a.dtype])  # rounds: `gemm`: cuBLAS
        if bias is None:
            return c
        # rounds: `gemm`: FP32 sums with their bias
        return self.map(lambda c, bias: (c + bias.astype(c.dtype)).astype(final), c, bias)

    @replaceable
    def reduce(self, x: Array, axis: Any, how: str) -> Array:
        """As `Device.reduce`. CuPy's sums widen each FP16 number as they read it, and are trees over many threads; an
        axis that is longer than LONG is cut into parts of that length.
        """
        if not x.ndim:  # CuPy knows no axis of a number
            return self._widened(x)
        if how not in ("sum", "mean") or x.dtype.kind != "f":
            return super().reduce(x, axis, how)  # rounds: `reduce`: the definition
        axes = tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))
        wide = _F64 if x.dtype == _F64 else _F32
        count = self.count(x, axes)
        while self.count(x, axes) > LONG:
            x = self._sums_of_parts(x, max(axes, key=x.shape.__getitem__), wide)
        total = self.xp.sum(x, axis=axes, dtype=wide, keepdims=True)  # rounds: `reduce`: FP32 sums by CuPy
        return total if how == "sum" else total / count

    def _sums_of_parts(self, x: Array, axis: int, wide: np.dtype) -> Array:
        n, (before, after) = x.shape[axis], (x.shape[:axis], x.shape[axis + 1 :])
        whole = n - n % min(n, LONG)
        parts = part(x, axis, slice(whole)).reshape(*before, -1, min(n, LONG), *after)
        sums = self.xp.sum(parts, axis=axis + 1, dtype=wide)  # rounds: `reduce`: FP32 sums by CuPy
        if whole == n:
            return sums
        tail = self._sums_of_parts(part(x, axis, slice(whole, None)), axis, wide)
        return self.xp.concatenate([sums, tail], axis=axis)

    @replaceable
    def to_numpy(self, x: Array) -> np.ndarray:
        """A copy of x on the host. It waits for the device."""
        return self.xp.asnumpy(x)

    @replaceable
    def synchronize(self) -> None:
        """Wait for the device."""
        self.xp.cuda.get_current_stream().synchronize()


def arranged(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """x with its axes from the slowest to the fastest in memory, and a function that restores their order in a result.

    CuPy's elementwise kernels walk along axes in their order, whatever the memory's: on the C, H, W, N of a convolution
    neighbouring threads would read far apart, which took an H200 ten times as long, and write N, C, H, W.
    """
    if x.ndim < 2 or x.flags.c_contiguous:
        return x, lambda y: y
    order = sorted(range(x.ndim), key=lambda a: -x.strides[a])
    back = sorted(range(x.ndim), key=order.__getitem__)
    return x.transpose(order), lambda y: y.transpose(back)


# ----------------------------------------------------------------------------------------------------------- products


def multiply(xp: Any, a: Array, b: Array, out: Array, compute: int) -> None:
    """out = a @ b, written in place; rounded once, to the dtype of out. See the head of this file.

    a: (..., m, k), b: (..., k, n), out: (..., m, n), C-contiguous; leading axes broadcast to those of out. Operands
    that lie transposed, have gaps between rows (slices), or are shared by a batch are not copied. ValueError for a
    size that cuBLAS does not take.
    """
    require_one_gpu(xp)
    lead, (m, k), n = out.shape[:-2], a.shape[-2:], b.shape[-1]
    if out.size == 0 or k == 0:
        out.fill(0)
        return
    batch = out.size // (m * n)
    if b.size == k * n and a.flags.c_contiguous and a.size == batch * m * k and batch * m <= MOST:
        m, batch = m * batch, 1  # a batch that shares b is one tall matrix
    first, second = layout_of(batched(xp, a, lead, batch, m, k)), layout_of(batched(xp, b, lead, batch, k, n))
    if max(m, k, n, batch) > MOST:
        raise ValueError(f"gemm: cuBLAS takes sizes up to 2^31 - 1; a is {a.shape}, b is {b.shape}")
    zero = ZERO_ONE[out.dtype == _F64]
    one = zero + (8 if out.dtype == _F64 else 4)
    (x, x_turned, x_distance, x_step), (y, y_turned, y_distance, y_step) = second, first
    call_cublas(
        *(x_turned, y_turned, n, m, k, one, x.data.ptr, TYPES[x.dtype], x_distance, x_step),
        *(y.data.ptr, TYPES[y.dtype], y_distance, y_step, zero),
        *(out.data.ptr, TYPES[out.dtype], n, m * n, batch, compute, DEFAULT_ALGORITHM),
    )


@fast_path.replaceable(lambda *_: "gpu")
def call_cublas(turned: int, *arguments: int) -> None:
    """cublasGemmStridedBatchedEx with all its arguments but the handle, which is CuPy's, in our math mode."""
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    handle = device.get_cublas_handle()
    cublas.setMathMode(handle, MATH_MODE)  # each time: CuPy's own products also set it
    cublas.gemmStridedBatchedEx(handle, turned, *arguments)  # rounds: `gemm` by cuBLAS: FP32 sums, and out


def layout_of(x: Array) -> tuple[Array, int, int, int]:
    """x (rows, columns), or a batch of such, and its layout: 1 if it is transposed, the distance of two rows (of two
    columns, if transposed) in elements, and that of two matrices. A copy of x if neither rows nor columns are
    contiguous.
    """
    size, (*steps, down, right) = x.itemsize, x.strides
    rows, columns = x.shape[-2:]
    step, down, right = steps[0] // size if steps else 0, down // size, right // size
    for turned, length, count, near, distance in ((0, columns, rows, right, down), (1, rows, columns, down, right)):
        if count == 1:
            distance = length
        if (near == 1 or length == 1) and length <= distance <= MOST and step >= 0:
            return x, turned, distance, step
    return x.copy(), 0, columns, rows * columns


def batched(xp: Any, x: Array, lead: tuple[int, ...], batch: int, rows: int, columns: int) -> Array:
    """x with at most one leading axis. It is copied if its leading axes do not have one common stride."""
    if x.ndim == 2 and batch == 1:
        return x
    if x.size == batch * rows * columns or batch == 1:
        return x.reshape(batch, rows, columns)
    if x.size == rows * columns:
        return xp.broadcast_to(x.reshape(1, rows, columns), (batch, rows, columns))
    return xp.broadcast_to(x, (*lead, rows, columns)).reshape(batch, rows, columns)


# ------------------------------------------------------------------------------------------------------------ one GPU

_gpu: int | None = None  # the number of the first GPU that was worked on


def require_one_gpu(cupy: Any) -> int:
    """The number of the current GPU. RuntimeError if it has changed.

    CUDA has a current device per thread, and a new thread begins with device 0. Compiled kernels, the generator of
    random numbers, flags and tables lie on one device.
    """
    global _gpu
    now = cupy.cuda.runtime.getDevice()
    if _gpu is None:
        _gpu = now
    if now != _gpu:
        raise RuntimeError(
            f"tinymp uses one GPU per process, and began with device {_gpu}, but device {now} is current in this "
            f"thread: call cupy.cuda.Device({_gpu}).use() in it, or choose the GPU with CUDA_VISIBLE_DEVICES"
        )
    return now
