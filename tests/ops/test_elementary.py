"""sin, cos, sign: against their formulas, at the edges, and their CUDA twins."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, randn
from tinymp import ops
from twins import check_twin

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


@pytest.mark.parametrize("op", [ops.sin, ops.cos, ops.sign])
def test_twin(gpu, op):
    names = {f"{op.__name__}_forward", f"{op.__name__}_backward"}
    check_twin(op, distinct(7, 11, step=0.15), kernels=names, length=8)
    check_twin(op, randn(2061), kernels=names, length=8)


def test_refused():
    with pytest.raises(TypeError, match="cos: argument `out` is not supported"):
        ops.cos(mp.tensor([1.0]), out=mp.tensor([1.0]))
