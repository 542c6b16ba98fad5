"""Booleans and numbers among the arguments of ops and layers: what is neither is refused, by name."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops

X, IMAGE = mp.tensor(np.ones((2, 3), "float32")), mp.tensor(np.ones((1, 2, 4, 4), "float32"))
FLAGS = [
    (lambda v: ops.sum(X, 0, v), "sum", "keepdim"),
    (lambda v: ops.zeros(2, requires_grad=v), "zeros", "requires_grad"),
    (lambda v: ops.dropout(X, 0.5, v), "dropout", "training"),
    (lambda v: ops.max_pool2d(IMAGE, 2, ceil_mode=v), "max_pool2d", "ceil_mode"),
    (lambda v: nn.Conv2d(2, 2, 1, bias=v), "Conv2d", "bias"),
    (lambda v: nn.BatchNorm1d(3, affine=v), "BatchNorm1d", "affine"),
    (lambda v: nn.LSTM(2, 2, bidirectional=v), "LSTM", "bidirectional"),
]
NUMBERS = [
    (lambda v: ops.batch_norm(X, None, None, training=True, momentum=v), "batch_norm", "momentum", 5),
    (lambda v: ops.batch_norm(X, None, None, training=True, eps=v), "batch_norm", "eps", -1),
    (lambda v: ops.dropout(X, v), "dropout", "p", 1.5),
    (lambda v: ops.leaky_relu(X, v), "leaky_relu", "negative_slope", 10**400),
    (lambda v: nn.BatchNorm2d(3, momentum=v), "BatchNorm2d", "momentum", 5),
    (lambda v: nn.BatchNorm1d(3, eps=v), "BatchNorm1d", "eps", -1),
    (lambda v: nn.Dropout(v), "Dropout", "p", -1),
    (lambda v: nn.LSTM(2, 2, 2, dropout=v), "LSTM", "dropout", 2),
]
by_name = {"ids": lambda v: v if isinstance(v, str) else ""}


@pytest.mark.parametrize(("call", "name", "argument"), FLAGS, **by_name)
def test_a_flag_is_true_or_false(call, name, argument):
    for value in ("False", 0.5, 1, (), np.ones(2)):
        with pytest.raises(TypeError, match=f"{name}: expected `{argument}` to be True or False, got"):
            call(value)
    call(np.bool_(False))


@pytest.mark.parametrize(("call", "name", "argument", "beyond"), NUMBERS, **by_name)
def test_a_number_is_one_and_in_its_range(call, name, argument, beyond):
    for value in ("0.1", [0.1], True, 1j):
        with pytest.raises(TypeError, match=f"{name}: expected `{argument}` to be a number"):
            call(value)
    for value in (beyond, float("nan")):
        with pytest.raises(ValueError, match=f"{name}: expected `{argument}` to be "):
            call(value)
    call(np.float32(1))
