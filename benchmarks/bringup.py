"""A GPU's first half hour: are the kernels right, and how fast are they?

    python -m benchmarks.bringup {1,2,3} [--out DIR] [--only STEP] [--device cuda-on-cpu --tiny]

Three calls of at most ten minutes, each complete in itself. A call is a list of steps, a step a list of cases. Each
step runs in a process of its own with a time limit; DIR/CALL-STEP.json is written after every case. The same command
again runs the steps that did not end well. --device cuda-on-cpu --tiny is the rehearsal without a GPU. The exit code is
1 if a step did not end well; an absent program is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from . import gpu
from .machine import Machine, device, write
from .report import Absent, Report

ROOT = pathlib.Path(__file__).parents[1]
GRACE = 10  # seconds that a step has to end by itself
LIMIT = 60  # seconds of a test


class Job(NamedTuple):
    """The orders for a step. end: when it should be over, on time.monotonic's clock."""

    out: pathlib.Path
    device: str
    tiny: bool
    end: float
    report: Report

    @property
    def left(self) -> float:
        """Seconds."""
        return max(self.end - time.monotonic(), 1.0)


class Step(NamedTuple):
    """A function, and the seconds that it may take."""

    name: str
    run: Callable[[Job], None]
    seconds: float


def run(command: Sequence[str], seconds: float, log: pathlib.Path) -> int | None:
    """The exit code of a command, None where it was ended after so many seconds, with all processes that it started.

    What it prints goes to `log`.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:  # also after Ctrl-C; what hangs in a driver call does not listen to SIGTERM
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def said(log: pathlib.Path) -> str:
    """The output of a command."""
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


# ---------------------------------------------------------------------------------------------------------- the steps


def section(name: str, job: Job) -> None:
    """A section of benchmarks/gpu.py."""
    with job.report.row(name):
        gpu.SECTIONS[name](gpu.Bench(job.report, job.tiny, job.device == "gpu", job.left))


TINY = "test_dropout", "test_elementwise", "test_against_torch"  # the files that a rehearsal runs,
TINY_ONLY = "dropout or relu"  # and the tests


def suite(
    name: str, patterns: Sequence[str], parts: Sequence[str], job: Job, processes: int = 12, tool: Sequence[str] = ()
) -> None:
    """The tests of some files, in parts that pytest's -k selects; under a tool.

    Each part of a file has a process of its own, so that a lost context costs the rest of this part alone.
    """
    paths = [path for pattern in patterns for path in sorted((ROOT / "tests").glob(pattern))]
    paths = [path for path in paths if path.stem in TINY or not job.tiny]
    cases = {f"{path.stem} {part}".strip(): (path, part) for path in paths for part in parts}
    command = [*tool, sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["-o", f"faulthandler_timeout={LIMIT}", "-o", "faulthandler_exit_on_timeout=true", "-W", "default"]
    command += ["--import-mode=importlib", "--rootdir", str(ROOT), "--backend", job.device]

    def one(case: str) -> dict[str, Any]:
        path, part = cases[case]
        log = job.out / "logs" / f"{name} {case}.txt"
        log.unlink(missing_ok=True)
        code = run([*command, "-k", TINY_ONLY if job.tiny else part, str(path)], job.left, log)
        text = said(log)
        ended = re.findall(r"^(\S+::.+?) (PASSED|SKIPPED|FAILED|ERROR|XFAIL)\b", text, re.M)
        found: dict[str, Any] = {"outcomes": dict(Counter(outcome for _, outcome in ended))}
        if code in (0, 5):  # all passed, or none was selected
            return found
        wrong = [test for test, outcome in ended if outcome in ("FAILED", "ERROR")]
        return found | {"error": f"exit code {code}, not passed: {wrong}; {text[-1500:]}"}

    with ThreadPoolExecutor(1 if job.tiny else max(1, min(processes, (os.cpu_count() or 1) * 3 // 4))) as pool:
        for case, found in zip(cases, pool.map(one, cases)):
            job.report.case(name, case, lambda found=found: found)


def sanitized(tool: str, job: Job) -> None:
    """compute-sanitizer over kernels and ops, on tiny arrays, each an allocation of its own: memcheck finds accesses
    out of bounds and misaligned ones, racecheck races in shared memory.
    """
    cuda = os.environ.get("CUDA_PATH", "/usr/local/cuda")
    path = os.pathsep.join([os.environ["PATH"], f"{cuda}/bin", f"{cuda}/compute-sanitizer"])
    if (program := shutil.which("compute-sanitizer", path=path)) is None:
        raise Absent("compute-sanitizer is neither on PATH nor in CUDA's folder")
    command = [program, "--tool", tool, "--error-exitcode", "99", "--print-limit", "20"]
    os.environ |= {"TEST_SIZES": "tiny", "PYTEST_ADDOPTS": "-p benchmarks.no_pool"}  # this process runs nothing else
    suite(tool, KERNELS + AGAINST, ["not nvrtc"], job, processes=8, tool=command)


# ---------------------------------------------------------------------------------------------------------------- main


def _section(name: str, seconds: float) -> Step:
    return Step(name, partial(section, name), seconds)


def _suite(name: str, seconds: float, patterns: Sequence[str], *parts: str) -> Step:
    return Step(name, partial(suite, name, patterns, parts), seconds)


AGAINST, KERNELS = ["core/test_against_torch.py"], ["gpu/test_*.py"]
CALLS = {
    1: [
        Step("versions", lambda job: job.report.case("versions", "environment", Machine().state), 15),
        _suite("traced", 60, ["gpu/test_elementwise.py"], ""),
        _suite("ops", 180, AGAINST, "test_op and float16", "test_op and float32"),
        _section("training", 240),
        _section("same_bits", 40),
    ],
    2: [
        _suite("kernels", 90, KERNELS, "not elementwise and not nvrtc"),
        _suite("tests", 170, ["core/**/test_*.py"], "not test_against_torch"),
        _section("gains", 240),
    ],
    3: [
        *(Step(tool, partial(sanitized, tool), 200) for tool in ("memcheck", "racecheck")),
        _section("memory", 60),
        _suite("large", 60, AGAINST, "many or count"),
    ],
}


def here(step: Step, job: Job, path: pathlib.Path) -> None:
    """Run a step in this process. `path` has what it found, after each case; "state" is there once it has ended."""

    def save(report: Report, **state: str) -> None:
        write(path, {"rows": report.rows, "cases": report.cases} | state)

    report, state = Report(save), {"state": "done"}
    try:
        with device(job.device), warnings.catch_warnings():
            warnings.filterwarnings("error", "capture: ")  # what should be a graph's time is not to be another's
            step.run(job._replace(report=report))
        state = {"state": "failed"} if report.failed else state
    except Absent as error:
        state = {"state": "absent", "error": str(error)}
    except Exception as error:
        state = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
    save(report, **state)


def apart(step: Step, options: argparse.Namespace) -> dict[str, Any]:
    """Run a step in a process of its own: what it found, and its "state"."""
    path, log = (options.out / f"{options.call}-{step.name}.{kind}" for kind in ("json", "log"))
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.bringup", str(options.call), "--step", step.name]
    command += ["--out", str(options.out), "--device", options.device, *["--tiny"] * options.tiny]
    code = run(command, step.seconds, log)
    ended = "its time was up" if code is None else f"died: {said(log)[-500:]}"
    return {"state": ended} | (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})


def call(options: argparse.Namespace) -> bool:
    """Run the steps of a call that are not known to have ended well; whether all have."""
    well = True
    for step in (step for step in CALLS[options.call] if options.only in (None, step.name)):
        path = options.out / f"{options.call}-{step.name}.json"
        if not options.only and path.exists() and '"state": "done"' in path.read_text(encoding="utf-8"):
            continue
        start = time.monotonic()
        found = apart(step, options)
        cases = [case for some in found.get("cases", {}).values() for case in some] + found.get("rows", [])
        wrong = [case["error"] for case in cases if case.get("error")] or [found.get("error", "")]
        seconds = time.monotonic() - start
        print(f"{step.name:<18} {found['state']:<20} {seconds:6.1f} s  {' '.join(wrong[0].split())[:300]}", flush=True)
        well = well and found["state"] in ("done", "absent")
    return well


def main(arguments: list[str] | None = None) -> int:
    """Run a call. Returns the exit code."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.bringup", description=__doc__.split("\n\n")[0])
    p.add_argument("call", type=int, choices=CALLS)
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/bringup"), help="where the JSON goes")
    p.add_argument("--only", help="one step, again")
    p.add_argument("--device", choices=("gpu", "cuda-on-cpu"), default="gpu", help="cuda-on-cpu: the tests' stand-in")
    p.add_argument("--tiny", action="store_true", help="tiny sizes: shows that everything runs")
    p.add_argument("--step", help=argparse.SUPPRESS)
    options = p.parse_args(arguments)
    options.out = options.out.resolve()
    if options.device == "cuda-on-cpu" and not options.tiny:
        p.error("--device cuda-on-cpu runs every thread of every kernel on the CPU: add --tiny")
    steps = {step.name: step for step in CALLS[options.call]}
    if options.step:
        step = steps[options.step]
        job = Job(options.out, options.device, options.tiny, time.monotonic() + step.seconds - GRACE, Report())
        here(step, job, options.out / f"{options.call}-{step.name}.json")
        return 0
    if options.only and options.only not in steps:
        p.error(f"call {options.call} has the steps {', '.join(steps)}")
    return int(not call(options))


if __name__ == "__main__":
    sys.exit(main())
