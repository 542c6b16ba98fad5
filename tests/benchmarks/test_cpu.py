"""The benchmark runs on few repetitions; how fast is not a test's business."""

import json

import pytest

from benchmarks import cpu, machine, steps


@pytest.mark.cpu
def test_quick(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cpu.steps, "peer", lambda: None)
    rows = cpu.main(["--quick", "--out", str(tmp_path / "a" / "cpu.json")])
    written = json.loads((tmp_path / "a" / "cpu.json").read_text())
    assert written["rows"] == rows
    assert all(row["value"] == row["value"] for row in rows)
    assert {row["reached"] for row in rows} <= {None, True, False}
    assert "mixed / FP32" in capsys.readouterr().out


@pytest.mark.cpu
def test_networks_have_steps():
    assert sorted(network for _, network, _ in cpu.NETWORKS) == sorted(steps.NETWORKS)
    steps.make("resnet", "mixed")()  # a step runs


def test_foreign_load(monkeypatch):
    """This process used 5 of 8 core seconds, in 4 seconds on 2 cores; a delayed counter counts at most all of them."""
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    for busy, own, load in ((108.0, 15.0, 0.375), (150.0, 15.0, 1.0), (100.0, 15.0, 0.0)):
        seconds = iter([(0.0, 100.0, 10.0), (4.0, busy, own)])
        monkeypatch.setattr(machine.Machine, "_seconds", staticmethod(lambda it=seconds: next(it)))
        assert machine.Machine().state()["foreign_load"] == load
