"""What the programs share, with a small task: tables, files, and what is refused."""

import json
from typing import ClassVar

import numpy as np
import pytest

import tinymp as mp
from examples import measure
from examples.paper import program
from tinymp import nn, ops, optim

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]


class Parity(program.Task):
    """Is the sum of four bits even?"""

    name, items, higher = "parity", "words", False
    measures: ClassVar = {"errors": ":.2%", "perplexity": ":.2f"}
    steps, batch, lr, clip = 60, 16, 0.05, 1.0

    def __init__(self, batch, data, bits=4):
        if batch > 100:
            raise ValueError("too many")
        super().__init__(batch, data)
        self.about = f"{bits} bits."

    def model(self):
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))

    def optimizer(self, parameters, lr):
        return optim.Adam(parameters, lr)

    def batches(self, seed):
        rng = np.random.default_rng(seed)
        while True:
            x = rng.integers(0, 2, (self.batch, 4))
            yield x.astype("f"), x.sum(1) % 2

    def loss(self, model, batch):
        x, y = batch
        return ops.cross_entropy(model(mp.current_policy().cast(mp.tensor(x))), mp.tensor(y))

    def scores(self, model):
        assert not model.training
        return {"errors": 0.25, "perplexity": float(np.exp(self.loss(model, next(self.batches(9))).item()))}

    def show(self, folder, models):
        return "shown: " + ", ".join(f"{label} {policy.name}" for label, (policy, _) in models.items())


def run(tmp_path, *arguments):
    arguments = ["--device", "cpu", "--out", str(tmp_path / "out"), *map(str, arguments)]
    return program.main(Parity, "Bits.", arguments, bits={"type": int, "default": 4, "help": "of a word"})


def test_report(tmp_path, capsys):
    runs = run(tmp_path, "--bits", 5)
    printed = capsys.readouterr().out
    for row in (
        "held-out errors",
        "25.00%",
        "held-out perplexity",
        "gradients that are 0",
        "words per second",
        "5 bits.",
    ):
        assert row in printed
    assert "shown: fp32 FP32, mixed MIXED" in printed
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(written["runs"]) == ["fp32", "mixed"]
    assert written["settings"]["bits"] == 5
    for label, one in written["runs"].items():
        assert one["scores"] == runs[label]["scores"]
        assert len(runs[label]["curve"]) == 60
        assert [step for step, _ in one["zero_shares"]] == [0, 20, 40]
        assert set(one["bytes"]) == set(measure.ROLES)
    assert runs["fp32"]["loss"] == pytest.approx(np.mean(runs["fp32"]["curve"][-3:]))
    assert runs["mixed"]["curve"][0] == pytest.approx(runs["fp32"]["curve"][0], rel=1e-2)
    assert (tmp_path / "out" / "report.png").read_bytes()[:4] == b"\x89PNG"


def test_what_cannot_be_run_is_refused(tmp_path, capsys):
    for arguments, message in (
        (["--batch", 101], "too many"),
        (["--loss-scale", "-1"], "--loss-scale"),
        (["--steps", 0], "positive"),
        (["--device", "tpu"], "tpu"),
    ):
        with pytest.raises(SystemExit):
            run(tmp_path, *arguments)
        assert message in " ".join(capsys.readouterr().err.split()), arguments
