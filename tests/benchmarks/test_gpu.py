"""The GPU benchmark runs to its end, with tiny sizes on the stand-in for a GPU; how fast is not a test's business."""

import json
import math

import numpy as np
import pytest

import tinymp as mp
from benchmarks import gpu, models, peers, timing
from benchmarks.report import Report
from examples import cnn
from tinymp import nn

TINY = ["--device", "cuda-on-cpu", "--tiny"]


@pytest.fixture
def _stand_in(request):
    if request.config.getoption("--backend") != "cpu":
        pytest.skip("the benchmark chooses its device itself")
    import cuda_on_cpu

    if why := cuda_on_cpu.problem():
        pytest.skip(f"CUDA kernels cannot run on this CPU: {why}")


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("section", gpu.SECTIONS)
def test_section(section, tmp_path, capsys):
    out = tmp_path / "new" / "gpu.json"
    code = gpu.main([*TINY, "--only", section, "--out", str(out)])
    written = json.loads(out.read_text())
    assert [row for row in written["rows"] if row["error"]] == []
    assert code == 0
    assert len(written["rows"]) >= 3
    assert all(math.isfinite(row["value"]) for row in written["rows"])
    assert all((row["reached"] is None) == (row["target"] == "") for row in written["rows"])
    printed = capsys.readouterr().out
    assert all(row["work"] in printed for row in written["rows"])
    compared = peers.torch is not None and section not in ("memory", "sums")  # on a GPU alone; by nobody
    assert any(row["peer"] for row in written["rows"]) == compared
    assert {"tinymp", "GPU", "CUDA", "cuBLAS", "CuPy", "PyTorch"} <= written["environment"].keys()


@pytest.mark.usefixtures("_stand_in")
def test_without_pytorch(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(peers, "torch", None)
    assert gpu.main([*TINY, "--only", "gemm", "--out", str(tmp_path / "gpu.json")]) == 0
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["work"] for row in written["rows"]} == {
        "DeepBench GEMM, FP16",
        "DeepBench GEMM, FP32",
        "DeepBench GEMM, FP16 / own FP32",
    }
    assert "not installed" in written["environment"]["PyTorch"]


def test_a_report_is_saved_after_each_row_and_each_case(capsys):
    seen = []
    report = Report(lambda r: seen.append((len(r.rows), len(r.cases.get("group", [])))))
    report.add("work", 1.0, "x")
    with report.case("group", "case") as entry:
        entry |= {"FP16": 1.0}
    assert seen == [(1, 0), (1, 1)]


def test_what_fails_becomes_a_row_and_the_rest_is_measured(capsys):
    report = Report()
    for i in range(3):
        with report.row(f"work {i}"):
            report.add(f"work {i}", 1 / (i - 1), "x", ">= 1", peer=2.0)
        with report.case("group", f"case {i}") as entry:
            times = {"FP16": [1.0, 3.0], "FP32": [4.0, 6.0], "NCHW": [i / i, 9.0], "channels_last": [8.0, 8.0]}
            entry |= timing.rates(times, flop=6e12)
    assert [row["reached"] for row in report.rows] == [False, None, True]
    assert report.rows[1]["error"] == "ZeroDivisionError: division by zero"
    report.summary("group", to_peer=">= 0.5", to_fp32=">= 3.85")
    fp16, fp32, beside, own = report.rows[3:]
    assert fp16["error"] == "1 of 3 cases, the first: case 0: ZeroDivisionError: division by zero"
    assert (fp16["value"], fp32["value"], fp16["peer"]) == pytest.approx((3.0, 1.2, 1.2))
    assert beside["value"] == pytest.approx(2.0)  # NCHW is the faster one: 1 / 1 and 9 / 3
    assert own["value"] == pytest.approx(3.0)  # 4 / 1 and 6 / 3
    assert (beside["reached"], own["reached"]) == (True, False)
    assert report.failed
    report.cases["all failed"] = [{"case": "a", "error": "E"}]
    report.summary("all failed", "", "")
    assert report.rows[-1]["value"] is None
    assert report.rows[-1]["error"] == "1 of 1 cases, the first: a: E"
    json.dumps(report.rows, allow_nan=False)
    assert "NOT reached" in capsys.readouterr().out


def test_sizes_and_time():
    assert [len(gpu.deepbench(kind)) for kind in ("gemm", "conv", "recurrent")] == [40, 24, 10]
    assert gpu.deepbench("gemm")[0] == {"m": 1760, "n": 16, "k": 1760, "a_t": False, "b_t": False}


def test_networks():
    ours, example = models.cnn(nn), cnn.network(1, 28, 28, 10)
    assert [v.shape for v in ours.state_dict().values()] == [v.shape for v in example.state_dict().values()]
    images = mp.tensor(np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype("float32"))
    resnet = models.resnet(nn)
    y = resnet(images)
    assert y.shape == (2, 10)
    assert sum(p.ndim > 1 and p.shape[-1] != 1 for p in resnet.parameters()) == 20  # 1x1 shortcuts are not counted
    if peers.torch:
        theirs = models.resnet(peers.torch.nn)
        theirs.load_state_dict({name: peers.torch.tensor(v) for name, v in resnet.state_dict().items()})
        theirs.train()
        np.testing.assert_allclose(y.numpy(), theirs(peers.torch.tensor(images.numpy())).detach(), atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda-on-cpu"], "add --tiny"),
        (["--only", "everything"], "invalid choice"),
        (["--device", "gpu"], "CuPy"),
    ],
)
def test_refused(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(mp.backend.gpu, "problem", lambda: "CuPy is not installed")
    with pytest.raises(SystemExit) as stopped:
        gpu.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
