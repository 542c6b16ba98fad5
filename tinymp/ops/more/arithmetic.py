"""remainder, lerp, addmm, distances, ...: arithmetic of several steps, in FP32 for FP16 and rounded once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...arguments import axis, called, choice, flag, floating, integers, number, tensor, with_axes
from ...autograd import Array, Op, taken
from ...dtypes import FLOATING, HALVES
from ...precision import POINTWISE, store, widen
from ...tensor import Tensor
from ..activation import relu
from ..dot import MatMul, matmul
from ..pointwise import add, broadcastable, div, mul, numeric, operands, stored, sub, sum_to
from ..reduce import sum as total
from ..shape import reshape
from ..unary import promoted
from .pointwise import clamp
from .reduce import norm
from .shape import narrow
from .views import cat, expand, unsqueeze

__all__ = ["addcdiv", "addcmul", "addmm", "atan2", "bmm", "cdist", "cosine_similarity", "diff", "dot", "floor_divide"]
__all__ += ["fmod", "lerp", "mm", "mv", "normalize", "outer", "pairwise_distance", "prelu", "remainder"]


class Remainder(Op):
    """z = x - n y with n = floor(x / y);  dx = dz, dy = -n dz. Exact, but for the sign of y added to it."""

    kind = POINTWISE
    mode = "remainder"

    def forward(self, x: Array, y: Array) -> Array:
        if stored(x, y).dtype.kind in "iu":
            self.device.require(self.xp.asarray(y) != 0, ValueError, f"{self.name}: expected integers other than 0")
        self.save(x, y)
        return store(self.rest(widen(x), widen(y)), like=stored(x, y))

    def rest(self, x: Array, y: Array) -> Array:
        """x - n y, from fmod, which is exact: CuPy's own remainder, x - floor(x / y) y, is far off for large x / y."""
        if self.mode == "fmod" or stored(x, y).dtype.kind in "iu":
            return getattr(self.xp, self.mode)(x, y)
        z = self.xp.fmod(x, y)
        return self.device.where((z != 0) & ((z < 0) != self.xp.less(y, 0)), z + y, z)

    def backward(self, dz: Array) -> tuple:
        (x, y), (like_x, like_y) = self.saved, self.targets
        dy = None
        if like_y:
            a, b = widen(x), widen(y)
            dy = sum_to(-widen(dz) * self.xp.rint((a - self.rest(a, b)) / b), like_y)
        return sum_to(dz, like_x) if like_x else None, dy


class Fmod(Remainder):
    """z = x - n y with n = x / y rounded towards 0;  dx = dz, dy = -n dz. Exact."""

    mode = "fmod"


class DivRounded(Op):
    """z = x / y rounded towards -inf ("floor") or 0 ("trunc");  no gradient, as z is constant but for its steps.

    The floor is that of the exact quotient, as in Python and PyTorch: from the remainder, which is exact.
    """

    kind = POINTWISE
    name = "div"

    def forward(self, x: Array, y: Array, *, mode: str) -> Array:
        xp, a, b = self.xp, widen(x), widen(y)
        quotient = xp.asarray(a / b)
        if mode == "trunc":
            return store(xp.trunc(quotient), like=stored(x, y))
        rest = xp.fmod(a, b)
        below = (rest != 0) & ((rest < 0) != xp.less(b, 0))
        return store(self.device.where(xp.equal(b, 0), quotient, xp.rint((a - rest) / b - below)), like=stored(x, y))

    def backward(self, dz: Array) -> tuple:
        return tuple([self.xp.zeros(like.shape, like.dtype) if like else None for like in self.targets])


class FloorDivide(DivRounded):
    """z = x / y rounded towards -inf, also of integers;  no gradient."""

    name = "floor_divide"

    def forward(self, x: Array, y: Array) -> Array:  # type: ignore[override]
        if stored(x, y).dtype.kind not in "iu":
            return super().forward(x, y, mode="floor")
        self.device.require(self.xp.asarray(y) != 0, ValueError, "floor_divide: expected a divisor other than 0")
        return store(self.xp.floor_divide(x, y), like=stored(x, y))


class Atan2(Op):
    """z = the angle of (y, x);  dx = -z' y dz, dy = z' x dz with z' = 1 / (x^2 + y^2)."""

    kind = POINTWISE
    arguments = ("input", "other")

    def forward(self, y: Array, x: Array) -> Array:
        self.save(y, x)
        return store(self.xp.arctan2(widen(y), widen(x)), like=y)

    def backward(self, dz: Array) -> tuple:
        (y, x), (like_y, like_x) = map(widen, self.saved), self.targets
        r = self.xp.hypot(x, y)
        r = self.device.where(r > 0, r, r.dtype.type(1))  # at 0 both shares are 0, as in PyTorch
        dy = sum_to(widen(dz) / r * (x / r), like_y) if like_y else None
        return dy, sum_to(widen(dz) / r * (-y / r), like_x) if like_x else None


