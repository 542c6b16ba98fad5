"""Initialisers: fill a Parameter or Tensor with PyTorch's distributions.

Values are drawn in FP64 from `generator` (a numpy.random.Generator; by default the one that `tinymp.manual_seed`
seeds) and then written: into a Parameter's master and, rounded once, into its working copy. One seed gives the same
bits on every device.

fan_in and fan_out of a weight of shape (out, in, *kernel) are in * prod(kernel) and out * prod(kernel).
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from .. import backend
from ..arguments import count, name_all, number
from ..autograd import Array, type_name
from ..dtypes import FLOATING, require_fit
from ..grad_mode import no_grad
from ..parameter import Parameter
from ..precision import FP32, to_dtype
from ..tensor import Tensor

T = TypeVar("T", bound=Tensor)


def parameter(*shape: int, normalisation: bool = False) -> Parameter:
    """A Parameter of zeros for a new layer, in FP32: models get another storage by `policy.cast`.

    MemoryError for a shape that no memory holds.
    """
    try:
        return Parameter(backend.default().xp.zeros(shape, FP32.storage), normalisation=normalisation)
    except ValueError as error:  # NumPy's for more elements than memory has addresses
        raise MemoryError(f"a weight of shape {shape} does not fit into memory ({error})") from error


def _write(op: str, tensor: T, value: Array) -> T:
    """Set a Parameter's master and copy, or a Tensor. ValueError for what would become infinite in FP16."""
    if isinstance(tensor, Parameter):
        require_fit(op, np.abs(value).max(initial=0.0, where=np.isfinite(value)), tensor.dtype)
        tensor.write(backend.of(tensor.data).asarray(to_dtype(value, tensor.master.dtype)))
    else:
        with no_grad():
            tensor.copy_(value)
    return tensor


def _check(op: str, tensor: Any, least: int = 0) -> tuple[int, ...]:
    """The shape of a floating Tensor with at least `least` axes."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATING:
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{op}: expected `tensor` to be a floating Tensor or Parameter, got {got}")
    if tensor.ndim < least:
        raise ValueError(f"{op}: expected `tensor` to have at least {least} axes, got shape {tensor.shape}")
    return tensor.shape


def _require_numbers(op: str, **given: Any) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{op}: expected `{name}` to be a number, got {type_name(value)}")


def _random(op: str, generator: Any) -> np.random.Generator:
    if generator is None:
        return getattr(backend.default(), "generator", backend.cpu.generator)
    if not isinstance(generator, np.random.Generator):
        raise TypeError(f"{op}: expected `generator` to be a numpy.random.Generator, got {type(generator).__name__}")
    return generator


def _fans(op: str, tensor: Tensor) -> tuple[int, int]:
    rows, columns, *kernel = _check(op, tensor, least=2)
    return columns * math.prod(kernel), rows * math.prod(kernel)


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0, generator: np.random.Generator | None = None) -> T:
    """Uniform on [a, b). ValueError unless a <= b."""
    shape = _check("uniform_", tensor)
    _require_numbers("uniform_", a=a, b=b)
    if not (a <= b and b - a < math.inf):
        raise ValueError(f"uniform_: expected a <= b, both finite, got {a} and {b}")
    return _write("uniform_", tensor, _random("uniform_", generator).uniform(a, b, shape))


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0, generator: np.random.Generator | None = None) -> T:
    """Normal with mean `mean` and standard deviation `std`. ValueError unless std >= 0."""
    shape = _check("normal_", tensor)
    _require_numbers("normal_", mean=mean, std=std)
    if not std >= 0:
        raise ValueError(f"normal_: expected std >= 0, got {std}")
    return _write("normal_", tensor, _random("normal_", generator).normal(mean, std, shape))


def trunc_normal_(
    tensor: T,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: np.random.Generator | None = None,
) -> T:
    """Normal(mean, std), conditioned on a <= value <= b, also far from the mean. ValueError unless std > 0 and a < b.

    Rejection from a uniform proposal: z is kept with probability exp((p^2 - z^2) / 2), where p is the point of
    [a, b] closest to the mean, all in units of std. The proposal ends where that is below e^-37 < 2^-53: one in 37 or
    more is kept.
    """
    shape, random = _check("trunc_normal_", tensor), _random("trunc_normal_", generator)
    _require_numbers("trunc_normal_", mean=mean, std=std, a=a, b=b)
    if not (std > 0 and a < b and abs(mean) + std < math.inf):
        raise ValueError(f"trunc_normal_: expected std > 0 and a < b, got mean={mean}, std={std}, a={a}, b={b}")
    low, high = (a - mean) / std, (b - mean) / std
    p = min(max(low, 0.0), high)
    if not p * p < math.inf:
        raise ValueError(f"trunc_normal_: [{a}, {b}] is too far from mean={mean} in units of std={std}")
    reach = 74 / (abs(p) + math.sqrt(p * p + 74))  # the z > 0 with (p + z)^2 - p^2 = 74
    low, high = max(low, p - reach), min(high, p + reach)
    size, found, kept = math.prod(shape), 0, [np.empty(0)]
    while found < size:
        z = random.uniform(low, high, size)
        z = z[random.random(size) < np.exp((p - z) * (p + z) / 2)]
        kept.append(z)
        found += len(z)
    return _write("trunc_normal_", tensor, np.clip(mean + std * np.concatenate(kept)[:size].reshape(shape), a, b))


def constant_(tensor: T, val: float) -> T:
    """Every element `val`. ValueError if it does not fit FP16 and the tensor is FP16."""
    shape = _check("constant_", tensor)
    _require_numbers("constant_", val=val)
    return _write("constant_", tensor, np.full(shape, float(val)))


def ones_(tensor: T) -> T:
    """Every element 1."""
    return constant_(tensor, 1.0)


def zeros_(tensor: T) -> T:
    """Every element 0."""
    return constant_(tensor, 0.0)


def eye_(tensor: T) -> T:
    """The identity matrix. ValueError unless the tensor is a matrix."""
    shape = _check("eye_", tensor)
    if len(shape) != 2:
        raise ValueError(f"eye_: expected a matrix, got shape {shape}")
    return _write("eye_", tensor, np.eye(*shape))


def dirac_(tensor: T, groups: int = 1) -> T:
    """A convolution weight (out, in, *kernel) that passes channel i of each group on to output i of the group.

    ValueError unless the tensor has 3, 4 or 5 axes and `groups` divides out.
    """
    shape = _check("dirac_", tensor, least=3)
    groups = count("dirac_", "groups", groups)
    if len(shape) > 5 or shape[0] % groups:
        raise ValueError(f"dirac_: expected 3 to 5 axes and groups that divide {shape[0]}, got {shape} and {groups}")
    value, per_group = np.zeros(shape), shape[0] // groups
    centre = [k // 2 for k in shape[2:]]
    for row in range(shape[0]):
        if row % per_group < shape[1]:
            at = (row, row % per_group, *centre)
            value[at] = 1
    return _write("dirac_", tensor, value)


def xavier_uniform_(tensor: T, gain: float = 1.0, generator: np.random.Generator | None = None) -> T:
    """Uniform on [-r, r) with r = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    _require_numbers("xavier_uniform_", gain=gain)
    r = gain * math.sqrt(6 / max(1, sum(_fans("xavier_uniform_", tensor))))
    return uniform_(tensor, -r, r, generator)


