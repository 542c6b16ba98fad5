"""Random numbers: uniform, integers, permutations, and with given parameters: bernoulli, multinomial, normal. Drawn on
the host from `manual_seed`'s generator: one seed gives the same on every device. And dropout of whole channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ... import backend
from ...arguments import called, flag, floating, integer, integers, number, tensor
from ...autograd import Array
from ...dtypes import FLOATING, bfloat16, float16, float32, float64
from ...precision import reduce, to_dtype
from ...tensor import Tensor
from ..create import dtype_of, dtype_read
from ..pointwise import add, broadcastable, div, mul, sub
from ..random import drawn, floating_dtype, randn
from ..reduce import argmax
from ..softmax import softmax
from .limits import patterns
from .pointwise import masked_fill
from .scatter import scatter

__all__ = ["bernoulli", "dropout1d", "dropout2d", "gumbel_softmax", "multinomial", "normal", "rand", "rand_like"]
__all__ += ["randint", "randn_like", "randperm"]


@contextmanager
def fork_rng() -> Iterator[None]:
    """Within the block random numbers may be drawn; after it they go on as if none had been, also after an error."""
    state = backend.get_rng_state()
    try:
        yield
    finally:
        backend.set_rng_state(state)


def _host(x: Any) -> Any:
    """The values of a Tensor in float64 on the host; a number as it is."""
    return to_dtype(backend.to_cpu(x.array), float64) if isinstance(x, Tensor) else x


def bernoulli(input: Tensor, p: Any = None) -> Tensor:
    """1 with the probability that input holds (or p, a number), else 0; in input's shape and dtype. ValueError for
    probabilities beyond [0, 1].
    """
    op = "bernoulli"
    x = floating(op, "input", input)
    device, values = backend.of(x.array), x.array
    if p is None:
        device.require((values >= 0) & (values <= 1), ValueError, f"{op}: expected probabilities in [0, 1]", values)
    most = number(op, "p", p, 0, 1) if p is not None else _host(x) if device.has_values else 0.0
    return drawn(op, lambda g, shape, _: g.random(shape) < most, (x.shape,), x.dtype, x.device)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """softmax((logits + g) / tau) along dim for Gumbel noise g = -ln(-ln u), u uniform (Jang et al., 2017).

    hard: 1 at the largest element and 0 elsewhere, with the gradient of the softmax. eps: has no effect, as in PyTorch.
    """
    op = "gumbel_softmax"
    x, tau = floating(op, "logits", logits), number(op, "tau", tau, 0, above=True)
    g = drawn(op, lambda g, shape, _: g.gumbel(size=shape), (x.shape,), x.dtype, x.device)
    y = softmax(div(add(x, g), tau), dim)
    if not flag(op, "hard", hard):
        return y
    soft = y.detach()
    one = scatter(mul(soft, 0), dim, argmax(soft, dim, True), 1.0)
    return add(sub(one, soft), y)


def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """num_samples indices, as int64, for each row of weights (n,) or (m, n), each as likely as its weight in the row.

    Without replacement no index comes twice in a row: the smallest of exponential variables, each divided by its weight
    (Efraimidis & Spirakis, 2006). ValueError for weights below 0 or all 0, and more samples than weights above 0.
    """
    op = "multinomial"
    x, again = floating(op, "input", input), flag(op, "replacement", replacement)
    if x.ndim not in (1, 2):
        raise ValueError(f"{op}: expected one or two axes, got shape {x.shape}")
    (n,) = integers(op, "num_samples", num_samples, 1, 1)
    weights = _host(x) if backend.of(x.array).has_values else np.ones(x.shape)
    if not (np.isfinite(weights) & (weights >= 0)).all() or not (weights > 0).any(-1).all():
        raise ValueError(f"{op}: expected finite weights of at least 0, and one above 0 in each row")
    if not again and (np.count_nonzero(weights, -1) < n).any():
        raise ValueError(f"{op}: expected at least {n} weights above 0 in each row; see replacement=True")

    def draw(generator: np.random.Generator, shape: tuple, dtype: Any) -> Any:
        if not again:
            with np.errstate(divide="ignore"):
                return np.argsort(generator.standard_exponential(weights.shape) / weights, -1)[..., :n]
        sums = reduce(weights, -1, "cumsum")
        points = np.minimum(generator.random(shape) * sums[..., -1:], np.nextafter(sums[..., -1:], 0))
        rows = [np.searchsorted(s, u, side="right") for s, u in zip(np.atleast_2d(sums), np.atleast_2d(points))]
        return np.reshape(rows, shape)

    return drawn(op, draw, ((*x.shape[:-1], n),), "int64", x.device)


def normal(mean: Any, std: Any = 1.0, size: Any = None, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Normal numbers with these means and standard deviations: tensors that broadcast, or two numbers and a `size`. In
    the dtype of the tensors, by default float32; drawn in FP64 and rounded once. ValueError for a negative std.
    """
    op = "normal"
    tensors = [floating(op, name, v) for name, v in (("mean", mean), ("std", std)) if isinstance(v, Tensor)]
    center, spread = (v if isinstance(v, Tensor) else number(op, name, v) for name, v in (("mean", mean), ("std", std)))
    if (tensors and size is not None) or (not tensors and size is None):
        raise ValueError(f"{op}: expected a tensor for `mean` or `std`, or else `size`")
    if tensors:
        broadcastable(op, *tensors)
    center, spread = map(_host, (center, spread))
    if (np.asarray(spread) < 0).any():
        raise ValueError(f"{op}: expected `std` to be at least 0")
    shape = np.broadcast_shapes(*[x.shape for x in tensors]) if tensors else size
    found = floating_dtype(op, dtype if dtype is not None else tensors[0].dtype if tensors else float32)
    where = device if device is not None else tensors[0].device if tensors else None
    return drawn(op, lambda g, s, _: center + spread * g.standard_normal(s), (shape,), found, where)


