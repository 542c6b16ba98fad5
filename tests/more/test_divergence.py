"""kl_div: against its formula, in FP32 for FP16 inputs, with zeros among the targets."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops

REDUCE = {"none": lambda x: x, "sum": np.sum, "mean": np.mean, "batchmean": lambda x: x.sum() / len(x)}


@pytest.mark.parametrize("reduction", REDUCE)
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(log_target, reduction):
    def oracle(x, t):
        terms = np.exp(t) * (t - x) if log_target else t * (np.log(t) - x)
        return REDUCE[reduction](terms)

    x, t = randn(4, 5), randn(4, 5, seed=1)
    check(
        lambda x, t: ops.kl_div(x, t, reduction=reduction, log_target=log_target),
        oracle,
        x,
        t if log_target else np.abs(t) + 0.25,
        length=24,
        roundings=3,
        magnitude=100.0,
        grad_length=48,
        result="float32",
    )


def test_targets_of_zero_count_nothing():
    x, t = (mp.tensor(v, requires_grad=True) for v in ([[-1.0, -np.inf]], [[1.0, 0.0]]))
    loss = ops.kl_div(x, t, reduction="sum")
    assert loss.item() == 1
    loss.backward()
    assert host(x.grad).tolist() == [[-1, 0]] and np.isfinite(host(t.grad)).all()
