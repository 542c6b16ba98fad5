"""What the programs share, with a small task: tables, files, seeds, checkpoints, and what is refused."""

import json
from typing import ClassVar

import numpy as np
import pytest

import tinymp as mp
from examples import measure
from examples.paper import program, report
from tinymp import nn, ops, optim

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]


class Parity(program.Task):
    """Is the sum of four bits even?"""

    name, unit, items, higher = "parity", "words", "words", False
    measures: ClassVar = {"errors": "%", "perplexity": ""}
    steps, batch, lr, clip = 60, 16, 0.05, 1.0
    shown: ClassVar = {}

    def __init__(self, options):
        if (options.batch or 0) > 100:
            raise ValueError("too many")
        super().__init__(options)
        self.about, self.baselines = "Bits.", {"a coin": 0.5}

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

    def size(self, batch):
        return len(batch[1])

    def scores(self, model):
        assert not model.training
        return {"errors": 0.25, "perplexity": float(np.exp(self.loss(model, next(self.batches(9))).item()))}

    def show(self, folder, models):
        Parity.shown = models
        return "shown: " + ", ".join(f"{label} {policy.name}" for label, (policy, _) in models.items())


def run(tmp_path, *arguments):
    arguments = ["--device", "cpu", "--out", str(tmp_path / "out"), *map(str, arguments)]
    return program.main(Parity, program.parser(Parity, "Bits."), arguments)


def test_report(tmp_path, capsys):
    runs = run(tmp_path)
    printed = capsys.readouterr().out
    for row in ("held-out errors", "25.00 %", "held-out perplexity", "words per second", "a coin: 50.00 %", "Bits."):
        assert row in printed
    assert "shown: fp32 FP32, mixed MIXED" in printed
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(written["runs"]) == ["fp32", "mixed"]
    assert written["settings"]["baselines"] == {"a coin": 0.5}
    for label, one in written["runs"].items():
        assert one["scores"] == runs[label].scores
        assert len(runs[label].curve) == 60 and one["units"] == 60 * 16
        assert [step for step, _ in one["zero_shares"]] == [0, 20, 40]
        assert set(one["bytes"]) == set(measure.ROLES)
    assert runs["fp32"].loss == pytest.approx(np.mean(runs["fp32"].curve[-50:]))
    assert runs["mixed"].curve[0] == pytest.approx(runs["fp32"].curve[0], rel=1e-2)
    assert (tmp_path / "out" / "report.png").read_bytes()[:4] == b"\x89PNG"


def test_compare(tmp_path, capsys):
    runs = run(tmp_path, "--steps", 5, "--compare", "--seeds", 3, "--seed", 4, "--policy", "no_master")
    assert list(runs) == [
        "fp32",
        "fp32, seed 5",
        "fp32, seed 6",
        *(f"no_master, {s}" for s in ("none", "128", "dynamic")),
    ]
    assert [r.loss_scale for r in runs.values()] == [1, 1, 1, 1, 128, 65536]
    assert runs["fp32"].curve != runs["fp32, seed 5"].curve
    printed = capsys.readouterr().out
    assert "3 seeds of FP32: 25.00 to 25.00\nno_master, none: 25.00, within that" in printed


def test_a_run_beside_the_seeds_of_fp32():
    def one(policy, value):
        return measure.Run(policy=policy, loss=value)

    runs = {"fp32": one("FP32", 70.0), "fp32, seed 1": one("FP32", 71.0)}
    runs |= {"a": one("MIXED", 69.0), "b": one("MIXED", 70.5), "c": one("MIXED", 72.0)}
    assert report.beside_seeds(runs, lambda run: run.loss) == [
        "2 seeds of FP32: 70.00 to 71.00",
        "a: 69.00, below that",
        "b: 70.50, within that",
        "c: 72.00, above that",
    ]
    assert report.beside_seeds({"fp32": one("FP32", 70.0)}, lambda run: run.loss) == []


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
