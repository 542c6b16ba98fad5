"""The GPU benchmark runs to its end, with tiny sizes on the stand-in for a GPU; how fast is not a test's business."""

import json
import math
from unittest import mock

import numpy as np
import pytest

import tinymp as mp
from benchmarks import gpu, peers
from benchmarks.machine import device
from benchmarks.report import Report
from tinymp import ops


@pytest.fixture
def _stand_in(request, once):
    if request.config.getoption("--backend") != "cpu":
        pytest.skip("the benchmark chooses its device itself")
    import cuda_on_cpu

    if why := cuda_on_cpu.problem():
        pytest.skip(f"CUDA kernels cannot run on this CPU: {why}")


def measured(section, networks=("CNN", "LSTM", "DCGAN")):
    """The report of a section, with tiny sizes."""
    report, every = Report(), gpu.workloads(tiny=True)
    some = mock.patch.object(gpu, "workloads", return_value={name: every[name] for name in networks})
    with some, device("cuda-on-cpu"):
        gpu.SECTIONS[section](gpu.Bench(report, True, False, 60))
    return report


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("section", gpu.SECTIONS)
def test_section(section, capsys):
    # all files of gpu, one at a time, are too many for others
    report = measured(section, networks=["CNN"] if section == "gains" else ["CNN", "LSTM", "DCGAN"])
    cases = [case for some in report.cases.values() for case in some]
    assert not report.failed, [case for case in [*report.rows, *cases] if case.get("error")]
    assert len(report.rows) + len(cases) >= 2
    assert all(math.isfinite(row["value"]) for row in report.rows)
    assert all((row["reached"] is None) == (row["target"] == "") for row in report.rows)
    printed = capsys.readouterr().out
    assert all(row["work"] in printed for row in report.rows)
    compared = peers.torch is not None and section == "training"
    assert any(row["peer"] for row in report.rows) == compared
    json.dumps(report.cases, allow_nan=False)


@pytest.mark.usefixtures("_stand_in")
def test_steps_by_definitions_and_without_a_file():
    with device("cuda-on-cpu"):
        x = mp.tensor(np.ones((2, 3), "float16"))
        launched, seen = mp.backend.gpu.xp.launched, {}

        def step():
            launched.clear()
            ops.softmax(x, 1), ops.layer_norm(x, 3), ops.exp(x)
            return [name.partition("_")[0] for name in launched]

        for file in gpu.files():
            seen[file] = gpu.without(step, file)()
        every = step()
        assert gpu.definitions()(step)() == [] and step() == every
    assert {file for file, names in seen.items() if names != every} == {"softmax", "norm", "elementwise"}
    assert "map" in every and "map" not in seen["elementwise"]


@pytest.mark.usefixtures("_stand_in")
def test_steps_that_go_another_way_are_found(monkeypatch):
    seeds = iter(range(20))
    monkeypatch.setattr(gpu.mp, "manual_seed", lambda _, seed=gpu.mp.manual_seed: seed(next(seeds)))
    report = measured("same_bits")
    assert (
        all({"audited: loss 0", "captured: loss 5"} <= set(case["other bits"]) for case in report.cases["bits"])
        and report.failed
    )


def test_what_fails_becomes_a_row_and_the_rest_is_measured(capsys):
    report = Report()
    for i in range(3):
        with report.row(f"work {i}"):
            report.add(f"work {i}", 1 / (i - 1), "x", ">= 1", peer=2.0)
    assert [row["reached"] for row in report.rows] == [False, None, True]
    assert report.rows[1]["error"] == "ZeroDivisionError: division by zero"
    assert report.failed
    json.dumps(report.rows, allow_nan=False)
    assert "NOT reached" in capsys.readouterr().out
