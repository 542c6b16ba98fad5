"""Categorical, Bernoulli, Normal and kl_divergence, as in torch.distributions, over ops.

Parameters and values in FP16 are widened by `.float()`, and so are numbers and integers: all is computed in FP32, and
results are FP32 (float64 stays float64). Wrong parameters and values raise ValueError unless validate_args is False.
"""

from __future__ import annotations

import math
from typing import Any

from ... import backend, ops
from ...arguments import floating, sizes
from ...autograd import Array, no_grad
from ...tensor import Tensor, tensor

__all__ = ["Bernoulli", "Categorical", "Distribution", "Normal", "kl_divergence"]


def _wide(x: Any) -> Tensor:
    x = x if isinstance(x, Tensor) else tensor(x)
    return x if x.dtype == "float64" else x.float()


def _inside(p: Tensor) -> Tensor:
    """p, kept as far from 0 and 1 as PyTorch keeps probabilities before it takes their logarithm: the dtype's eps."""
    eps = 2.0**-52 if p.dtype == "float64" else 2.0**-23
    return ops.clamp(p, eps, 1 - eps)


class Distribution:
    """A distribution of numbers for each element of batch_shape; samples are (*sample_shape, *batch_shape)."""

    has_rsample = False
    event_shape = ()
    mean: Tensor
    variance: Tensor

    def __init__(self, batch_shape: tuple[int, ...], validate_args: bool | None) -> None:
        self.batch_shape, self._validates = batch_shape, validate_args is not False

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        return ops.sqrt(self.variance)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Independent numbers, without gradients, from `manual_seed`'s generator."""
        with no_grad():
            return self._draw((*sizes("sample", "sample_shape", (sample_shape,), {}), *self.batch_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Independent numbers that gradients flow through. NotImplementedError where there is no such formula."""
        if not self.has_rsample:
            name = type(self).__name__
            raise NotImplementedError(f"{name}.rsample: only Normal has it; use sample() and log_prob(...)")
        return self._draw((*sizes("rsample", "sample_shape", (sample_shape,), {}), *self.batch_shape))

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        raise NotImplementedError

    def _require(self, name: str, x: Tensor, good: Array, expected: str) -> None:
        if self._validates:
            message = f"{type(self).__name__}: expected `{name}` to be {expected}"
            backend.of(x.array).require(good, ValueError, message, x.array)

    def _one_of(self, probs: Any, logits: Any) -> Tensor:
        if (probs is None) == (logits is None):
            raise ValueError(f"{type(self).__name__}: expected exactly one of `probs` and `logits`")
        name = "probs" if logits is None else "logits"
        x = _wide(probs if logits is None else logits)
        if logits is None:
            self._require(name, x, x.array >= 0, "at least 0")
        else:
            self._require(name, x, x.array == x.array, "numbers")
        return floating(type(self).__name__, name, x)


class Categorical(Distribution):
    """Integers below K. probs: (..., K), divided by their sum; or logits: their logarithms plus a constant."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._validates = validate_args is not False
        x = self._one_of(probs, logits)
        if x.ndim == 0:
            raise ValueError(f"Categorical: expected `{'probs' if logits is None else 'logits'}` to have an axis")
        super().__init__(x.shape[:-1], validate_args)
        if logits is None:
            self.probs = x / ops.sum(x, -1, keepdim=True)
            self.logits = ops.log(_inside(self.probs))
        else:
            self.logits = x - ops.logsumexp(x, -1, keepdim=True)
            self.probs = ops.softmax(x, -1)
        # categories have no order
        nan = ops.full(self.batch_shape, math.nan, dtype=x.dtype, device=x.device)
        self.mean = self.variance = nan

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        """By Gumbel's maximum: the index of the largest ln p - ln(-ln u)."""
        u = ops.rand(*shape, self.probs.shape[-1], dtype=self.probs.dtype, device=self.probs.device)
        return ops.argmax(ops.log(self.probs) - ops.log(-ops.log(u)), -1)

    def log_prob(self, value: Any) -> Tensor:
        """ln p of integers that broadcast with batch_shape."""
        i, K = (value if isinstance(value, Tensor) else tensor(value)).long(), self.probs.shape[-1]
        self._require("value", i, (i.array >= 0) & (i.array < K), f"integers in [0, {K})")
        i = ops.unsqueeze(i, -1)
        shape = (ops.unsqueeze(ops.zeros(*self.batch_shape, device=i.device), -1) + i).shape[:-1]
        return ops.squeeze(ops.gather(self.logits.expand(*shape, K), -1, i.expand(*shape, 1)), -1)

    def entropy(self) -> Tensor:
        """- sum p ln p, with 0 ln 0 = 0."""
        return -ops.sum(self.probs * ops.clamp(self.logits, min=-3e38), -1)


class Bernoulli(Distribution):
    """1.0 with probability probs, else 0.0; or logits: ln(p / (1 - p))."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._validates = validate_args is not False
        x = self._one_of(probs, logits)
        super().__init__(x.shape, validate_args)
        if logits is None:
            self._require("probs", x, x.array <= 1, "at most 1")
            p = _inside(x)
            self.probs, self.logits = x, ops.log(p) - ops.log(1 - p)
        else:
            self.probs, self.logits = ops.sigmoid(x), x
        self.mean, self.variance = self.probs, self.probs * (1 - self.probs)

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        u = ops.rand(*shape, dtype=self.probs.dtype, device=self.probs.device)
        return ops.where(ops.lt(u, self.probs), ops.ones_like(u), ops.zeros_like(u))

    def log_prob(self, value: Any) -> Tensor:
        """ln p of values that are 0 or 1."""
        x = _wide(value)
        self._require("value", x, (x.array == 0) | (x.array == 1), "0 or 1")
        return x * self.logits - ops.softplus(self.logits)

    def entropy(self) -> Tensor:
        """- p ln p - (1 - p) ln(1 - p)."""
        return ops.softplus(self.logits) - self.probs * self.logits


class Normal(Distribution):
    """With mean loc and standard deviation scale, which broadcast."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        a, b = _wide(loc), _wide(scale)
        shape = (a.detach() + b.detach()).shape
        super().__init__(shape, validate_args)
        self._require("scale", b, b.array > 0, "above 0")
        self.loc, self.scale = a.expand(shape), b.expand(shape)
        self.mean, self.variance = self.loc, ops.square(self.scale)

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        return self.loc + self.scale * ops.randn(*shape, dtype=self.loc.dtype, device=self.loc.device)

    def log_prob(self, value: Any) -> Tensor:
        """ln of the density."""
        x = _wide(value)
        self._require("value", x, x.array == x.array, "numbers")
        return -ops.square((x - self.loc) / self.scale) / 2 - ops.log(self.scale) - math.log(2 * math.pi) / 2

    def entropy(self) -> Tensor:
        """ln(scale) + (1 + ln 2 pi) / 2."""
        return ops.log(self.scale) + (1 + math.log(2 * math.pi)) / 2


def _share(p: Tensor, difference: Tensor, q: Tensor) -> Tensor:
    """p times a difference of logarithms: 0 where p is 0, else infinite where q is 0."""
    zero, infinite = ops.zeros_like(difference), ops.full_like(difference, math.inf)
    return ops.where(ops.eq(p, 0), zero, ops.where(ops.eq(q, 0), infinite, p * difference))


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence E_p ln(p / q) of two distributions of one class."""
    if isinstance(p, Normal) and isinstance(q, Normal):
        ratio = ops.square(p.scale / q.scale)
        return (ratio + ops.square((p.loc - q.loc) / q.scale) - 1 - ops.log(ratio)) / 2
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        return ops.sum(_share(p.probs, p.logits - q.logits, q.probs), -1)
    if isinstance(p, Bernoulli) and isinstance(q, Bernoulli):
        ones = ops.softplus(-q.logits) - ops.softplus(-p.logits)
        zeros = ops.softplus(q.logits) - ops.softplus(p.logits)
        return _share(p.probs, ones, q.probs) + _share(1 - p.probs, zeros, 1 - q.probs)
    names = f"{type(p).__name__} and {type(q).__name__}"
    raise NotImplementedError(f"kl_divergence: expected two Categorical, two Bernoulli or two Normal, got {names}")
