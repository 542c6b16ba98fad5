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


WAYS = [(True, True), (True, False), (False, True)]  # forward, backward: whether the fast path is taken


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
def without(*names: str):
    """Within the block, ops take no fast path of these."""
    before = set(fast_path.off)
    fast_path.off |= set(names)
    try:
        yield
    finally:
        fast_path.off.clear()
        fast_path.off |= before


def fast_only(forward: bool, backward: bool):
    """Within the block, ops take their fast paths only in the named phases."""
    return without(*["forward"][forward:], *["backward"][backward:])


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
        for forward, backward in WAYS[: 3 if gradient and mixed and dtype == dtypes[0] else 1]:
            before, all_fast = len(launches() or ()), forward and backward
            with fast_only(forward, backward), nullcontext() if all_fast else once():
                tensors = [_tensor(on_device(a), gradient) for a in arrays]
                device = _run(op, tensors, gradient, seed, waits=not (kernels and all_fast))
            if all_fast:
                missing = set() if launches() is None else set(kernels) - set(launches()[before:])
                assert not missing, f"{dtype}: kernels {missing} were not launched"
                check_heard(op, [_tensor(on_device(a), gradient) for a in arrays], gradient, seed, device, kernels)
            for part, (es, ys) in enumerate(zip(host, device)):
                for i, (e, y) in enumerate(zip(es, ys, strict=True)):
                    what = f"{dtype} (fast: forward {forward}, backward {backward}) {('result', 'gradient')[part]} {i}"
                    assert (e is None) == (y is None), what
                    if e is None:
                        continue
                    assert y.dtype == e.dtype, f"{what} has dtype {y.dtype}, expected {e.dtype}"
                    if e.dtype.kind != "f":
                        np.testing.assert_array_equal(y, e, err_msg=what)
                        continue
                    n = 8 + (length if grad_length is None else grad_length) if part else 4 + length
                    of = (grad_roundings, 2 * n, grad_magnitude) if part else (roundings, 2 * n, magnitude)
                    wide = e.astype(np.float64)
                    bound = tolerance(e.dtype.name, wide, *of) + (2.0**-24 if e.dtype == np.float16 else 0)
                    if part:
                        largest = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
                        bound = bound + inherited * 2.0 ** (-11 if dtype == "float16" else -24) * largest
                    assert_close(y, wide, bound, what)


def check_heard(op: Callable, tensors: list, gradient: bool, seed: int, before: Any, kernels: Any) -> None:
    """The same run under an observer: the same kernels and bits. What they round is heard, and every sum that the
    definitions would tell.
    """
    already = len(launches() or ())
    with mp.observe(heard := Heard()), once():
        results = _run(op, tensors, gradient, seed)
    again = [mp.Tensor(x.array, requires_grad=x.requires_grad) for x in tensors]
    called = "columns", "fold", "spread"  # by the definitions of convolutions
    with mp.observe(told := Heard()), once(), without("forward", "backward", *called):
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


def _tensor(a: Any, gradient: bool) -> mp.Tensor:
    x = mp.Tensor(a)
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
