"""check_both_ways(): hold a fast path in CUDA to the definition of its op, on a GPU or on the stand-in for one.

The definition runs on the CPU, the fast path on the device, on the same inputs in FP16 and FP32. Both accumulate in
FP32, in different orders, and round once, so that their results may lie on two neighbouring FP16 numbers:

    |fast path - definition| <= roundings * u_s * |definition|  +  2 * length * u_w * m  +  s

with the symbols of oracle.py; roundings = 2 (times u_s: one ulp). What was saved must serve either backward, so the
definition's backward is also run behind the fast forward, and the fast one behind the definition's.

An observer changes no bit, and hears what a kernel rounds: the FP32 numbers behind its FP16 results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

import tinymp as mp
from cuda_on_cpu.compile import once
from oracle import assert_close, rng, tolerance
from tinymp import backend, fast_path


def launches() -> list[str] | None:
    """The names of the kernels launched so far; None on a real GPU, which keeps no list."""
    import cupy

    return getattr(cupy, "launched", None)


class Heard(mp.Observer):
    """Keeps what is rounded from FP32, and all sums: of what, along which axes, in which accumulator."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.events: list[tuple] = []

    def rounded(self, x: Any, y: Any) -> None:
        np.testing.assert_array_equal(backend.to_cpu(x).astype(y.dtype), backend.to_cpu(y))
        self.arrays.append(backend.to_cpu(y).ravel())
        self.events.append(("rounded", x.size, str(y.dtype)))

    def product(self, a: Any, b: Any, accumulate: str) -> None:
        self.events.append(("product", a.shape[-2:], b.shape[-2:], accumulate))

    def reduced(self, x: Any, axis: Any, how: str, accumulate: str) -> None:
        axes = sorted(a % max(x.ndim, 1) for a in ((axis,) if isinstance(axis, int) else axis))
        self.events.append(("reduced", x.shape, tuple(axes), how, accumulate))

    def added(self, part: Any, times: Any, accumulate: str) -> None:
        self.events.append(("added", part.shape, accumulate))


@contextmanager
def fast_only(forward: bool, backward: bool):
    """Within the block, ops take their fast paths only in the named phases."""
    off = {phase for phase, allowed in (("forward", forward), ("backward", backward)) if not allowed}
    before = set(fast_path.off)
    fast_path.off |= off
    try:
        yield
    finally:
        fast_path.off.clear()
        fast_path.off |= before


def channels_last(x: np.ndarray) -> np.ndarray:
    """x (N, C, H, W) with its memory in the order C, H, W, N, as convolutions write it."""
    return np.ascontiguousarray(x.transpose(1, 2, 3, 0)).transpose(3, 0, 1, 2)


def on_device(x: np.ndarray) -> Any:
    """x on the device in the memory order that it has on the host."""
    import cupy

    order = sorted(range(x.ndim), key=lambda a: -x.strides[a])
    return cupy.asarray(np.array(x.transpose(order), order="C")).transpose(np.argsort(order).tolist())


