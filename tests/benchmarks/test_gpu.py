"""The GPU benchmark runs to its end, with tiny sizes on the stand-in for a GPU; how fast is not a test's business."""

import json
import math

import pytest

from benchmarks import gpu, peers, timing
from benchmarks.machine import device
from benchmarks.report import Report


@pytest.fixture
def _stand_in(request, once):
    if request.config.getoption("--backend") != "cpu":
        pytest.skip("the benchmark chooses its device itself")
    import cuda_on_cpu

    if why := cuda_on_cpu.problem():
        pytest.skip(f"CUDA kernels cannot run on this CPU: {why}")


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("section", gpu.SECTIONS)
def test_section(section, monkeypatch, capsys):
    report, every = Report(), gpu.workloads(tiny=True)
    monkeypatch.setattr(gpu, "workloads", lambda tiny: {"CNN": every["CNN"]})
    monkeypatch.setattr(gpu, "files", lambda: ["conv"])
    with device("cuda-on-cpu"):
        gpu.SECTIONS[section](timing.Bench(report, True, False, 60))
    cases = [case for some in report.cases.values() for case in some]
    assert not report.failed, [case for case in [*report.rows, *cases] if case.get("error")]
    assert report.rows or cases
    assert all(math.isfinite(row["value"]) for row in report.rows)
    assert all((row["reached"] is None) == (row["target"] == "") for row in report.rows)
    printed = capsys.readouterr().out
    assert all(row["work"] in printed for row in report.rows)
    compared = peers.torch is not None and section in ("training", "gemm", "conv", "recurrent")
    assert any(row["peer"] for row in report.rows) == compared
    json.dumps(report.cases, allow_nan=False)
