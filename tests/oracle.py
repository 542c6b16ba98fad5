"""check(): the one helper that holds an op against its mathematics, in FP64, FP32, FP16 and, on the CPU, BF16: forward
and gradient.

The oracle is a plain NumPy function on float64, written in the test. Tolerances are computed:

    |y - e| <= roundings * u_s * |e|  +  length * u_w * m  +  s / 2

u_s: unit roundoff of the storage dtype (2^-11 in FP16, 2^-8 in BF16); u_w: of the dtype that computes (2^-24 under all
but FP64); length: how many terms the longest sum has (plus the few operations around it); m: the magnitude of the terms
(by default max |e|); s: the spacing of subnormals. The gradients of the FP64 run are held against central differences
of the oracle along random directions; those of the FP32 and FP16 runs against the FP64 gradients at the same, already
rounded, inputs, with `inherited` further storage roundings that backward reads (a saved FP16 y), relative to max |g|.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinymp as mp
from tinymp.dtypes import bfloat16

STORAGE = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
WORK = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-24, "bfloat16": 2.0**-24}
SPACING = {"float64": 0.0, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
OVERFLOW = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}  # what rounds to infinity
EVERY = "float64", "float32", "float16", *(["bfloat16"] if bfloat16 is not None else [])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def host(array: Any) -> np.ndarray:
    """An array of either device, or that of a Tensor such as a gradient, as NumPy's."""
    return mp.backend.to_cpu(array.array if isinstance(array, mp.Tensor) else array)


def device_array(values: np.ndarray) -> Any:
    """A copy of values where the test's tensors lie (see conftest.py)."""
    return mp.tensor(values).array


def shared(a: Any, b: Any) -> bool:
    """True for arrays of one device, one of them perhaps a view of the other, if they lie in the same memory."""
    return np.shares_memory(a, b) if isinstance(a, np.ndarray) else a.data.mem is b.data.mem


def on_cpu_if_bf16(policy: Any) -> Any:
    """A policy as a parameter of a test, which makes its tensors on the CPU where they are BF16: CuPy has none."""
    return pytest.param(policy, marks=pytest.mark.cpu) if policy.storage.name == "bfloat16" else policy


