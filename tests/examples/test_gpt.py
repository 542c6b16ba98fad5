"""The GPT program, tiny: what it prints and writes, how it judges, and what it refuses."""

import json
import math
import re

import numpy as np
import pytest

import tinymp as mp
from examples.paper import gpt_audit
from examples.paper import train_gpt as gpt
from tinymp.audit.listener import Place

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    for name, value in (("LAYERS", 1), ("WIDTH", 16), ("HEADS", 2), ("LENGTH", 8), ("WRITTEN", 30)):
        monkeypatch.setattr(gpt, name, value)


@pytest.fixture
def rhyme(tmp_path):
    """A text that repeats itself."""
    path = tmp_path / "rhyme.txt"
    path.write_text("one two three four five\nsix seven eight nine ten\n" * 40)
    return path


def options(rhyme, *more):
    return [
        "--data",
        str(rhyme),
        "--batch",
        "4",
        "--device",
        "cpu",
        "--out",
        str(rhyme.parent / "out"),
        *map(str, more),
    ]


def test_learns_and_writes(rhyme, capsys):
    runs = gpt.main(options(rhyme, "--steps", 60, "--lr", 0.02))
    said = capsys.readouterr().out
    assert "rhyme.txt: 1,764 characters to learn from, 196 held out, 17 different ones" in said
    for label in ("fp32", "mixed"):
        scores = runs[label]["scores"]
        assert scores["bits per character"] < 0.6 * math.log2(17)
        assert scores["perplexity"] == pytest.approx(2 ** scores["bits per character"])
        assert f"{label} writes:\n\n" in said
    kept = json.loads((rhyme.parent / "out" / "report.json").read_text())
    assert set(kept["runs"]) == {"fp32", "mixed"}
    assert kept["runs"]["mixed"]["bytes"]["weights"] < 0.6 * kept["runs"]["fp32"]["bytes"]["weights"]
    assert (rhyme.parent / "out" / "report.png").exists()


@pytest.mark.parametrize("length", [1, 7, 8])
def test_every_character_is_judged_once(rhyme, length, monkeypatch):
    """A model that knows the frequencies alone has their cross-entropy, however the text is cut into windows."""
    monkeypatch.setattr(gpt, "LENGTH", length)
    task = gpt.Gpt(4, str(rhyme))
    seen = []

    class Frequencies:
        wte = task.model().wte

        def __call__(self, rows):
            seen.append(rows.numpy())
            return mp.tensor(np.broadcast_to(np.arange(20, dtype="float32") / 7, (*rows.shape, 20)).copy())

    got = task.scores(Frequencies())["bits per character"]
    new = (length + 1) // 2
    n = (len(task.text.held_out) - length + new - 1) // new * new
    targets = task.text.held_out[length - new + 1 :][:n]
    logits = np.arange(20) / 7
    expected = np.log2(np.exp(logits).sum()) - (logits / np.log(2))[targets].mean()
    assert got == pytest.approx(expected, rel=1e-6)


def test_batches_follow_the_seed(rhyme):
    task = gpt.Gpt(4, str(rhyme))
    a, b, c = (next(task.batches(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a[0] != c[0]).any()
    np.testing.assert_array_equal(a[0][:, 1:], a[1][:, :-1])


def test_audit(rhyme, capsys, monkeypatch):
    monkeypatch.setattr(gpt, "LAYERS", 2)
    gpt.main(options(rhyme, "--steps", 3, "--audit"))
    said = capsys.readouterr().out
    for what in gpt_audit.ORDER:
        blocks = {line.split("|")[1].split(", ")[-1].strip() for line in said.splitlines() if f"| {what}" in line}
        assert {"block 0", "block 1"} <= blocks or what == "gradients of logits", what
    assert re.search(r"\| FP32 \| 3\.\d+ \| 0.00% \|", said)
    assert "residual stream changed nothing" in said
    assert (rhyme.parent / "out" / "audit.png").exists()


def test_what_became_of_values():
    values = gpt_audit.Values()
    x = np.array([0, 1, -2, 2.0**-15, -(2.0**-26), 2.0**-60], "float32")
    values.add(x, x.astype("float16"))
    assert (values.n, values.zero, values.subnormal, values.largest) == (5, 2, 1, 2)
    at = {e: values.exponents[e - gpt_audit.FIRST] for e in (0, 1, -15, -26, gpt_audit.FIRST)}
    assert at == {0: 1, 1: 1, -15: 1, -26: 1, gpt_audit.FIRST: 1}
    assert values.exponents.sum() == 5


def test_scores_are_those_that_are_seen():
    watched, (q, k) = gpt_audit.Watched(3), np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float16")
    place = Place("gpt.h.1.self_attn", gpt_audit.ATTENTION, "forward", None, "", "")
    watched.product(place, q, k.T, "float32")
    watched.product(place, np.zeros((3, 3), "float16"), k, "float32")  # weights and values: others
    scores = watched.found["scores (not stored)", 1]
    expected = np.tril(q.astype(float) @ k.T.astype(float)) / 2
    assert scores.n == 6
    assert scores.largest == pytest.approx(np.abs(expected).max(), rel=1e-3)


def test_refused(rhyme, capsys, monkeypatch):
    for length, data, message in (
        (500, rhyme, "expected more than 500 characters to be judged by, got 196"),
        (8, "nowhere.txt", "nowhere.txt"),
    ):
        monkeypatch.setattr(gpt, "LENGTH", length)
        with pytest.raises(SystemExit):
            gpt.main(options(rhyme, "--data", data))
        assert message in capsys.readouterr().err