def check_both_ways(
    op: Callable,
    *inputs: Any,
    kernels: Iterable[str] = (),
    length: float = 1,
    roundings: float = 2,
    magnitude: float | None = None,
    grad_length: float | None = None,
    grad_roundings: float = 2,
    inherited: float = 0,
    grad_magnitude: float | None = None,
    dtypes: tuple[str, ...] = ("float16", "float32"),
    gradient: bool = True,
    chwn: bool = False,
    mixed: bool = True,
    seed: int = 1,
) -> None:
    """Hold op (Tensors -> a Tensor or a tuple of them) on the device against op on the CPU, forward and gradient.

    inputs: float64 arrays become Tensors of each dtype that require a gradient; other arrays plain Tensors. float32
    arrays stay FP32 beside FP16 (batch norm's weights). chwn: 4-d inputs lie in memory as C, H, W, N. kernels: names
    that must have been launched; then nothing may wait for the device. inherited: further storage roundings that the
    gradients saw (a saved FP16 y), relative to max |g|. mixed: in the first dtype, also combine the fast forward with
    the definition's backward, and the reverse.
    """
    for dtype in dtypes:
        arrays = [np.asarray(x) for x in inputs]
        arrays = [a.astype(dtype) if a.dtype == np.float64 else a for a in arrays]
        arrays = [channels_last(a) if chwn and a.ndim == 4 else a for a in arrays]
        host = _run(op, [_tensor(a, gradient) for a in arrays], gradient, seed)
        both_ways = gradient and mixed and dtype == dtypes[0]
        combinations = [(True, True), *([(True, False), (False, True)] if both_ways else [])]
        for forward, backward in combinations:
            names = launches()
            before = len(names) if names is not None else 0
            with fast_only(forward, backward), nullcontext() if forward and backward else once():
                device = _run(
                    op,
                    [_on_device(a, gradient) for a in arrays],
                    gradient,
                    seed,
                    waits=not (kernels and forward and backward),
                )
            if names is not None and forward and backward:
                missing = set(kernels) - set(names[before:])
                assert not missing, f"{dtype}: kernels {missing} were not launched, only {set(names[before:])}"
            if forward and backward:
                check_heard(op, [_on_device(a, gradient) for a in arrays], gradient, seed, device, kernels)
            what = f"{dtype} (fast: forward {forward}, backward {backward})"
            for i, (e, y) in enumerate(zip(host[0], device[0], strict=True)):
                assert y.dtype == e.dtype, f"{what}: result {i} has dtype {y.dtype}, expected {e.dtype}"
                if e.dtype.kind != "f":
                    np.testing.assert_array_equal(y, e, err_msg=f"{what}: result {i}")
                    continue
                m = None if magnitude is None else magnitude
                bound = tolerance(e.dtype.name, e.astype(np.float64), roundings, 2 * (4 + length), m)
                assert_close(y, e.astype(np.float64), bound + _spacing(e), f"{what} result {i}")
            for i, (e, g) in enumerate(zip(host[1], device[1], strict=True)):
                assert (e is None) == (g is None), f"{what}: gradient {i}"
                if e is None:
                    continue
                assert g.dtype == e.dtype, f"{what}: gradient {i} has dtype {g.dtype}, expected {e.dtype}"
                wide = e.astype(np.float64)
                n = 2 * (8 + (length if grad_length is None else grad_length))
                bound = tolerance(e.dtype.name, wide, grad_roundings, n, grad_magnitude) + _spacing(e)
                finite = np.abs(wide[np.isfinite(wide)])
                bound = bound + inherited * 2.0 ** (-11 if dtype == "float16" else -24) * finite.max(initial=0.0)
                assert_close(g, wide, bound, f"{what} gradient of input {i}")


def check_heard(op: Callable, tensors: list, gradient: bool, seed: int, before: Any, kernels: Any) -> None:
    """The same run under an observer: the same kernels and bits. What they round is heard, and every sum that the
    definitions would tell.
    """
    already = len(launches() or ())
    with mp.observe(heard := Heard()), once():
        results = _run(op, tensors, gradient, seed)
    again = [mp.Tensor(x.array, requires_grad=x.requires_grad) for x in tensors]
    with mp.observe(told := Heard()), once(), fast_only(False, False):
        fast_path.off |= {"columns", "fold", "spread"}  # on which definitions of convolutions call
        _, by_definition = _run(op, again, gradient, seed)
    more, less = Counter(heard.events) - Counter(told.events), Counter(told.events) - Counter(heard.events)
    assert not more and not less, f"heard {dict(more)}, but not {dict(less)}"
    assert launches() is None or set(kernels) <= set(launches()[already:])
    for one, other in zip((*results[0], *results[1]), (*before[0], *before[1]), strict=True):
        np.testing.assert_array_equal(one, other)
    for g, of_definition in zip(results[1], by_definition):
        if g is not None and g.dtype == np.float16 and _among(of_definition, told):
            assert _among(g, heard)


def _among(g: np.ndarray, heard: Heard) -> bool:
    """True if all finite values of g are among what was rounded."""
    return bool(np.isin(g[np.isfinite(g) & (g != 0)], np.concatenate([*heard.arrays, np.zeros(0, "e")])).all())


def _spacing(x: np.ndarray) -> float:
    return 2.0**-24 if x.dtype == np.float16 else 0.0


def _tensor(a: np.ndarray, gradient: bool) -> mp.Tensor:
    x = mp.Tensor(a)
    return x.requires_grad_() if gradient and a.dtype.kind == "f" else x


def _on_device(a: np.ndarray, gradient: bool) -> mp.Tensor:
    x = mp.Tensor(on_device(a))
    return x.requires_grad_() if gradient and a.dtype.kind == "f" else x


def _run(op: Callable, tensors: list, gradient: bool, seed: int, waits: bool = True) -> tuple[list, list]:
    refuse = None if waits else getattr(backend.of(tensors[0].array).xp, "no_synchronisation", None)
    with np.errstate(all="ignore"), refuse() if refuse else nullcontext():
        ys = op(*tensors)
        ys = list(ys) if isinstance(ys, (tuple, list)) else [ys]
        for y in ys if gradient else ():
            if y.requires_grad:
                y.backward(np.asarray(rng(seed).standard_normal(y.shape)).astype(y.dtype))
    grads = [None if t.grad is None else t.grad.numpy() for t in tensors if t.requires_grad]
    return [y.numpy() for y in ys], grads
