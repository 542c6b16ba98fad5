"""What the programs share, with a small task: the table and the files."""

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
    measures: ClassVar = {"errors": ":.2%"}
    steps, batch, lr, clip = 60, 16, 0.05, 1.0

    def __init__(self, batch, data, bits=4):
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
        return {"errors": 0.25}

    def show(self, folder, models):
        return "shown: " + ", ".join(f"{label} {policy.name}" for label, (policy, _) in models.items())


def test_report(tmp_path, capsys):
    options = ["--device", "cpu", "--out", str(tmp_path / "out"), "--bits", "5"]
    runs = program.main(Parity, "Bits.", options, bits={"type": int, "default": 4, "help": "of a word"})
    printed = capsys.readouterr().out
    shown = "shown: fp32 FP32, mixed MIXED"
    for row in ("held-out errors", "25.00%", "gradients that are 0", "words per second", "5 bits.", shown):
        assert row in printed
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(written["runs"]) == ["fp32", "mixed"] and written["settings"]["bits"] == 5
    for label, one in written["runs"].items():
        assert one["scores"] == runs[label]["scores"] and len(runs[label]["curve"]) == 60
        assert [step for step, _ in one["zero_shares"]] == [0, 20, 40] and set(one["bytes"]) == set(measure.ROLES)
    assert runs["fp32"]["loss"] == pytest.approx(np.mean(runs["fp32"]["curve"][-3:]))
    assert runs["mixed"]["curve"][0] == pytest.approx(runs["fp32"]["curve"][0], rel=1e-2)
    assert (tmp_path / "out" / "report.png").exists()
