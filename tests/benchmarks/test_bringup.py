"""The first half hour on a GPU, rehearsed on the stand-in; and what happens to cases and tests that hang or die."""

import json
import os
import time
import zipfile

import pytest

from benchmarks import bringup
from benchmarks.bringup import CALLS, Job
from benchmarks.report import Report

pytestmark = pytest.mark.cpu
TINY = ["--device", "cuda-on-cpu", "--tiny"]


@pytest.fixture
def _stand_in(request, monkeypatch, tmp_path):
    if request.config.getoption("--backend") != "cpu":
        pytest.skip("the steps choose their device themselves")
    import cuda_on_cpu

    if why := cuda_on_cpu.problem():
        pytest.skip(f"CUDA kernels cannot run on this CPU: {why}")
    (tmp_path / "torch.py").write_text("raise ImportError('PyTorch: test_gpu.py is about that')")  # saves its import
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def job(out, seconds=60.0):
    return Job(out, "cuda-on-cpu", True, time.monotonic() + seconds, Report())


def read(path):
    return json.loads(path.read_text())


# What test_gpu.py runs section by section is left out here
LEFT_OUT = {"training", "gains", "conv", "recurrent", "same_bits", "memory"}


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("number", CALLS)
def test_rehearsal(number, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setitem(CALLS, number, [s for s in CALLS[number] if s.name not in LEFT_OUT])
    if number == 3:  # what call 1 might have left
        (out / "logs").mkdir(parents=True)
        line = {"test": "tests/core/test_info.py::test_there_is_no_such_test", "outcome": "failed", "error": "no"}
        (out / "logs" / "tests0.jsonl").write_text(json.dumps(line) + "\n")
    code = bringup.main([str(number), "--out", str(out), *TINY])
    printed = capsys.readouterr().out
    states = {e["name"]: e["state"] for e in read(out / f"call{number}.json")["steps"]}
    assert list(states) == [step.name for step in CALLS[number]]
    assert all(name in printed for name in states)
    assert {states.pop(name) for name in ("ncu", "memcheck", "racecheck") if name in states} <= {"absent"}
    if number == 3:
        assert states.pop("failures") == "failed"
    assert set(states.values()) == {"done"}
    assert code == (number == 3)
    with zipfile.ZipFile(out / "bringup.zip") as archive:
        assert json.loads(archive.read(f"call{number}.json")) == read(out / f"call{number}.json")


PLANTED = """
import os, signal, time
import pytest
def test_first(): pass
def test_lost(): raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
def test_skipped(): pytest.skip("no")
def test_crash(): os.kill(os.getpid(), signal.SIGSEGV)
def test_wrong(): assert 1 == 2
def test_hang(): time.sleep(60)
def test_last(): pass
"""


def test_tests_go_on_in_a_new_process_behind_one_that_is_lost(tmp_path):
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--backend')")
    (tmp_path / "test_planted.py").write_text(PLANTED)
    planted = job(tmp_path / "out")._replace(device="none")
    result = bringup.run_tests(planted, "planted", [str(tmp_path / "test_planted.py")], BRINGUP_LIMIT="1")
    assert result["outcomes"] == {"passed": 2, "lost the context": 1, "skipped": 1, "died": 1, "failed": 1, "hung": 1}
    names = {test.split("::")[1]: entry for test, entry in result["not passed"].items()}
    assert set(names) == {"test_lost", "test_crash", "test_wrong", "test_hang"}
    assert "illegal memory access" in names["test_lost"]["error"]
    assert result["ended early"] == []
