"""The GPT program, tiny: what it learns, writes and audits, and how it judges."""

import json
import math

import numpy as np
import pytest

import tinymp as mp
from examples.paper import gpt_audit
from examples.paper import train_gpt as gpt

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]


@pytest.fixture
def rhyme(tmp_path, monkeypatch):
    """A text that repeats itself, for a tiny model."""
    for name, value in (("LAYERS", 1), ("WIDTH", 16), ("HEADS", 2), ("LENGTH", 8), ("WRITTEN", 30)):
        monkeypatch.setattr(gpt, name, value)
    path = tmp_path / "rhyme.txt"
    path.write_text("one two three four five\nsix seven eight nine ten\n" * 40)
    return path


def test_it_learns_and_writes_and_is_audited(rhyme, capsys):
    out = rhyme.parent / "out"
    options = ["--data", str(rhyme), "--batch", "4", "--device", "cpu", "--out", str(out)]
    runs = gpt.main([*options, "--steps", "20", "--lr", "0.02", "--audit"])
    said = capsys.readouterr().out
    assert "rhyme.txt: 1,764 characters to learn from, 196 held out, 17 different ones" in said
    for label in ("fp32", "mixed"):
        scores = runs[label]["scores"]
        assert scores["bits per character"] < 0.9 * math.log2(17)
        assert scores["perplexity"] == pytest.approx(2 ** scores["bits per character"])
        assert f"{label} writes:\n\n" in said
    kept = json.loads((out / "report.json").read_text())["runs"]
    assert kept["mixed"]["bytes"]["weights"] < 0.6 * kept["fp32"]["bytes"]["weights"]
    for what in gpt_audit.ORDER:
        assert f"| {what}" in said, what
    assert "residual stream changed nothing" in said and (out / "audit.png").exists()


def test_every_character_is_judged_once(rhyme):
    """A model that knows the frequencies alone has their cross-entropy, however the text is cut into windows."""
    task = gpt.Gpt(4, str(rhyme))

    class Frequencies:
        wte = task.model().wte

        def __call__(self, rows):
            return mp.tensor(np.broadcast_to(np.arange(20, dtype="float32") / 7, (*rows.shape, 20)).copy())

    got = task.scores(Frequencies())["bits per character"]
    n = (len(task.text.held_out) - 8 + 4 - 1) // 4 * 4
    targets = task.text.held_out[8 - 4 + 1 :][:n]
    logits = np.arange(20) / 7
    expected = np.log2(np.exp(logits).sum()) - (logits / np.log(2))[targets].mean()
    assert got == pytest.approx(expected, rel=1e-6)
