"""bernoulli, multinomial and normal: random numbers with given parameters, drawn on the host from `manual_seed`'s
generator, so that one seed gives the same on every device, without gradients. And dropout of whole channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ... import backend
from ...arguments import flag, floating, integers, name_all, number
from ...dtypes import float32, float64
from ...precision import reduce, to_dtype
from ...tensor import Tensor
from ..pointwise import broadcastable, masked_fill, mul
from ..random import drawn, floating_dtype

__all__ = ["bernoulli", "dropout1d", "dropout2d", "multinomial", "normal"]


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


def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """num_samples indices, as int64, for each row of weights: each index as likely as its weight among the row's.

    input: (n,) or (m, n), at least 0, not all 0 in a row. Without replacement no index comes twice in a row: the
    smallest of exponential variables, each divided by its weight (Efraimidis & Spirakis, 2006). ValueError for other
    weights, and for more samples than weights above 0.
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


name_all(globals())
