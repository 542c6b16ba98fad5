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


CASES = [  # how to build it from class weights, the op, and what the op is given (arrays become tensors)
    (lambda w: nn.CrossEntropyLoss(), "cross_entropy", X, CLASSES, {}),
    (lambda w: nn.CrossEntropyLoss(w, ignore_index=1, reduction="sum", label_smoothing=0.1), "cross_entropy", X,
     CLASSES,
     {"weight": WEIGHT, "ignore_index": 1, "reduction": "sum", "label_smoothing": 0.1}),
    (lambda w: nn.NLLLoss(w, ignore_index=3, reduction="none"), "nll_loss", X, CLASSES,
     {"weight": WEIGHT, "ignore_index": 3, "reduction": "none"}),
    (lambda w: nn.MSELoss(reduction="sum"), "mse_loss", X, TARGETS, {"reduction": "sum"}),
    (lambda w: nn.L1Loss(reduction="none"), "l1_loss", X, TARGETS, {"reduction": "none"}),
    (lambda w: nn.SmoothL1Loss(beta=0.5), "smooth_l1_loss", X, TARGETS, {"beta": 0.5}),
    (lambda w: nn.HuberLoss("sum", 0.5), "huber_loss", X, TARGETS, {"reduction": "sum", "delta": 0.5}),
    (lambda w: nn.BCEWithLogitsLoss(w, reduction="none", pos_weight=w), "binary_cross_entropy_with_logits", X, BITS,
     {"weight": WEIGHT, "reduction": "none", "pos_weight": WEIGHT}),
    (lambda w: nn.BCELoss(w), "binary_cross_entropy", abs(np.tanh(X)), BITS, {"weight": WEIGHT}),
]  # fmt: skip


@pytest.mark.parametrize(("build", "op", "input", "target", "options"), CASES)
def test_forward_is_the_op(build, op, input, target, options):
    loss, x, t = build(tensor(WEIGHT)), tensor(input), tensor(target)
    options = {name: tensor(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    np.testing.assert_array_equal(loss(x, t).numpy(), getattr(ops, op)(x, t, **options).numpy())


def test_class_weights_follow_the_policy_and_the_loss_stays_fp32():
    weight = tensor(WEIGHT)
    loss = mp.MIXED.cast(nn.CrossEntropyLoss(weight))
    assert loss.weight.dtype == "float16"
    assert list(loss.parameters()) == []
    assert loss(tensor(X).half(), tensor(CLASSES)).dtype == "float32"
    for kind in (nn.CrossEntropyLoss, nn.NLLLoss):  # the criterion is seldom part of the model that is cast
        assert kind(weight)(tensor(X).half(), tensor(CLASSES)).dtype == "float32"
