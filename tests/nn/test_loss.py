"""Losses as modules: each is its op with what the constructor was given."""

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import nn, ops

X = randn(6, 4)
CLASSES = np.array([0, 3, 1, 1, 2, 0])
TARGETS = randn(6, 4, seed=1)
BITS = (randn(6, 4, seed=2) > 0) * 1.0
WEIGHT = np.array([0.5, 1.0, 2.0, 3.0])


def tensor(x):
    return mp.tensor(x if x.dtype.kind == "i" else x.astype("float32"))


W = tensor(WEIGHT)
CASES = [
    (nn.CrossEntropyLoss(), "cross_entropy", X, CLASSES, {}),
    (nn.CrossEntropyLoss(W, None, 1, None, "sum", 0.1), "cross_entropy", X, CLASSES,
     {"weight": W, "ignore_index": 1, "reduction": "sum", "label_smoothing": 0.1}),
    (nn.NLLLoss(W, None, 3, None, "none"), "nll_loss", X, CLASSES,
     {"weight": W, "ignore_index": 3, "reduction": "none"}),
    (nn.MSELoss(reduction="sum"), "mse_loss", X, TARGETS, {"reduction": "sum"}),
    (nn.L1Loss(reduction="none"), "l1_loss", X, TARGETS, {"reduction": "none"}),
    (nn.SmoothL1Loss(beta=0.5), "smooth_l1_loss", X, TARGETS, {"beta": 0.5}),
    (nn.HuberLoss("sum", 0.5), "huber_loss", X, TARGETS, {"reduction": "sum", "delta": 0.5}),
    (nn.BCEWithLogitsLoss(W, None, None, "none", W), "binary_cross_entropy_with_logits", X, BITS,
     {"weight": W, "reduction": "none", "pos_weight": W}),
    (nn.BCELoss(W), "binary_cross_entropy", abs(np.tanh(X)), BITS, {"weight": W}),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "op", "input", "target", "options"), CASES)
def test_forward_is_the_op(loss, op, input, target, options):
    x, t = tensor(input), tensor(target)
    np.testing.assert_array_equal(loss(x, t).data, getattr(ops, op)(x, t, **options).data)


def test_class_weights_follow_the_policy_and_the_loss_stays_fp32():
    loss = mp.MIXED.cast(nn.CrossEntropyLoss(W))
    assert loss.weight.dtype == "float16"
    assert list(loss.parameters()) == []
    assert loss(tensor(X).half(), tensor(CLASSES)).dtype == "float32"
    for uncast in (nn.CrossEntropyLoss(W), nn.NLLLoss(W)):  # the criterion is seldom part of the model that is cast
        assert uncast(tensor(X).half(), tensor(CLASSES)).dtype == "float32"