def wide(*tensors: Any) -> list:
    """FP16 and BF16 Tensors in FP32; others, and numbers, as they are."""
    return [x.float() if isinstance(x, Tensor) and x.dtype in HALVES else x for x in tensors]


def _wide(op: str, **named: Any) -> tuple[Any, list[Tensor]]:
    """The dtype of floating Tensors, and these, those of FP16 and BF16 in FP32; TypeError for several dtypes."""
    given = taken(op, tuple([floating(op, name, x) for name, x in named.items()]))
    if len({x.dtype for x in given}) > 1:
        found = ", ".join(f"{name} {x.dtype}" for name, x in zip(named, given))
        raise TypeError(f"{op}: expected tensors of one dtype, got {found}")
    return given[0].dtype, wide(*given)


def div_rounded(pair: list, mode: str) -> Tensor:
    """`div` of what `operands` made, with a rounding_mode."""
    choice("div", "rounding_mode", mode, ("floor", "trunc"))
    if any(x.dtype in FLOATING if isinstance(x, Tensor) else isinstance(x, float) for x in pair):
        return DivRounded.apply(
            *[x.float() if isinstance(x, Tensor) and x.dtype not in FLOATING else x for x in pair], mode=mode
        )
    return floor_divide(pair[0] if mode == "floor" else sub(pair[0], fmod(*pair)), pair[1])


def _divided(op: str, kind: Any, says: str) -> Any:
    def function(input: Any, other: Any) -> Tensor:
        return kind.apply(*[numeric(op, x) for x in operands(op, input, other)])

    return called(function, op, f"{says}, broadcast; one may be a number. ValueError for an integer 0.", __name__)


