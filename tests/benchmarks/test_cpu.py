"""The benchmark runs on few repetitions; how fast is not a test's business."""

import json
import os
import shutil
import sys

import pytest

from benchmarks import cpu, ops, parallel, steps


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


@pytest.mark.cpu
def test_parallel(tmp_path, capsys):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    if not shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])):
        pytest.skip("no mpiexec (the extra dev)")
    parallel.main(["--quick", "--processes", "2", "--out", str(tmp_path / "p.json")])
    out, found = capsys.readouterr().out, json.loads((tmp_path / "p.json").read_text())
    assert "KiB sent" in out and "mixed, sent in FP16" in out
    two = found["measured"]["2"]
    for case in ("strong", "small", "weak"):
        assert two["mixed, sent in FP32"][case]["sent"] == two["FP32"][case]["sent"] == 4 * 421_738
        assert two["mixed, sent in FP16"][case]["sent"] == 2 * 421_738 + 2 * 192
        assert all(0 < two[name][case]["waited"] < two[name][case]["ms"] for name in parallel.POLICIES)
    with pytest.raises(SystemExit):
        parallel.main(["--processes", "1"])
