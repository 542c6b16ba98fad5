"""What the programs share, with a small task: tables, files, seeds, checkpoints, and what is refused."""

import json
import signal
from typing import ClassVar

import numpy as np
import pytest

import tinymp as mp
from examples import program, report
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
        assert set(one["bytes"]) == set(report.ROLES)
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
        return report.Run(policy=policy, accuracy=value)

    runs = {"fp32": one("FP32", 70.0), "fp32, seed 1": one("FP32", 71.0)}
    runs |= {"a": one("MIXED", 69.0), "b": one("MIXED", 70.5), "c": one("MIXED", 72.0)}
    assert report.beside_seeds(runs, lambda run: run.accuracy) == [
        "2 seeds of FP32: 70.00 to 71.00",
        "a: 69.00, below that",
        "b: 70.50, within that",
        "c: 72.00, above that",
    ]
    assert report.beside_seeds({"fp32": one("FP32", 70.0)}, lambda run: run.accuracy) == []


@pytest.mark.parametrize("kept", ["killed", "whole", "SIGINT", "SIGTERM"])
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path, monkeypatch, capsys, kept):
    whole = run(tmp_path, "--steps", 10)
    weights = {label: model.state_dict() for label, (_, model) in Parity.shown.items()}
    options = ["--steps", 10, "--checkpoint", tmp_path / "kept", "--every", 3]
    if kept == "whole":
        run(tmp_path, *options)
    else:  # it is stopped in the second run
        calls = []

        def loss(self, model, batch, loss=Parity.loss):
            calls.append(model)
            if len(calls) == 15:
                if kept == "killed":
                    raise KeyboardInterrupt
                signal.raise_signal(getattr(signal, kept))
            return loss(self, model, batch)

        with monkeypatch.context() as patched:
            patched.setattr(Parity, "loss", loss)
            with pytest.raises(KeyboardInterrupt if kept == "killed" else SystemExit) as ended:
                run(tmp_path, *options)
        if kept != "killed":
            assert ended.value.code == 128 + getattr(signal, kept)
            assert f"mixed stopped after 4 steps: {kept}" in capsys.readouterr().out
            written = json.loads((tmp_path / "out" / "report.json").read_text())["runs"]
            assert (written["fp32"]["stopped"], written["mixed"]["stopped"]) == (None, kept)
            assert [len(written[label]["curve"]) for label in ("fp32", "mixed")] == [10, 4]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["fp32.safetensors", "mixed.safetensors"]
    again = run(tmp_path, *options, "--resume")
    for label, one in again.items():
        assert one.curve == whole[label].curve
        assert one.gradient_exponents == whole[label].gradient_exponents
        assert one.scores == whole[label].scores
        for name, value in Parity.shown[label][1].state_dict().items():
            np.testing.assert_array_equal(value, weights[label][name])


def test_what_cannot_be_run_is_refused(tmp_path, capsys):
    run(tmp_path, "--steps", 2, "--checkpoint", tmp_path / "kept")
    capsys.readouterr()
    for arguments, message in (
        (["--resume"], "--checkpoint DIR"),
        (["--batch", 101], "too many"),
        (["--loss-scale", "-1"], "--loss-scale"),
        (["--steps", 0], "positive"),
        (["--device", "tpu"], "tpu"),
        (["--steps", 3, "--checkpoint", tmp_path / "kept", "--resume"], "had steps 2, not 3: give it the same options"),
        (
            ["--steps", 2, "--loss-scale", 8, "--checkpoint", tmp_path / "kept", "--resume"],
            "had loss_scale dynamic, not 8",
        ),
    ):
        with pytest.raises(SystemExit):
            run(tmp_path, *arguments)
        assert message in " ".join(capsys.readouterr().err.split()), arguments
