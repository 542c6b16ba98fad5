"""The checker is checked: it accepts what is right and rejects what is slightly wrong."""

import pytest

from oracle import check, randn
from tinymp.autograd import Op
from tinymp.precision import POINTWISE, store, widen


class Cube(Op):
    """y = x^3 (1 + forward_error);  dx = 3 x^2 dy (1 + error)."""

    kind = POINTWISE

    def forward(self, x, *, error, forward_error):
        self.save(x)
        self.error = error
        return store(widen(x) ** 3 * (1 + forward_error), like=x)

    def backward(self, dy):
        (x,) = self.saved
        return store(3 * widen(x) ** 2 * widen(dy) * (1 + self.error), like=dy)


def cube(error=0.0, forward_error=0.0):
    return lambda x: Cube.apply(x, error=error, forward_error=forward_error)


def test_rejects_a_gradient_wrong_by_a_thousandth():
    with pytest.raises(AssertionError, match="gradient along a random direction"):
        check(cube(1e-3), lambda x: x**3, randn(4, 5))


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-12), ("float32", 1e-5), ("float16", 4e-3)])
def test_rejects_a_wrong_value_in_each_dtype(dtype, error):
    def op(x):
        return cube(forward_error=error if x.dtype == dtype else 0.0)(x)

    with pytest.raises(AssertionError, match=f"{dtype} forward"):
        check(op, lambda x: x**3, randn(4, 5))