def xavier_normal_(tensor: T, gain: float = 1.0, generator: np.random.Generator | None = None) -> T:
    """Normal with standard deviation gain sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    _require_numbers("xavier_normal_", gain=gain)
    return normal_(tensor, 0.0, gain * math.sqrt(2 / max(1, sum(_fans("xavier_normal_", tensor)))), generator)


def kaiming_uniform_(
    tensor: T,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: np.random.Generator | None = None,
) -> T:
    """Uniform on [-r, r) with r = gain sqrt(3 / fan) (He et al., 2015). a: the slope of a leaky_relu."""
    r = math.sqrt(3) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -r, r, generator)


def kaiming_normal_(
    tensor: T,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: np.random.Generator | None = None,
) -> T:
    """Normal with standard deviation gain / sqrt(fan) (He et al., 2015). a: the slope of a leaky_relu."""
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity), generator)


def _kaiming_std(op: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fan_in, fan_out = _fans(op, tensor)
    _require_numbers(op, a=a)
    if not isinstance(mode, str) or mode not in ("fan_in", "fan_out"):
        raise ValueError(f"{op}: expected mode 'fan_in' or 'fan_out', got {mode!r}")
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fan_in if mode == "fan_in" else fan_out))


def orthogonal_(tensor: T, gain: float = 1, generator: np.random.Generator | None = None) -> T:
    """A (semi-)orthogonal matrix times gain, uniformly distributed; axes after the first count as columns.

    The Q of a QR decomposition of a normal matrix, with the signs that make R's diagonal positive (Saxe et al., 2013).
    """
    shape, random = _check("orthogonal_", tensor, least=2), _random("orthogonal_", generator)
    _require_numbers("orthogonal_", gain=gain)
    rows, columns = shape[0], math.prod(shape[1:])
    normal = random.standard_normal((rows, columns))
    q, r = np.linalg.qr(normal.T if rows < columns else normal)
    q = q * np.copysign(1.0, np.diagonal(r))
    return _write("orthogonal_", tensor, gain * (q.T if rows < columns else q).reshape(shape))


_GAINS = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4, "sigmoid": 1.0, "linear": 1.0} | {
    f"conv{kind}{n}d": 1.0 for kind in ("", "_transpose") for n in (1, 2, 3)
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The gain that keeps the variance through a nonlinearity, as in PyTorch. param: the slope of a leaky_relu.

    ValueError for an unknown name.
    """
    if isinstance(nonlinearity, str) and nonlinearity == "leaky_relu":
        slope = number("calculate_gain", "param", 0.01 if param is None else param)
        return math.sqrt(2 / (1 + slope * slope))
    if not isinstance(nonlinearity, str) or nonlinearity not in _GAINS:
        raise ValueError(f"calculate_gain: expected one of {', '.join([*_GAINS, 'leaky_relu'])}, got {nonlinearity!r}")
    return _GAINS[nonlinearity]


name_all(globals(), parameter)
