"""relu6, hardswish, mish, prelu, glu: against their formulas and at the edges."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn
from tinymp import ops

INF, NAN = float("inf"), float("nan")
EDGES = np.array([-INF, -65504, -20, -3, -0.0, 0.0, 3, 6, 20, 65504, INF, NAN])


def hardswish(x):
    return x * np.clip(x + 3, 0, 6) / 6


def mish(x):
    return x * np.tanh(np.log1p(np.exp(x)))


@pytest.mark.parametrize("shape", [(6, 40), (), (0, 2)])
@pytest.mark.parametrize(
    ("op", "oracle"), [(ops.relu6, lambda x: np.clip(x, 0, 6)), (ops.hardswish, hardswish), (ops.mish, mish)]
)
def test_against_the_formula(op, oracle, shape):
    check(op, oracle, distinct(*shape, step=0.0703125), length=4)  # no value at a kink, -3, 0, 3 or 6


def test_edges():
    x = mp.tensor(EDGES.astype("float32"))
    assert ops.relu6(x).tolist()[:-1] == [0, 0, 0, 0, 0, 0, 3, 6, 6, 6, 6]
    assert ops.hardswish(x).tolist()[:-1] == [0, 0, 0, 0, 0, 0, 3, 6, 20, 65504, INF]
    assert ops.mish(x).tolist()[8:-1] == [20, 65504, INF]
    assert all(np.isnan(f(x).numpy()[-1]) for f in (ops.relu6, ops.hardswish, ops.mish))


def test_mish_keeps_its_digits_in_the_left_tail():
    x = np.array([-30.0, -16.0, -8.0], "float32")
    np.testing.assert_allclose(ops.mish(mp.tensor(x)).numpy(), mish(x.astype("float64")), rtol=1e-6)


SIZES = [((3, 4, 5), (4,)), ((3, 4), (1,)), ((3, 4), ()), ((5,), (1,)), ((), ())]


@pytest.mark.parametrize(("shape", "weights"), SIZES)
def test_prelu(shape, weights):
    def oracle(x, w):
        return np.where(x > 0, x, x * (w.reshape(1, -1, *[1] * (x.ndim - 2)) if w.size > 1 else w.reshape(())))

    check(ops.prelu, oracle, distinct(*shape), randn(*weights, seed=2), grad_length=60)


def test_prelu_at_zero_and_infinity():
    x, w = (mp.tensor(v, requires_grad=True) for v in ([0.0, INF, -2.0], [0.25]))
    y = ops.prelu(x, w)
    assert y.tolist() == [0, INF, -0.5]
    y.sum().backward()
    assert host(x.grad).tolist() == [0.25, 1, 0.25] and host(w.grad).tolist() == [-2]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu(dim):
    def oracle(x):
        a, b = np.split(x, 2, dim)
        return a / (1 + np.exp(-b))

    check(lambda x: ops.glu(x, dim), oracle, randn(2, 4, 6), roundings=2, inherited=2)


def test_refused():
    with pytest.raises(ValueError, match="prelu: expected `weight` to have 1 element or 4"):
        ops.prelu(mp.tensor(randn(3, 4)), mp.tensor(randn(3)))
    for op in (ops.relu6, ops.hardswish, ops.mish):
        with pytest.raises(TypeError, match=r"argument .inplace."):
            op(mp.tensor([1.0]), inplace=True)
