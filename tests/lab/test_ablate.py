"""Ablations: planted scores get the verdicts that the rule gives them, and a tiny model shows real ones."""

import json
import math

import numpy as np
import pytest

import tinymp as mp
from tinymp.lab.ablate import DECISIONS, HARMLESS, NEEDED, UNDECIDED, Ablation, Run, Workload, decisions
from tinymp.lab.cli import main

pytestmark = pytest.mark.cpu  # the examples choose their device themselves

MASTER = decisions(["master"])[0]


def planted(base, flipped, higher=True, stopped=None):
    """An ablation whose runs have these scores."""

    def train(policy, scaler, seed):
        if policy is mp.MIXED:
            return Run(base[seed], [base[seed]])
        return Run(flipped[seed], [flipped[seed]], stopped)

    ablation = Ablation(Workload("planted", "score", higher, train), len(base))
    ablation.run(MASTER)
    return ablation


@pytest.mark.parametrize(
    ("base", "flipped", "higher", "verdict", "why"),
    [
        ([0.90, 0.91, 0.92], [0.90, 0.92, 0.91], True, HARMLESS, "no worse"),
        ([0.90, 0.91, 0.92], [0.89, 0.89, 0.89], True, UNDECIDED, "0.5 spreads worse"),
        ([0.90, 0.91, 0.92], [0.86, 0.87, 0.88], True, NEEDED, "1.5 spreads worse"),
        ([0.90, 0.91, 0.92], [0.86, 0.87, 0.88], False, HARMLESS, "no worse"),
        ([0.90, 0.91, 0.92], [0.9, math.nan, 0.9], True, NEEDED, "1 of 3 runs diverged: the score is no number"),
        ([0.90, math.nan, 0.92], [0.9, 0.9, 0.9], True, UNDECIDED, "the baseline itself diverged"),
        ([0.9, 0.8], [0.9, 0.7], True, UNDECIDED, "it takes 3 seeds"),
    ],
)
def test_verdicts_follow_the_rule(base, flipped, higher, verdict, why):
    ablation = planted(base, flipped, higher)
    found, reason = ablation.judged(MASTER)
    assert found == verdict
    assert why in reason
    assert verdict in str(ablation)


def test_every_run_gets_its_policy_its_scaler_and_its_seed():
    seen = []

    def train(policy, scaler, seed):
        seen.append((policy.name, mp.current_policy().name, type(scaler).__name__, seed))
        return Run(0.0, [0.0])

    ablation = Ablation(Workload("planted", "score", True, train), 2)
    for decision in decisions(["loss-scaling", "master"]):
        ablation.run(decision)
    assert seen == [
        *[("MIXED", "MIXED", "DynamicLossScaler", seed) for seed in range(2)],
        *[("NO_MASTER", "NO_MASTER", "DynamicLossScaler", seed) for seed in range(2)],
        *[("NO_SCALING", "NO_SCALING", "NoLossScaler", seed) for seed in range(2)],
    ]


def test_each_decision_flips_what_it_says():
    def fields(policy):
        return {**vars(policy), **vars(policy.study or mp.study.Arithmetic())}

    plain, half = fields(mp.MIXED), np.dtype("float16")
    changed = {d.name: {f: v for f, v in fields(d.policy).items() if v != plain[f]} for d in DECISIONS}
    for name, expected in {
        "master": {"master": False},
        "loss-scaling": {},
        "accumulator-32": {"accumulate": half, "chunk": 32},
        "batch-norm-statistics": {"reduce": half, "only": ("batch_norm",)},
        "optimizer-state": {"state": half},
    }.items():
        assert {f: v for f, v in changed[name].items() if f not in ("name", "study")} == expected
    assert [d.name for d in DECISIONS if not d.scaling] == ["fp32", "loss-scaling", "everything"]
    assert len(DECISIONS) == len({d.policy.name for d in DECISIONS}) and all(d.flipped and d.topic for d in DECISIONS)


SCRIPT = '''
import numpy as np
import tinymp as mp
from tinymp import nn, ops, optim

def train(policy, scaler, *, seed, steps, device):
    """w -> 1 in steps of lr = 2^-13: in FP16 w stays where 2^-13 is below half its last place."""
    w = policy.cast(nn.Linear(1, 1, bias=False))
    with mp.no_grad():
        w.weight.copy_(np.full((1, 1), 0.75 + seed / 1024, np.float32))
    optimizer, x = optim.SGD(w.parameters(), lr=2.0**-13), policy.cast(mp.tensor([[1.0]]))
    losses = []
    for _ in range(steps):
        loss = ops.l1_loss(w(x), policy.cast(mp.tensor([[1.0]])))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"curve": losses}
'''


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "lost_updates.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return "lost_updates"


def test_the_master_is_needed_where_updates_are_lost(script, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    code = main(["ablate", f"{script}:train", "--steps", "100", "--only", "master,softmax,fp32", "--out", str(out)])
    assert code == 0
    printed = capsys.readouterr().out
    found = json.loads((out / "ablation.json").read_text())
    of = {d["name"]: d for d in found["decisions"]}
    assert [of[name]["verdict"] for name in ("mixed", "fp32", "master", "softmax")] == ["", "", NEEDED, HARMLESS]
    assert "master: the mean is" in printed and "softmax: bit for bit" in printed
    assert of["mixed"]["runs"][0]["score"] < 0.24 < of["master"]["runs"][0]["score"] == 0.25  # w never moved
    assert [len(run["curve"]) for run in of["mixed"]["runs"]] == [100] * 3
    assert found["seeds"] == 3
    assert (out / "ablation.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
