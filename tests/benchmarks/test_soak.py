"""A short soak breaks no limit, and each fault that is planted is found by the soak itself."""

import json
import math
import mmap
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from benchmarks import soak
from tinymp import optim, statistics

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what a process holds is read from /proc"),
]


@pytest.fixture(autouse=True)
def _no_item_is_slow(monkeypatch):
    monkeypatch.setattr(soak, "SLOW", 0.0)


def test_a_short_soak(tmp_path, capsys):
    out = tmp_path / "soak.json"
    assert soak.main(["--steps", "300", "--seed", "1", "--out", str(out)]) == 0
    assert "no limit was broken" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["broken"] == [] and found["steps"] == 300
    counts = found["counts"]
    assert min(counts[name] for name in ("op", "gradient", "nan", "audits", "checkpoints", "returns", "epochs")) >= 1
    assert counts["audits"] == counts["findings"] and counts["skipped"] >= 300 - counts["sound"] >= 4
    assert found["shapes"] >= 4 and found["loss"]["at last"] < found["loss"]["at first"]
    assert found["scale"]["changes"] > 5 and found["scale"]["least"] < found["scale"]["most"]


class Short(soak.Soak):
    """A few steps, of which only those have a fault that are given: {step: fault}."""

    faults: ClassVar = {}

    def __init__(self, folder):
        super().__init__(folder, 150, every=24)

    def fault(self, step):
        return self.faults.get(step, "")


class Careless(Short):
    """It leaks bytes, objects, a thread and a file; tampers with checkpoints and the history; and undoes nothing."""

    faults: ClassVar = {131: "nan", 149: "gradient"}

    def __init__(self, folder):
        super().__init__(folder)
        self.leaked, self.end = [], threading.Event()

    def after_step(self, step):
        new = mmap.mmap(-1, 1 << 19)  # not what an earlier test has freed
        new.write(bytes(1 << 19))
        self.leaked += [new, *([] for _ in range(200))]
        if step == 120:
            threading.Thread(target=self.end.wait, name="forgotten").start()
            self.file = open(self.kept.directory / "open.txt", "w")  # noqa: SIM115
        if step == 149:
            del self.scaler.history[0]

    def step(self, x, t, fault):
        with pytest.MonkeyPatch.context() as patch:
            if fault == "gradient":
                patch.setattr(optim.scaler.Side, "skip", lambda *_: False)
            if fault == "nan":
                patch.setattr(statistics, "settle", lambda *_: None)
            super().step(x, t, fault)

    def save(self, step):
        super().save(step)
        self.saved[step]["model"]["6.bias"] = np.ones(16)


def _careless(folder):
    run = Careless(Path(folder))
    try:
        run.run()
    finally:
        run.end.set()
        run.file.close()
    print(json.dumps(run.broken))


def test_what_is_left_behind_is_found(tmp_path):
    # In a process of its own: what earlier tests have left can shrink by more than this run leaks.
    command = f"from tests.benchmarks.test_soak import _careless, soak; soak.SLOW = 0.0; _careless({str(tmp_path)!r})"
    out = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    broken = json.loads(out.splitlines()[-1])
    for expected in (
        r"resident memory grew by [\d.]+%, from [\d,]+ to [\d,]+: more than 2%",
        r"objects grew by [\d.]+%, from [\d,]+ to [\d,]+: more than 2%",
        r"threads were left: forgotten",
        r"threads of the system were left: \d+, before \d+",
        r"files were left: open\.txt",
        r"files were left beside the checkpoints: open\.txt",
        r"step 150 was not skipped, although its gradient was not finite",
        r"step 132 was skipped for its nan, and changed the model",
        r"after step \d+ a checkpoint gave back another state than it was given",
        r"the history gives another scale than there was in \d+ iterations",
        r"weights are not finite at the end",
    ):
        assert any(re.fullmatch(expected, sentence) for sentence in broken), (expected, broken)


class Stuck(Short):
    """With an infinity in every second gradient, S falls to its least and stays there."""

    faults: ClassVar = dict.fromkeys(range(1, 150, 2), "gradient")

    def __init__(self, folder):
        super().__init__(folder)
        self.scaler = optim.DynamicLossScaler(2.0**-12, growth_interval=4, max_consecutive_skips=20)
        self.kept.objects["scaler"], self.start = self.scaler, 2.0**-12


def test_a_stuck_scale_is_found(tmp_path):
    broken = Stuck(tmp_path).run().broken
    # what this process holds is also what other tests have left
    first, second, stuck = sorted(sentence for sentence in broken if " grew by " not in sentence)
    for n, warned in ((20, first), (40, second)):
        assert re.match(
            rf"a warning came 1 times: the loss scale sits at its least, 6.*e-05: .* overflowed {n} t", warned
        )
    assert re.fullmatch(r"the loss scale did not grow in \d+ iterations in a row: more than 100, stuck", stuck)


class Infinite(Short):
    def after_step(self, step):
        if step == 148:
            self.scaler.change(self.scaler._side.state._replace(scale=math.inf), "planted")


def test_an_infinite_scale_is_found(tmp_path):
    assert "the loss scale became inf in step 150" in Infinite(tmp_path).run().broken


def test_too_few_steps_are_refused(capsys):
    with pytest.raises(SystemExit):
        soak.main(["--steps", "10"])
    assert "expected at least 300, so that everything happens, got 10" in capsys.readouterr().err


def test_the_exit_code_says_that_a_limit_was_broken(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(soak, "GROWTH", -1.0)
    monkeypatch.setattr(soak.Soak, "train", lambda self, until: self.rss.append(1))
    monkeypatch.setattr(soak.Soak, "unlike", lambda self: 0)
    monkeypatch.setattr(soak.Soak, "as_dict", lambda self: {"broken": self.broken})
    assert soak.main(["--out", str(tmp_path / "soak.json")]) == 1
    assert "BROKEN: resident memory grew by 0.0%, from 1 to 1: more than -100%" in capsys.readouterr().out
