"""The benchmark runs on few repetitions; how fast is not a test's business."""

import json

import pytest

from benchmarks import cpu


@pytest.mark.cpu
def test_quick(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cpu.steps, "torch", None)
    rows = cpu.main(["--quick", "--out", str(tmp_path / "a" / "cpu.json")])
    written = json.loads((tmp_path / "a" / "cpu.json").read_text())
    assert written["rows"] == rows
    assert all(row["value"] == row["value"] for row in rows)
    assert {row["reached"] for row in rows} <= {None, True, False}
    assert "mixed / own FP32" in capsys.readouterr().out
