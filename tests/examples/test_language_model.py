"""The language model: what FP16 loses without a scale."""

import numpy as np
import pytest

import tinymp as mp
from examples import lstm
from examples.paper import trials

pytestmark = pytest.mark.cpu


def test_unscaled_gradients_of_a_mean_over_many_words_underflow(monkeypatch):
    """p / N below 2^-25 is 0 in FP16; times 128 it is not (MPT section 4.5)."""
    monkeypatch.setattr(lstm, "WIDTH", 16)
    monkeypatch.setattr(lstm, "DROPOUT", 0.0)
    words = np.random.default_rng(0).integers(0, 500, (8, 16))
    lost = {}
    for policy, scale in ((mp.FP32, 1), (mp.MIXED, 1), (mp.MIXED, 128)):
        mp.manual_seed(0)
        model, zeros = policy.cast(lstm.LanguageModel(500)), trials.Zeros()
        with mp.no_grad():
            model.output.bias[0] = 14.0  # leaves about e^-14 to each other word; here N = 128
        loss, _ = lstm.loss_of(model, words, words, None)
        with mp.observe(zeros):
            (loss * scale).backward()
        lost[policy.name, scale] = zeros.zeros / zeros.values
    assert lost["FP32", 1] < 0.01 and lost["MIXED", 1] > 0.3 and lost["MIXED", 128] < 0.01