remainder = _divided("remainder", Remainder, "input - other * floor(input / other), with the sign of other")
fmod = _divided("fmod", Fmod, "input - other * trunc(input / other), with the sign of input")
floor_divide = _divided("floor_divide", FloorDivide, "input / other rounded towards -inf, without gradient")


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """The angle, within pi of 0, of the point with the coordinates other and input; broadcast."""
    return Atan2.apply(*operands("atan2", promoted("atan2", "input", input), promoted("atan2", "other", other)))


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight (end - input), broadcast; weight may be a number."""
    by = {"weight": weight} if isinstance(weight, Tensor) else {}
    dtype, (a, b, *w) = _wide("lerp", input=input, end=end, **by)
    return add(a, mul(w[0] if by else number("lerp", "weight", weight), sub(b, a))).to(dtype)


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 * tensor2, broadcast."""
    dtype, (x, a, b) = _wide("addcmul", input=input, tensor1=tensor1, tensor2=tensor2)
    return add(x, mul(a, b), alpha=number("addcmul", "value", value)).to(dtype)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 / tensor2, broadcast."""
    dtype, (x, a, b) = _wide("addcdiv", input=input, tensor1=tensor1, tensor2=tensor2)
    return add(x, div(a, b), alpha=number("addcdiv", "value", value)).to(dtype)


def flattened(a: Tensor, b: Tensor) -> Tensor:
    """`matmul` of vectors, and of batches with one matrix: one product over all batches, not one per batch."""
    left = reshape(a, (1, -1)) if a.ndim == 1 else a
    right = reshape(b, (-1, 1)) if b.ndim == 1 else b
    if left.ndim > 2 and right.ndim == 2:
        rows = MatMul.apply(reshape(left, (prod(left.shape[:-1]), left.shape[-1])), right)
        c = reshape(rows, (*left.shape[:-1], right.shape[-1]))
    else:
        c = MatMul.apply(left, right)
    shape = c.shape[:-2] + (c.shape[-2:-1] if a.ndim > 1 else ()) + (c.shape[-1:] if b.ndim > 1 else ())
    return c if shape == c.shape else reshape(c, shape)


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices; ValueError for anything but matrices (see `matmul`)."""
    return matmul(with_axes("mm", "input", input, 2), with_axes("mm", "mat2", mat2, 2))


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two equally long batches of matrices; ValueError otherwise (see `matmul`)."""
    a, b = with_axes("bmm", "input", input, 3), with_axes("bmm", "mat2", mat2, 3)
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"bmm: expected equally long batches, got {a.shape} and {b.shape}")
    return matmul(a, b)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The sum of the products of two vectors of one length."""
    return matmul(with_axes("dot", "input", input, 1), with_axes("dot", "tensor", tensor, 1))


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
    return matmul(with_axes("mv", "input", input, 2), with_axes("mv", "vec", vec, 1))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The products of each element of one vector with each of another."""
    pair = tensor("outer", "input", input), tensor("outer", "vec2", vec2)
    if pair[0].ndim != 1 or pair[1].ndim != 1:
        raise ValueError(f"outer: expected two vectors, got shapes {input.shape} and {vec2.shape}")
    return mul(unsqueeze(input, 1), vec2)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat1 @ mat2; input broadcasts to the product. Rounded once."""
    kept, factor = number("addmm", "beta", beta), number("addmm", "alpha", alpha)
    dtype, (x, a, b) = _wide("addmm", input=input, mat1=mat1, mat2=mat2)
    c = matmul(with_axes("addmm", "mat1", a, 2), with_axes("addmm", "mat2", b, 2))
    if x.ndim > 2 or any(m not in (1, n) for m, n in zip(x.shape[::-1], c.shape[::-1])):
        raise ValueError(f"addmm: expected `input` to broadcast to {c.shape}, got shape {x.shape}")
    return (mul(c, factor) if kept == 0 else add(mul(x, kept), c, alpha=factor)).to(dtype)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps over the last axis, broadcast."""
    op = "pairwise_distance"
    dtype, (a, b) = _wide(op, x1=x1, x2=x2)
    d = add(sub(a, b), number(op, "eps", eps))
    return norm(d, p, -1, flag(op, "keepdim", keepdim)).to(dtype)


_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = _MODES[0]) -> Tensor:
    """The p-norms of the differences of each row of x1 (..., m, k) and each of x2 (..., n, k): (..., m, n).

    compute_mode: as in PyTorch, which may use a matrix product for p = 2, and loses digits where rows are near each
    other; here there is none.
    """
    choice("cdist", "compute_mode", compute_mode, _MODES)
    dtype, (a, b) = _wide("cdist", x1=x1, x2=x2)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ValueError(f"cdist: expected (..., m, k) and (..., n, k), got shapes {a.shape} and {b.shape}")
    return norm(sub(unsqueeze(a, -2), unsqueeze(b, -3)), p, -1).to(dtype)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """input / max(its p-norm along dim, eps), p as in `norm`; of FP32 ops (there eps is not 0), rounded once."""
    (dtype, (x,)), least = _wide("normalize", input=input), number("normalize", "eps", eps, 0)
    d = axis("normalize", dim, x.ndim or 1)
    return div(x, clamp(norm(x, p, d if x.ndim else None, True), least)).to(dtype)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The sum of x1 x2 over dim, each divided by its norm, or by eps where that is larger; broadcast."""
    op = "cosine_similarity"
    (dtype, (a, b)), least = _wide(op, x1=x1, x2=x2), number(op, "eps", eps, 0)
    broadcastable(op, a, b)
    shape = np.broadcast_shapes(a.shape, b.shape)
    a, b, d = expand(a, shape), expand(b, shape), axis(op, dim, max(len(shape), 1))
    unit = [div(v, clamp(norm(v, 2, d, True), least)) for v in (a, b)]
    return total(mul(*unit), d).to(dtype)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input where positive, else weight * input: one weight, or one for each channel (axis 1).

    ValueError for other numbers of weights.
    """
    x, w = taken("prelu", (floating("prelu", "input", input), floating("prelu", "weight", weight)))
    channels = x.shape[1] if x.ndim > 1 else 1
    if w.ndim > 1 or w.numel() not in (1, channels):
        raise ValueError(f"prelu: expected `weight` to have 1 element or {channels}, got shape {w.shape}")
    w = reshape(w, (1, -1, *[1] * (x.ndim - 2)) if w.numel() > 1 else ())
    return add(relu(x), mul(w, clamp(x, max=0))).to(x.dtype)  # one of the two is 0, so the sum rounds nothing


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The differences of neighbours along dim, taken n times, each of which leaves one place less (at least none).

    prepend, append: tensors that stand before and behind input along dim. n = 0 is a copy of input, without them.
    """
    x = tensor("diff", "input", input)
    d, (times,) = axis("diff", dim, x.ndim), integers("diff", "n", n, 1, 0)
    around = {"prepend": prepend if times else None, "input": x, "append": append if times else None}
    x = cat([tensor("diff", name, part) for name, part in around.items() if part is not None], d)
    for _ in range(min(times, x.shape[d])):
        x = sub(narrow(x, d, 1, x.shape[d] - 1), narrow(x, d, 0, x.shape[d] - 1))
    return x
