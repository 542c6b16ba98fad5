"""Layers: PyTorch's constructors and state, and the op they call with what they were given."""

import numpy as np
import pytest

import tinymp as mp
from layers_of import constructor_is_pytorchs, forward_is, function
from oracle import host
from tinymp import nn, ops

SIGNATURES = {  # see `layers_of.constructor_is_pytorchs`
    "Linear": "in_features out_features bias ~device ~dtype",
    "Conv2d": "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode ~device ~dtype",
    "ConvTranspose2d": "in_channels out_channels kernel_size stride padding output_padding groups bias dilation "
    "padding_mode ~device ~dtype",
    "BatchNorm1d": "num_features eps momentum affine track_running_stats ~device ~dtype bias",
    "BatchNorm2d": "num_features eps momentum affine track_running_stats ~device ~dtype bias",
    "Embedding": "num_embeddings embedding_dim padding_idx ~max_norm ~norm_type ~scale_grad_by_freq "
    "sparse ~device ~dtype",
    "MaxPool2d": "kernel_size stride padding dilation return_indices ceil_mode",
    "ReLU": "~inplace",
    "LeakyReLU": "negative_slope ~inplace",
    "Sigmoid": "",
    "Tanh": "",
    "Dropout": "p ~inplace",
    "Flatten": "start_dim end_dim",
    "LSTM": "input_size hidden_size num_layers bias batch_first dropout bidirectional proj_size ~device ~dtype",
    "GRU": "input_size hidden_size num_layers bias batch_first dropout bidirectional ~device ~dtype",
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_constructors_are_pytorchs(name):
    pytest.importorskip("tinymp.ops.more.errors")  # what has errors begin with the name that was called
    constructor_is_pytorchs(name, SIGNATURES[name])


IMAGES = (2, 4, 6, 6)
# layer, input shape, the op that it must equal
FORWARD = [
    (lambda: nn.Linear(5, 3), (2, 5), lambda m, x: ops.linear(x, m.weight, m.bias)),
    (lambda: nn.Linear(5, 3, bias=False), (2, 4, 5), lambda m, x: ops.linear(x, m.weight)),
    (lambda: nn.Conv2d(4, 2, (3, 1), 2, (1, 0), 1), IMAGES, lambda m, x: ops.conv2d(x, m.weight, m.bias, 2, (1, 0))),
    (lambda: nn.Conv2d(4, 2, 3, padding="same", dilation=2, bias=False), IMAGES,
     lambda m, x: ops.conv2d(x, m.weight, None, padding="same", dilation=2)),
    (lambda: nn.ConvTranspose2d(4, 2, 3, 2, 1, 1, 2, True, 1), IMAGES,
     lambda m, x: ops.conv_transpose2d(x, m.weight, m.bias, 2, 1, 1, 2, 1)),
    (lambda: nn.MaxPool2d(3, 2, 1, 1, False, True), IMAGES, function("max_pool2d", 3, 2, 1, ceil_mode=True)),
    (lambda: nn.ReLU(), (3, 4), function("relu")),
    (lambda: nn.LeakyReLU(0.3), (3, 4), function("leaky_relu", 0.3)),
    (lambda: nn.Sigmoid(), (3, 4), function("sigmoid")),
    (lambda: nn.Tanh(), (3, 4), function("tanh")),
    (lambda: nn.Dropout(0.5).eval(), (3, 4), lambda m, x: x),
    (lambda: nn.Flatten(), IMAGES, lambda m, x: x.reshape(2, -1)),
]  # fmt: skip


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED])
@pytest.mark.parametrize(("build", "shape", "expected"), FORWARD, ids=[type(c[0]()).__name__ for c in FORWARD])
def test_forward_is_the_op(build, shape, expected, policy):
    forward_is(build, shape, expected, policy)


def test_embedding():
    mp.manual_seed(0)
    m = mp.MIXED.cast(nn.Embedding(5, 3, padding_idx=-1))
    assert m.padding_idx == 4
    assert not m.weight.array[4].any()
    assert not m.weight.master[4].any()
    assert m.weight.array[:4].all()
    y = m(mp.tensor([[0, 4], [4, 2]]))
    np.testing.assert_array_equal(y.numpy(), host(m.weight.array)[[[0, 4], [4, 2]]])
    y.sum().backward()
    assert m.weight.grad[:, 0].tolist() == [1, 0, 1, 0, 0]
