"""The benchmark runs on few repetitions; how fast is not a test's business."""

import json

import pytest

from benchmarks import cpu, ops, steps


@pytest.mark.cpu
def test_quick(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cpu.steps, "peer", lambda: None)
    rows = cpu.main(["--quick", "--out", str(tmp_path / "a" / "cpu.json")])
    written = json.loads((tmp_path / "a" / "cpu.json").read_text())
    assert written["rows"] == rows
    assert all(row["value"] == row["value"] for row in rows)
    assert {row["reached"] for row in rows} <= {None, True, False}
    assert "mixed / FP32" in capsys.readouterr().out


@pytest.mark.peer
@pytest.mark.cpu
def test_peers_compute_in_the_format_that_they_are_named_after():
    torch = pytest.importorskip("torch")
    for kind, dtype in steps.AUTOCAST.items():
        with steps._autocast(dtype):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == getattr(torch, dtype or "float32"), kind


@pytest.mark.cpu
def test_cases_of_ops_run():
    names = [case.name for case in ops.CASES]
    assert len(set(names)) == len(names) >= 40
    for case in ops.CASES:
        small = case._replace(arrays=tuple(_smaller(a) for a in case.arrays))
        ops.made(small, "FP16")()


def _smaller(a):
    """A shape, or (shape, high), with fewer rows or images; the rest may be part of the case."""
    if a and isinstance(a[0], tuple):
        return _smaller(a[0]), a[1]
    return (min(a[0], 4), *a[1:]) if len(a) == 4 and a[0] in (8, 16, 32, 64) and a[1:] not in KERNELS else a


KERNELS = {(64, 3, 3), (48, 4, 4), (1, 3, 3), (64, 1, 1)}
