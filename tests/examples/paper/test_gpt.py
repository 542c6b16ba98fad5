"""GPT: it starts as GPT-2 does, and is causal."""

import math

import numpy as np
import pytest

import tinymp as mp
from examples import paper as models
from oracle import host
from tinymp import ops

FP64 = mp.Policy("FP64", storage="float64")
V, P = 11, 16


def small(policy=FP64, **options):
    mp.manual_seed(0)
    return policy.cast(models.GPT(V, P, 8, 2, 2, **options))


def tokens(*shape, seed=0):
    return mp.tensor(np.random.default_rng(seed).integers(0, V, shape))


def loss_of(model, x, y):
    return ops.cross_entropy(model(x).flatten(0, 1), y.flatten())


def test_starts_as_gpt_2():
    mp.manual_seed(0)
    model = models.GPT(200, 100, 64, 8, 4)
    spread = {name: float(host(p.array).std()) for name, p in model.named_parameters()}
    for name, expected in (("wte.weight", 0.02), ("wpe.weight", 0.01), ("h.3.self_attn.in_proj_weight", 0.02)):
        assert spread[name] == pytest.approx(expected, rel=0.05)
    for name in ("h.0.self_attn.out_proj.weight", "h.7.linear2.weight"):
        assert spread[name] == pytest.approx(0.02 / 4, rel=0.05)
    loss = loss_of(model, tokens(4, 50), tokens(4, 50, seed=1)).item()
    assert loss == pytest.approx(math.log(200), rel=0.01)  # it knows nothing
    assert "lm_head.weight" not in model.state_dict()


def test_the_past_does_not_see_the_future():
    model, x = small().eval(), host(tokens(2, 9).array)
    y = model(mp.tensor(x)).numpy()
    x[:, 5:] = (x[:, 5:] + 1) % V
    other = model(mp.tensor(x)).numpy()
    np.testing.assert_array_equal(other[:, :5], y[:, :5])
    assert (np.abs(other[:, 5:] - y[:, 5:]).max(-1) > 1e-6).all()


def test_generating_is_as_reading_all_of_it_again():
    """Also of more than P tokens: it goes on from the last."""
    model, start = small().eval(), tokens(2, 3)
    x = start
    for _ in range(20):
        x = ops.cat([x, model(x[:, -P:]).argmax(-1)[:, -1:]], 1)
    np.testing.assert_array_equal(model.generate(start, 20, temperature=0).numpy(), x.numpy())
