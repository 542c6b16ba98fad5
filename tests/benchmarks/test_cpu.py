"""The benchmark runs on few repetitions; how fast is not a test's business."""

import json

import pytest

from benchmarks import cpu, machine, steps, worker
from benchmarks.report import Report


@pytest.mark.cpu
def test_quick(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cpu.steps, "peer", lambda: None)
    rows = cpu.main(["--quick", "--out", str(tmp_path / "a" / "cpu.json")])
    written = json.loads((tmp_path / "a" / "cpu.json").read_text())
    assert written["rows"] == rows
    assert all(row["value"] == row["value"] for row in rows)
    assert {row["reached"] for row in rows} <= {None, True, False}
    assert "mixed / FP32" in capsys.readouterr().out


@pytest.mark.parametrize("runs", [True, False])
def test_bf16_is_a_peer_where_it_runs(monkeypatch, capsys, runs):
    """The LSTM of PyTorch does not run in BF16 on every CPU."""

    def time(self, name, task, seconds):
        if name == "PyTorch BF16" and not runs:
            raise RuntimeError("no primitive")
        return {"mixed": 0.03, "PyTorch BF16": 0.02}.get(name, 0.01)

    monkeypatch.setattr(cpu.steps, "peer", lambda: "2.0")
    monkeypatch.setattr(worker.Workers, "__init__", lambda self, names: setattr(self, "_workers", {}))
    monkeypatch.setattr(worker.Workers, "time", time)
    report = Report()
    cpu.training(report, 2, "LSTM", "lstm", "<= 9")
    found = {row["work"]: row["value"] for row in report.rows if "BF16" in row["work"]}
    expected = {"LSTM, PyTorch BF16": 20.0, "LSTM, mixed / PyTorch BF16": pytest.approx(1.5)} if runs else {}
    assert found == expected and ("does not run here: no primitive" in capsys.readouterr().out) != runs


@pytest.mark.peer
@pytest.mark.cpu
def test_peers_compute_in_the_format_that_they_are_named_after():
    torch = pytest.importorskip("torch")
    from benchmarks import peers

    for kind, dtype in steps.AUTOCAST.items():
        with peers.autocast(dtype):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == getattr(torch, dtype or "float32"), kind


@pytest.mark.cpu
def test_networks_have_steps():
    assert sorted(network for _, network, _ in cpu.NETWORKS) == sorted(steps.NETWORKS)
    steps.make("resnet", "mixed")()  # a step runs


@pytest.mark.parametrize(("foreign", "said"), [(None, "unknown"), (0.2, "NOT TO BE TRUSTED"), (0.01, "quiet")])
def test_verdict(monkeypatch, foreign, said):
    monkeypatch.setattr(machine.Machine, "state", lambda self: {"foreign_load": foreign})
    assert said in machine.Machine().verdict()


def test_state():
    state = machine.Machine().state()
    assert {"CPU", "BLAS", "cores", "PyTorch", "foreign_load"} <= state.keys()
    assert state["foreign_load"] is None  # in so short a time nothing can be told
    assert "unknown" in machine.Machine().verdict()


def test_foreign_load(monkeypatch):
    """Of 8 core seconds in 4 seconds of 2 cores, 5 were this process's; a counter that lags counts at most all."""
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    for busy, own, load in ((108.0, 15.0, 0.375), (150.0, 15.0, 1.0), (100.0, 15.0, 0.0)):
        seconds = iter([(0.0, 100.0, 10.0), (4.0, busy, own)])
        monkeypatch.setattr(machine.Machine, "_seconds", staticmethod(lambda it=seconds: next(it)))
        assert machine.Machine().state()["foreign_load"] == load
