"""The CUDA twins of the activations against their definitions."""

import numpy as np
import pytest

import tinymp as mp
from oracle import distinct, randn
from tinymp import ops
from twins import channels_last, check_twin, on_device

pytestmark = pytest.mark.usefixtures("gpu")

# op, its kernels, storage roundings of a saved y that the gradient sees
CASES = [
    (ops.relu, "relu", 0),
    (lambda x: ops.leaky_relu(x, 0.2), "leaky_relu", 0),
    (ops.sigmoid, "sigmoid", 8),
    (ops.tanh, "tanh", 8),
    (lambda x: ops.hardtanh(x, -1.5, 0.7), "hardtanh", 0),
    (lambda x: ops.elu(x, 1.3), "elu", 0),
    (ops.gelu, "gelu", 0),
    (lambda x: ops.gelu(x, "tanh"), "tanh_gelu", 0),
    (ops.silu, "silu", 0),
    (ops.softplus, "softplus", 0),
    (lambda x: ops.softplus(x, 2.0, 3.0), "softplus", 0),
    (ops.logsigmoid, "logsigmoid", 0),
]
every_activation = pytest.mark.parametrize(("op", "kernel", "inherited"), CASES)


def kernels(name):
    return {f"{name}_forward", f"{name}_backward"}


@every_activation
def test_activation(op, kernel, inherited):
    check_twin(op, distinct(7, 11, step=0.15), kernels=kernels(kernel), length=8, inherited=inherited)


@every_activation
def test_extremes(op, kernel, inherited):
    """Infinities and nan come out where they do by definition."""
    x = np.array([-np.inf, -65504, -100, -20, -1e-7, -0.0, 0.0, 1e-7, 20, 100, 65504, np.inf, np.nan])
    with np.errstate(all="ignore"):
        check_twin(op, x, kernels=kernels(kernel), length=8, inherited=inherited)


# around one and two packs (8 halves, 4 floats), around what a block takes at a time (2048 halves), and none
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 7, 8, 9, 16, 17, 2047, 2048, 2061])
def test_lengths(n):
    check_twin(ops.silu, randn(n), kernels=kernels("silu"), length=8)


@pytest.mark.parametrize("start", [1, 4, 8])
@pytest.mark.parametrize("op", [ops.tanh, ops.elu])
def test_starts_between_multiples_of_16_bytes(op, start):
    """Of the input (and so of what is saved), then of the gradient."""
    names = kernels(op.__name__)
    check_twin(lambda x: op(x[start:]), randn(45), kernels=names, length=8, inherited=8)
    check_twin(lambda x: ops.cat([x[:start], op(x)]), randn(45), kernels=names, length=8, inherited=8)


def test_gelu_keeps_its_digits_in_the_left_tail():
    check_twin(ops.gelu, np.linspace(-5.5, -5, 16), kernels=kernels("gelu"), length=8, dtypes=("float32",))


@pytest.mark.parametrize("op", [ops.elu, ops.relu])  # from the input, from the output
@pytest.mark.parametrize("chwn", [False, True])
def test_layouts(op, chwn):
    check_twin(op, randn(5, 3, 2, 4), kernels=kernels(op.__name__), length=8, chwn=chwn)


def test_columns_of_a_matrix():
    check_twin(lambda x: ops.elu(x[:, 1:5]), randn(6, 7), kernels=kernels("elu"), length=8)


def test_the_layout_is_kept_and_the_gradient_follows_it():
    x = mp.Tensor(on_device(channels_last(randn(5, 3, 2, 4).astype("float16"))), requires_grad=True)
    y = ops.silu(x)
    assert y.array.strides == x.array.strides
    y.backward(on_device(randn(5, 3, 2, 4).astype("float16")))
    assert x.grad.strides == x.array.strides


def test_relu_of_every_half():
    """Bit for bit the definition's, -0 and nan included."""
    with np.errstate(invalid="ignore"):  # signalling nans among them
        x = np.arange(65536, dtype=np.uint16)[::7].view(np.float16)  # a seventh: all exponents, both signs
        y, expected = (ops.relu(mp.Tensor(a)).numpy() for a in (on_device(x), x))
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(y), nan)
    np.testing.assert_array_equal(y[~nan].view("uint16"), expected[~nan].view("uint16"))


@pytest.mark.parametrize(("op", "x"), [(ops.relu, [-1.0, 0.0, 1.0]), (ops.hardtanh, [-2.0, 1.0, 0.5])])
def test_an_infinite_gradient_stops_where_it_is_not_wanted(op, x):
    for dtype in ("float16", "float32"):
        t = mp.Tensor(on_device(np.array(x, dtype)), requires_grad=True)
        op(t).backward(on_device(np.array([np.inf, np.nan, np.inf], dtype)))
        np.testing.assert_array_equal(mp.backend.to_cpu(t.grad), [0, 0, np.inf])
