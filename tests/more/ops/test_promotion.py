"""Integers and truths become float32 where PyTorch makes them so, and are refused where it refuses them."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host
from tinymp import ops

torch = pytest.importorskip("torch")
NAMES = "exp log sqrt rsqrt reciprocal sin cos sigmoid tanh"


@pytest.mark.parametrize("name", NAMES.split())
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_integers_become_float32(name, dtype):
    x = np.array([[1, 0, 3], [0, 1, 1]]).astype(dtype)
    y, expected = getattr(ops, name)(mp.tensor(x)), getattr(torch, name)(torch.from_numpy(x))
    assert str(y.dtype) == "float32" == str(expected.dtype)[6:] and y.shape == x.shape
    # both round in FP32: 4 units in the last place of each
    np.testing.assert_allclose(host(y), expected.numpy(), rtol=8 * 2.0**-24)


@pytest.mark.parametrize("name", ["silu", "mish", "hardswish", "logsigmoid", "gelu", "elu"])
def test_those_that_pytorch_refuses_are_refused(name):
    with pytest.raises((RuntimeError, NotImplementedError)):
        getattr(torch.nn.functional, name)(torch.tensor([1]))
    with pytest.raises(TypeError, match=f"{name}: expected `input` to be floating, got int64"):
        getattr(ops, name)(mp.tensor([1]))


def test_a_negative_constant_is_pointed_to_minus_infinity():
    for value, sign in ((-1e9, "-"), (1e9, "")):
        with pytest.raises(ValueError, match=rf"use float\('{sign}inf'\)"):
            ops.masked_fill(mp.ones(2, dtype="float16"), mp.tensor([True, False]), value)
