"""Bisection: planted culprits are found, in as many runs as is said; what cannot be compared is refused in words."""

import json
import math
import multiprocessing
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn
from tinymp.lab import bisect, trial
from tinymp.lab.bisect import Bisection
from tinymp.lab.cli import main
from tinymp.lab.trial import Plan, Trial, measured

pytestmark = pytest.mark.cpu

SCRIPT = """
import sys
import numpy as np
import tinymp as mp
from tinymp import nn, ops

class Layer(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.linear = how, nn.Parameter(np.eye(4, dtype="f4"))

    def forward(self, x):
        if self.how == "overflow":  # squares of 1000 are beyond FP16: the mean is infinite, and x / inf = 0
            x = x * 1000.0
            x = x / (x * x).mean(1, keepdim=True).sqrt()
        elif self.how == "vanish":  # x + 3000 - 3000
            x = (x + 3000.0) - 3000.0
        return ops.tanh(ops.linear(x, self.linear))

n, *how = sys.argv[1:]
how = {int(i): what for what, _, i in (one.partition("@") for one in how)}
mp.manual_seed(7)
x = mp.randn(16, 4)
model = mp.MIXED.cast(nn.Sequential(
    *[Layer(how.get(i)) for i in range(int(n))],
    nn.Flatten(),
))
losses = [ops.mse_loss(model(mp.MIXED.cast(x)), x).item()]
"""
MADE = "made at own.py:25"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SCRIPT)
    return "own.py"


@pytest.fixture
def forks(monkeypatch):
    """Runs are forks of this process, where there are such: to import tinymp anew takes longer than a run."""

    def run(command, *, stdout, **options):
        child = multiprocessing.get_context("fork").Process(target=_trial, args=(*command[3:5], stdout.fileno()))
        child.start()
        child.join()
        return subprocess.CompletedProcess(command, child.exitcode)

    if hasattr(os, "fork"):
        monkeypatch.setattr(bisect.subprocess, "run", run)


def _trial(plan, result, log):
    warnings.resetwarnings()
    sys.stdout = sys.stderr = os.fdopen(log, "w")
    trial.main(plan, result)


def results(tmp_path):
    return json.loads((tmp_path / "runs" / "bisect" / "bisect.json").read_text())


@pytest.mark.parametrize(("n", "culprit", "seeds"), [(2, "overflow@1", 2), (8, "vanish@7", 1)])
def test_one_module_is_found(n, culprit, seeds, script, forks, tmp_path, capsys):
    assert main(["bisect", "--measure", "losses", "--seeds", str(seeds), script, str(n), culprit]) == 0
    name = f"model.{culprit[-1]}"
    printed, found = capsys.readouterr().out, results(tmp_path)
    assert [one["names"] for one in found["found"]] == [[name]]
    assert f"{name} must stay in FP32." in printed
    assert f"    {name}: Layer, {MADE}, called at own.py:{14 if 'over' in culprit else 17}" in printed
    assert f'policy.cast(model, keep={{"{name[6:]}": mp.FP32}})' in printed
    assert len(found["modules"]) == n  # not the Flatten
    runs = [[run["value"] for run in one["runs"]] for one in found["tries"]]
    assert len(set(runs[0])) == seeds  # they draw other numbers
    assert sum(map(len, runs)) <= (3 + math.log2(n)) * seeds
    assert len(list((tmp_path / "runs" / "bisect" / "logs").iterdir())) == sum(map(len, runs))


