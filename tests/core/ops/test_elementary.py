"""sin, cos, sign: against their formulas and at the edges."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct
from tinymp import ops

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
@pytest.mark.parametrize(("op", "oracle"), [(ops.sin, np.sin), (ops.cos, np.cos), (ops.sign, np.sign)])
def test_against_the_formula(op, oracle, shape):
    check(op, oracle, distinct(*shape, step=0.25))


def test_sign_at_the_edges():
    x = mp.tensor(np.array([-INF, -1e-7, -0.0, 0.0, 2.0**-24, INF, NAN], "float16"), requires_grad=True)
    y = ops.sign(x)
    assert y.tolist() == [-1, -1, 0, 0, 1, 1, 0]
    y.sum().backward()
    assert not x.grad.any()
    assert mp.tensor([-3, 0, 7]).sign().tolist() == [-1, 0, 1]


def test_refused():
    with pytest.raises(TypeError, match=r"cos.*argument .out."):
        ops.cos(mp.tensor([1.0]), out=mp.tensor([1.0]))
