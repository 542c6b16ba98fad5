"""Booleans and numbers among the arguments of ops and layers: what is neither is refused, by name."""

import inspect

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops

X, IMAGE, INDEX = mp.tensor(np.ones((2, 3), "float32")), mp.tensor(np.ones((1, 2, 4, 4), "float32")), mp.tensor([0, 1])
W = mp.tensor(np.ones((8, 2), "float32"))
SEQUENCE = mp.tensor(np.ones((3, 1, 2), "float32"))
NOT_SUPPORTED = {"inplace", "scale_grad_by_freq", "sparse_grad", "antialias"}  # `refuse` sees to these

# the positional arguments beside which a flag of the function is looked at
CALLS = {
    **dict.fromkeys(("all", "any", "amax", "amin", "mean", "sum", "argmax", "argmin", "zeros_like", "ones_like"), (X,)),
    **dict.fromkeys(("max", "min", "logsumexp", "var", "std"), (X, 0)),
    **dict.fromkeys(("zeros", "ones", "arange"), (2,)),
    "full": (2, 1.0),
    "full_like": (X, 1.0),
    "dropout": (X,),
    "batch_norm": (X, mp.tensor(np.zeros(3, "float32")), mp.tensor(np.ones(3, "float32"))),
    "avg_pool2d": (IMAGE, 2),
    "max_pool2d": (IMAGE, 2),
    "interpolate": (IMAGE, 2),
    "embedding": (INDEX, X),
    "lstm_layer": (SEQUENCE, None, W, W),
    "gru_layer": (SEQUENCE, None, W[:6], W[:6]),
    "embedding_bag": (INDEX, X, mp.tensor([0])),
    "instance_norm": (IMAGE, mp.tensor(np.zeros(2, "float32")), mp.tensor(np.ones(2, "float32"))),
}
LAYERS = {
    "AvgPool2d": (2,), "BatchNorm1d": (3,), "BatchNorm2d": (3,), "Conv1d": (2, 2, 1), "Conv2d": (2, 2, 1),
    "ConvTranspose2d": (2, 2, 1), "Embedding": (3, 2), "EmbeddingBag": (3, 2), "GRU": (2, 2), "GRUCell": (2, 2),
    "GroupNorm": (1, 3), "InstanceNorm1d": (3,), "InstanceNorm2d": (3,), "LSTM": (2, 2), "LSTMCell": (2, 2),
    "LayerNorm": (3,), "Linear": (2, 2), "MaxPool2d": (2,), "MultiheadAttention": (4, 2), "RMSNorm": (3,),
}  # fmt: skip


def flags(names, home):
    """(name, argument) for every argument of these that is annotated as a bool."""
    return [
        (name, p.name)
        for name in names
        for p in inspect.signature(getattr(home, name)).parameters.values()
        if str(p.annotation).startswith("bool") and p.name not in NOT_SUPPORTED
    ]


@pytest.mark.parametrize("value", ["False", 0.5, 1, (), np.ones(2)], ids=repr)
@pytest.mark.parametrize(("name", "argument"), flags(CALLS, ops))
def test_a_flag_of_an_op_is_true_or_false(name, argument, value):
    with pytest.raises(TypeError, match=f"{name}: expected `{argument}` to be True or False, got"):
        getattr(ops, name)(*CALLS[name], **{argument: value})
    getattr(ops, name)(
        *CALLS[name], **{argument: np.bool_(False)} | ({"mode": "bilinear"} if name == "interpolate" else {})
    )


@pytest.mark.parametrize("value", ["False", 0.5, 1])
@pytest.mark.parametrize(("name", "argument"), flags(LAYERS, nn))
def test_a_flag_of_a_layer_is_true_or_false(name, argument, value):
    with pytest.raises(TypeError, match=f"{name}: expected `{argument}` to be True or False, got {value!r}"):
        getattr(nn, name)(*LAYERS[name], **{argument: value})
    getattr(nn, name)(*LAYERS[name], **{argument: False})


NUMBERS = [
    (lambda v: ops.batch_norm(*CALLS["batch_norm"], eps=v), "batch_norm", "eps", -1),
    (lambda v: ops.batch_norm(X, None, None, training=True, momentum=v), "batch_norm", "momentum", 5),
    (lambda v: ops.group_norm(IMAGE, 2, eps=v), "group_norm", "eps", -1),
    (lambda v: ops.rms_norm(X, 3, eps=v), "rms_norm", "eps", -1),
    (lambda v: ops.instance_norm(IMAGE, eps=v), "instance_norm", "eps", -1),
    (lambda v: ops.instance_norm(IMAGE, momentum=v), "instance_norm", "momentum", 5),
    (lambda v: ops.layer_norm(X, 3, eps=v), "layer_norm", "eps", -1e-5),
    (lambda v: ops.local_response_norm(IMAGE, 2, alpha=v), "local_response_norm", "alpha", float("inf")),
    (lambda v: ops.normalize(X, eps=v), "normalize", "eps", -1),
    (lambda v: ops.dropout(X, v), "dropout", "p", 1.5),
    (lambda v: ops.elu(X, v), "elu", "alpha", float("inf")),
    (lambda v: ops.leaky_relu(X, v), "leaky_relu", "negative_slope", 10**400),
    (lambda v: ops.softplus(X, v), "softplus", "beta", float("inf")),
    (lambda v: ops.softplus(X, 1, v), "softplus", "threshold", float("inf")),
    (lambda v: nn.GroupNorm(1, 3, eps=v), "GroupNorm", "eps", -1),
    (lambda v: nn.RMSNorm(3, eps=v), "RMSNorm", "eps", -1),
    (lambda v: nn.PReLU(1, v), "PReLU", "init", float("inf")),
    (lambda v: nn.BatchNorm1d(3, eps=v), "BatchNorm1d", "eps", -1),
    (lambda v: nn.BatchNorm2d(3, momentum=v), "BatchNorm2d", "momentum", 5),
    (lambda v: nn.LayerNorm(3, eps=v), "LayerNorm", "eps", -1),
    (lambda v: nn.Dropout(v), "Dropout", "p", -1),
    (lambda v: nn.MultiheadAttention(4, 2, v), "MultiheadAttention", "dropout", 2),
    (lambda v: nn.LSTM(2, 2, 2, dropout=v), "LSTM", "dropout", 2),
]


@pytest.mark.parametrize(("call", "name", "argument", "beyond"), NUMBERS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_number_is_one_and_in_its_range(call, name, argument, beyond):
    for value in ("0.1", [0.1], True, 1j):
        with pytest.raises(TypeError, match=f"{name}: expected `{argument}` to be a number"):
            call(value)
    for value in (beyond, float("nan")):
        with pytest.raises(ValueError, match=f"{name}: expected `{argument}` to be "):
            call(value)
    call(np.float32(1))
