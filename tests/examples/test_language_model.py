"""The language model on a made-up text: what it prints and writes, and what FP16 loses without a scale."""

import json

import numpy as np
import pytest

import tinymp as mp
from examples import lstm, measure
from examples.paper import language_model, trials

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]  # the program chooses its device itself


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(lstm, "WIDTH", 16)
    monkeypatch.setattr(lstm, "DROPOUT", 0.0)
    monkeypatch.setattr(language_model, "ROWS", 8)


def test_report(tmp_path, capsys):
    """Of sentences whose last word follows from the first."""
    rng = np.random.default_rng(0)
    names, tails = ["ann", "bob", "cid", "dot"], ["apple", "bread", "cake", "dates"]
    path, out = tmp_path / "novel.txt", tmp_path / "out"
    path.write_text("\n\n".join(f"{names[i]} the {tails[i]}" for i in rng.integers(0, 4, 300)), "utf-8")
    language_model.main(["--data", str(path), "--out", str(out), "--batch", "4", "--steps", "12"])
    printed = capsys.readouterr().out
    for row in ("held-out perplexity", "gradients that are 0", "columns per second", *measure.ROLES, "steps skipped"):
        assert row in printed
    assert "novel.txt: 1,079 words to learn from, 120 held out, " in printed
    runs = json.loads((out / "report.json").read_text())["runs"]
    for one in runs.values():
        assert len(one["curve"]) == 12 and 1 < one["held-out perplexity"] < 40
        assert sum(one["gradient_exponents"]) + one["zero_gradients"] > 0
    assert runs["mixed"]["curve"][0] == pytest.approx(runs["fp32"]["curve"][0], rel=1e-3)
    assert runs["mixed"]["bytes"]["masters"] == runs["fp32"]["bytes"]["weights"]


def test_unscaled_gradients_of_a_mean_over_many_words_underflow():
    """p / N below 2^-25 is 0 in FP16; times 128 it is not (MPT section 4.5)."""
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