def _dropout(op: str, input: Tensor, p: float, training: bool, ndims: tuple, axes: int) -> Tensor:
    if (x := floating(op, "input", input)).ndim not in ndims:
        raise ValueError(f"{op}: expected `input` to have {' or '.join(map(str, ndims))} axes, got shape {x.shape}")
    share = number(op, "p", p, 0, 1)
    if not flag(op, "training", training) or share == 0:
        return x
    dropped = backend.of(x.array).uniform(x.shape[:axes] + (1,) * (x.ndim - axes)) < share
    return mul(masked_fill(x, Tensor(dropped), 0), 1 / (1 - share) if share < 1 else 0.0)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each channel of input (N, C, L) or (C, L) with probability p and scale the others by 1 / (1 - p), in FP32.

    input itself unless training. ValueError for other numbers of axes, and unless 0 <= p <= 1.
    """
    return _dropout("dropout1d", input, p, training, (2, 3), getattr(input, "ndim", 3) - 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each channel of input (N, C, H, W) or, as in PyTorch, (N, C, L) or (N, C); see `dropout1d`."""
    return _dropout("dropout2d", input, p, training, (2, 3, 4), 2)


def _integer_dtype(op: str, dtype: Any, least: int, most: int) -> np.dtype:
    """The user's dtype, or int64. ValueError unless it holds each integer from least to most."""
    found, low, high = dtype_of(op, dtype, "int64"), 0, 1
    if found in FLOATING:
        high = 2 * patterns(found)[1]  # from there on, it holds every other one
        low = -high
    elif found.kind != "b":
        low, high = max(np.iinfo(found).min, -(2**63)), min(np.iinfo(found).max, 2**63 - 1)
    if not low <= least <= most + 1 <= high + 1:
        raise ValueError(f"{op}: expected integers that {found} can tell apart, [{low}, {high}], got [{least}, {most}]")
    return found


def _uniform(generator: np.random.Generator, shape: tuple, dtype: np.dtype) -> Array:
    """Numbers in [0, 1) that dtype holds exactly: rounding others could give 1."""
    if dtype == float64:
        return generator.random(shape)
    values = backend.cpu.uniform(shape)
    steps = {float16: 2.0**11, bfloat16: 2.0**8}.get(dtype)
    return np.floor(values * steps) / steps if steps else values


def rand(*size: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Uniform on [0, 1), of shape `size` (integers or one tuple). As in PyTorch, multiples of 2^-11 in FP16, of 2^-8 in
    BF16.
    """
    return drawn("rand", _uniform, size, floating_dtype("rand", dtype), device, requires_grad)


def _like(op: str, draw: Callable) -> Callable[..., Tensor]:
    def function(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
        dtype, shape = dtype_read(input) if dtype is None else dtype, tensor(op, "input", input).shape
        return draw(shape, dtype=dtype, device=device or input.device, requires_grad=requires_grad)

    return called(function, op, f"`{op[:-5]}` of input's shape; dtype and device too, unless given.", __name__)


rand_like = _like("rand_like", rand)
randn_like = _like("randn_like", randn)


def randint(low: int, high: Any = None, size: Any = None, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Integers from low to high - 1, of shape `size`; randint(high, size) starts at 0. ValueError unless low < high."""
    first, end, shape = (0, low, high) if size is None else (low, high, size)
    if None in (integer(first), integer(end)):
        raise TypeError(f"randint: expected integers for `low` and `high`, got {first!r} and {end!r}")
    if not first < end:
        raise ValueError(f"randint: expected low < high, got {first} and {end}")
    found = _integer_dtype("randint", dtype, first, end - 1)
    return drawn("randint", lambda generator, shape, _: generator.integers(first, end, shape), (shape,), found, device)


def randperm(n: int, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """The integers from 0 to n - 1 in a random order. ValueError for more than dtype can tell apart."""
    (n,) = integers("randperm", "n", n, 1, 0)
    found = _integer_dtype("randperm", dtype, 0, n - 1)
    return drawn("randperm", lambda generator, shape, _: generator.permutation(*shape), (n,), found, device)