def randn(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float64 values."""
    return rng(seed).standard_normal(shape)


def distinct(*shape: int, seed: int = 0, step: float = 0.0625) -> np.ndarray:
    """Values that differ from each other and from 0 by at least `step`/2, also in FP16: no ties, no kinks."""
    n = int(np.prod(shape))
    return (rng(seed).permutation(n) - n // 2 + 0.5).reshape(shape) * step


def tolerance(dtype: str, expected: np.ndarray, roundings: float, length: float, magnitude: Any = None) -> np.ndarray:
    """The bound of the module docstring for each element of `expected`."""
    size = np.abs(expected)
    if magnitude is None:
        finite = size[np.isfinite(size)]
        magnitude = finite.max() if finite.size else 0.0
    return roundings * STORAGE[dtype] * size + length * WORK[dtype] * magnitude + SPACING[dtype] / 2


def assert_close(got: np.ndarray, expected: np.ndarray, bound: np.ndarray, what: str) -> None:
    """got within bound of expected; infinities and nans in the same places."""
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    got, bound = got.astype(np.float64), np.broadcast_to(bound, expected.shape)
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(got[special], expected[special], err_msg=what)
    error = np.abs(got[~special] - expected[~special])
    bad = ~(error <= bound[~special])
    if bad.any():
        i = np.argmax(np.where(bad, error - bound[~special], -np.inf))
        worst = f"got {got[~special][i]!r}, expected {expected[~special][i]!r}, bound {bound[~special][i]:.3g}"
        raise AssertionError(f"{what}: {bad.sum()} of {bad.size} beyond tolerance; worst: {worst}")


def check(
    op: Callable,
    oracle: Callable,
    *inputs: Any,
    length: float = 1,
    roundings: float = 1,
    magnitude: Any = None,
    grad_length: float | None = None,
    grad_roundings: float = 2,
    inherited: float = 0,
    dtypes: tuple[str, ...] = EVERY,
    result: str | None = None,
    gradient: bool = True,
    seed: int = 1,
) -> None:
    """Hold op (Tensors -> Tensor) against oracle (float64 arrays -> array) in every dtype.

    inputs: float64 arrays become Tensors of each dtype that require a gradient; other arrays (integers, booleans)
    become plain Tensors. result: the dtype promised for FP16 and BF16 inputs, if it is another (losses: "float32").
    """
    for dtype in dtypes:
        if dtype == "bfloat16" and mp.zeros(1).device != "cpu":
            continue
        out = dtype if result is None or dtype not in OVERFLOW else result
        tensors, wide = _tensors(inputs, dtype, gradient)
        with np.errstate(all="ignore"):
            expected = np.asarray(oracle(*wide), dtype=np.float64)
            if out in OVERFLOW:
                expected = np.where(np.abs(expected) >= OVERFLOW[out], np.sign(expected) * np.inf, expected)
        y = op(*tensors)
        assert isinstance(y, mp.Tensor) and y.dtype == out, f"{dtype}: expected a {out} result, got {y.dtype}"
        m = magnitude(*[abs(w) if w.dtype == np.float64 else w for w in wide]) if callable(magnitude) else magnitude
        assert_close(y.numpy(), expected, tolerance(out, expected, roundings, 4 + length, m), f"{dtype} forward")
        if not gradient:
            assert not y.requires_grad or y.dtype.kind not in "fV" or any(t.requires_grad for t in tensors)
            continue
        dy = np.asarray(rng(seed).standard_normal(y.shape)).astype(out)
        grads = gradients(op, tensors, dy)
        if dtype == "float64":
            check_directions(oracle, wide, grads, dy, seed)
            continue
        exact, _ = _tensors(wide, "float64", True)
        for i, (g, e) in enumerate(zip(grads, gradients(op, exact, dy.astype(np.float64)), strict=True)):
            if e is None:
                assert g is None
                continue
            assert g.dtype == dtype, f"{dtype}: gradient {i} has dtype {g.dtype}"
            bound = tolerance(dtype, e, grad_roundings, 8 + (length if grad_length is None else grad_length))
            bound = bound + inherited * STORAGE[dtype] * np.abs(e).max(initial=0.0)
            assert_close(g, e, bound, f"{dtype} gradient of input {i}")


def _tensors(inputs: Any, dtype: str, gradient: bool) -> tuple[list[mp.Tensor], list[np.ndarray]]:
    """Inputs as Tensors of dtype, and the values that they really have, in float64."""
    tensors, wide = [], []
    for x in inputs:
        x = np.asarray(x)
        if x.dtype == np.float64:
            rounded = x.astype(dtype)
            tensors.append(mp.tensor(rounded, requires_grad=gradient))
            wide.append(rounded.astype(np.float64))
        else:
            tensors.append(mp.tensor(x))
            wide.append(x)
    return tensors, wide


def gradients(op: Callable, tensors: list[mp.Tensor], dy: np.ndarray) -> list[np.ndarray | None]:
    """The gradients of sum(dy * op(tensors)) with respect to the floating tensors."""
    for t in tensors:
        t.zero_grad()
    op(*tensors).backward(dy)
    return [None if t.grad is None else host(t.grad) for t in tensors if t.requires_grad]


def check_directions(
    oracle: Callable, inputs: list, grads: list, dy: np.ndarray, seed: int, directions: int = 4
) -> None:
    """grads against central differences of the float64 oracle along random directions.

    The error of a central difference of step h is O(h^2) + O(2^-53 / h); with h = 2^-17 both are below 1e-9 for
    functions of ordinary size, and the bound of 1e-6 of the terms' magnitude rejects a gradient wrong by 0.1 %.
    """
    h = 2.0**-17
    places = [i for i, x in enumerate(inputs) if x.dtype == np.float64]
    generator = rng(seed + 1)
    for _ in range(directions):
        v = {i: generator.standard_normal(inputs[i].shape) for i in places}
        up = oracle(*[x + h * v[i] if i in v else x for i, x in enumerate(inputs)])
        down = oracle(*[x - h * v[i] if i in v else x for i, x in enumerate(inputs)])
        expected = float(np.sum(dy * (np.asarray(up) - np.asarray(down)))) / (2 * h)
        terms = [np.sum(g * v[i]) for i, g in zip(places, grads, strict=True) if g is not None]
        size = sum(np.sum(np.abs(g * v[i])) for i, g in zip(places, grads, strict=True) if g is not None)
        got = float(np.sum(terms))
        assert abs(got - expected) <= 1e-6 * (size + abs(expected)) + 1e-12, (
            f"gradient along a random direction: got {got!r}, central difference {expected!r}"
        )
