"""The GPT program, tiny: what it learns, writes and audits, and how it judges."""

import json
import math

import pytest

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