TRAINING = """
import sys
import numpy as np
import tinymp as mp
from tinymp import nn, ops, optim

mp.manual_seed(0)
model = mp.MIXED.cast(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer, scaler = optim.SGD(model.parameters(), lr=0.05), eval("optim." + sys.argv[1])
x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
y = x.sum(1, keepdims=True)
losses = []
with mp.use(mp.MIXED):
    for i in range(10):
        loss = ops.mse_loss(model(mp.MIXED.cast(mp.tensor(x))), mp.MIXED.cast(mp.tensor(y)))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
"""


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (["DynamicLossScaler()"], "It cannot be compared: with seed 0 it skipped 1 of 10 steps, and 0 in FP32"),
        (["StaticLossScaler(32768)"], "It matches FP32 as it is"),
    ],
)
def test_runs_that_skipped_other_steps_are_not_compared(arguments, verdict, script, forks, capsys):
    Path(script).write_text(TRAINING)
    assert main(["bisect", "--measure", "losses", "--seeds", "1", script, *arguments]) == 0
    printed = capsys.readouterr().out
    assert verdict in printed and "must stay in FP32" not in printed, printed


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise KeyError('its own')", "in FP32, with seed 0: KeyError: 'its own'; all that it printed is"),
        ("import os; os.kill(os.getpid(), 9)", "in FP32, with seed 0: the process ended with signal 9"),
        ("lost = 1", "LookupError: the program leaves no variable 'loss'"),
        ("loss = input()", "EOF when reading a line; bisect runs it without standard input; all"),
        (
            "import tinymp as mp\nm = mp.MIXED.cast(mp.nn.Linear(1, 1))\nloss = m.weight.dtype.itemsize",
            "as it is, with seed 0: no module of a model was called",
        ),
    ],
)
def test_what_cannot_be_compared(source, message, script, forks, capsys):
    Path(script).write_text(source)
    with pytest.raises(SystemExit, match="1"):
        main(["bisect", "--measure", "loss", "--seeds", "1", script])
    printed, error = capsys.readouterr()
    assert error.startswith("tinymp bisect: ") and message in error and error.count("\n") == 1
    assert "nan" not in printed


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A maker of bisections of n modules in which processes are played: `culprits` must all be in FP32."""
    program = tmp_path / "played.py"
    program.write_text("")

    def make(n, culprits, seeds=1):
        shared = {"class": "L", "made": "", "called": ""}
        modules = [{"names": [f"m.{i}"], "keys": [f"0:{i}"], **shared} for i in range(n)]

        def played(plan, log):
            runs.append(plan)
            kept = {int(key[2:]) for key in plan.keep}
            good = plan.fp32 or (culprits is not None and set(culprits) <= kept)
            value = 1.0 + 0.1 * (plan.seed % 3) + (0 if good else 5.0)
            found = {} if plan.fp32 or plan.keep else {"modules": modules, "models": ["m"]}
            return {"value": value, "error": None, "kept": [{str(i): "FP32" for i in kept}], "lost": [], **found}

        runs = []
        monkeypatch.setattr(bisect, "_in_a_process", played)
        return Bisection(Plan(str(program), False, [], "loss"), seeds, out=tmp_path), runs

    return make


ONE_OF_N = [(n, [i], math.ceil(math.log2(n)) + 3) for n in (1, 2, 3, 8) for i in range(n)]


@pytest.mark.parametrize(
    ("n", "culprits", "runs"), [*ONE_OF_N, (8, [3, 4], 11), (8, [0, 3, 7], 15), (8, None, 7), (17, [16], 8)]
)
def test_modules_are_found_in_so_many_runs(n, culprits, runs, planted):
    search, ran = planted(n, culprits)
    search.run()
    assert search.found == culprits and len(ran) == search.runs <= runs
    assert ("lost in the data" if culprits is None else f"m.{culprits[-1]} must stay in FP32.") in search.verdict


def a_trial(keep=(), modules=()):
    return Trial(Plan("own.py", False, [], "loss", 0, keep=[*keep], modules=[*modules]))


def test_what_a_plan_keeps():
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)), nn.Linear(1, 1))
    modules = ["0:0", "0:1.0", "0:1.1", "0:1.2", "0:2"]

    def keep(*chosen, given=None):
        found = a_trial(chosen, modules).keep(model, mp.MIXED, given)
        return found and {path: policy.name for path, policy in found.items()}

    assert keep() is None
    assert keep("0:1.0") == {"1.0": "FP32"}
    # what they hand to each other stays in FP32: with them goes the module that holds both
    assert keep("0:1.0", "0:1.2") == {"": "FP32", "0": "MIXED", "1.1": "MIXED", "2": "MIXED"}
    assert keep(*modules) == {"": "FP32"}
    assert keep("0:2", given={"1": mp.FP32}) == {"1": "FP32", "2": "FP32"}
    assert keep("1:2") is None  # of another model


def test_measures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = {"d": {"a": [1, np.float16(0.5)]}, "none": None}
    assert measured("d.a.0", lambda: left) == 1 and measured("d.a", lambda: left) == 0.5
    assert math.isnan(measured("none", lambda: left))
    with pytest.raises(LookupError, match="'b'"):
        measured("d.b", lambda: left)
    Path("out.json").write_text('{"a": 1}')
    with pytest.raises(LookupError, match=r"the program did not write out\.json"):
        measured("out.json:a", dict)  # of an earlier run
