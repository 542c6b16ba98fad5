"""Sorting by reward: what the sampler says of its answers is what the trainer says of them, but for rounding."""

import json
from pathlib import Path

import numpy as np
import pytest

import tinymp as mp

pytest.importorskip("ml_dtypes")
pytest.importorskip("matplotlib")
from examples import reinforcement

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("policy", "least", "most"), [(mp.FP32, 0, 1e-5), (mp.MIXED, 1e-5, 1e-2), (mp.BF16, 1e-3, 1e-1)]
)
def test_sampler_and_trainer(policy, least, most):
    mp.manual_seed(0)
    model, rng = policy.cast(reinforcement.Sorter()), np.random.default_rng(0)
    with mp.use(policy), mp.no_grad():
        tokens, mu = reinforcement.answer(model, reinforcement.asked(rng, 6), rng)
        apart = reinforcement.log_pi(model, tokens).numpy() - mu
    assert tokens.shape == (6, 2 * reinforcement.DIGITS + 1) and mu.shape == (6, reinforcement.DIGITS)
    assert least <= abs(apart).max() < most
    right = np.c_[tokens[:, :9], np.sort(tokens[:, :8], 1)]
    assert reinforcement.reward(right).tolist() == [1] * 6 and reinforcement.reward(tokens).mean() < 0.5


def test_all_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reinforcement, "EXAMPLES", 2)
    reinforcement.main(["--seeds", "1", "--steps", "2", "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "reinforcement.json").read_text())["runs"]
    assert runs.keys() == reinforcement.RUNS.keys()
    assert runs["FP32"][0]["rewards"][0] == pytest.approx(runs["BF16"][0]["rewards"][0], abs=0.05)  # the same start
    apart = [runs[name][0]["spreads"][0] for name in ("FP32", "FP16", "BF16")]
    assert apart[0] * 100 < apart[1] < apart[2] / 4
    assert (tmp_path / "reinforcement.png").read_bytes()[
        :4
    ] == b"\x89PNG" and "| BF16, weighed |" in capsys.readouterr().out


def test_the_table_of_the_page_is_that_of_the_runs(tmp_path):
    docs = Path(reinforcement.__file__).parents[1] / "docs"
    content = json.loads((docs / "results" / "reinforcement.json").read_text("utf-8"))
    page = (docs / "reinforcement.md").read_text("utf-8")
    assert reinforcement.report(content, tmp_path) in page and content["commit"][:8] in page
    assert {len(runs) for runs in content["runs"].values()} == {3}
