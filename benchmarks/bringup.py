"""The first day on a GPU: does it work, does it work by chance, how fast are the kernels, how fast are the steps?

    python -m benchmarks.bringup {1,2,3,4} [--out DIR] [--device cuda-on-cpu --tiny]

Four parts of at most nine minutes, each useful alone; 2 also repeats what failed in 1. A part is a list of steps, each
in a process of its own with a time limit, so that a lost CUDA context, a crash or a hang ends one step alone.
DIR/partN.json is written after every step; what there was no time for is listed there as not run. Parts share DIR: give
all of them the same, and the kernels that CuPy has compiled in part 1 (DIR/cupy) are there in the next. --device
cuda-on-cpu --tiny is the rehearsal without a GPU. The exit code is 1 if a step did not end well; an absent program
is no failure.
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
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import tinymp as mp

from . import poisoned
from .machine import device, write

ROOT = pathlib.Path(__file__).parents[1]
PART = 9 * 60  # seconds
GRACE = 10  # seconds that a step has to end by itself


class Job(NamedTuple):
    """What a step is told. end: when it should be over, on time.monotonic's clock."""

    out: pathlib.Path
    device: str
    tiny: bool
    end: float

    @property
    def left(self) -> float:
        """Seconds."""
        return max(self.end - time.monotonic(), 1.0)


class Absent(Exception):
    """A program or library that a step needs is not here."""


class Failed(Exception):
    """A step that ran to its end and found something: its result."""

    def __init__(self, result: Any) -> None:
        super().__init__("see the result")
        self.result = result


class Step(NamedTuple):
    """A function and the seconds that it may take; what earlier steps left over is its, too."""

    name: str
    run: Callable[[Job], Any]
    seconds: float


def run(command: Sequence[str], seconds: float, log: pathlib.Path, **environment: str) -> int | None:
    """The exit code of a command, None where it was ended after so many seconds, with all processes that it started.

    What it prints goes to `log`.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            cwd=ROOT, env=os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment,
        )  # fmt: skip
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:  # also after Ctrl-C; what hangs in a driver call does not listen to SIGTERM
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_words(log: pathlib.Path, characters: int = 1500) -> str:
    """The end of what a command printed."""
    return log.read_text(encoding="utf-8", errors="replace")[-characters:] if log.exists() else ""


# ------------------------------------------------------------------------------------------------ part 1: does it work?


def versions(job: Job) -> Any:
    """mp.info(), the driver, PyTorch and cuDNN."""
    from . import gpu

    with device(job.device):
        return gpu.environment()


ATTRIBUTES = ("num_regs", "local_size_bytes", "shared_size_bytes", "max_threads_per_block")  # CuPy's names


def compiled(job: Job) -> Any:
    """Every kernel, compiled for this GPU: registers, bytes of local memory (spills among them), shared memory."""
    from tinymp.fast.cuda.kernels import STORAGE, Kernels, signatures, source

    folders = [ROOT / "tinymp", ROOT / "benchmarks"]
    files = sorted(path for folder in folders for path in folder.rglob("*.cu"))[: 2 if job.tiny else None]
    found: dict[str, Any] = {"kernels": {}, "errors": {}}
    with device(job.device):
        for path in files:
            for dtype, storage in STORAGE.items():
                name = f"{path.relative_to(ROOT)}, {storage}"
                try:
                    loaded = Kernels(str(path))
                    for kernel in signatures(source(path), storage):
                        attributes = getattr(loaded.load(kernel, dtype)[0], "attributes", {})  # the stand-in has none
                        found["kernels"][f"{name}, {kernel}"] = {k: attributes.get(k) for k in ATTRIBUTES}
                except Exception as error:  # the compiler's words; the other files are still compiled
                    found["errors"][name] = str(error)[:2000]
    if found["errors"]:
        raise Failed(found)
    return found


def instructions(job: Job) -> Any:
    """The special instructions against NumPy: how many results of each are wrong."""
    from . import units

    with device(job.device):
        wrong = units.check()
    if any(wrong.values()):
        raise Failed(wrong)
    return wrong


def tests(job: Job) -> Any:
    """The tests of kernels first, then those of backend, optim and ops."""
    patterns = ("fast/test_cuda_*.py", *(f"core/{part}/test_*.py" for part in ("backend", "optim", "ops")))
    files = [file for pattern in patterns for file in sorted((ROOT / "tests").glob(pattern))]
    return judged(run_tests(job, "tests", [str(file) for file in files if not job.tiny or file.stem == TINY]))


def pytest(job: Job, tests: list[str]) -> list[str]:
    """The command that runs tests, with no plugin but ours."""
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.poisoned", "-p", "no:cacheprovider", "-q"]
    command += ["-o", "addopts=", "--import-mode=importlib", "-W", "default", "--rootdir", str(ROOT)]
    command += ["--continue-on-collection-errors"]  # a file that needs a library that is not here
    return [*command, "--backend", job.device, *tests]


def run_tests(job: Job, name: str, tests: list[str], **environment: str) -> dict[str, Any]:
    """Run tests in several processes; where one of them loses its context, dies or hangs, a new one goes on behind it.

    Returns how many ended how, and what is to be known of those that did not pass.
    """
    count = 1 if job.tiny else max(1, min(4, (os.cpu_count() or 1) // 4))
    command = pytest(job, tests)

    def work(i: int) -> tuple[dict[str, Any], str | None]:
        log, path = (job.out / "logs" / f"{name}{i}.{kind}" for kind in ("txt", "jsonl"))
        for old in (log, path):
            old.unlink(missing_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        ended = None
        while job.left > 2:
            before = len(poisoned.read(path))
            settings = {"BRINGUP_RESULTS": str(path), "BRINGUP_SHARE": f"{i}/{count}"} | environment
            code = run(command, job.left, log, **settings)
            if code in (0, 1, 5):  # all passed, some failed, none are left
                break
            if code is None:
                ended = "no time for the rest"
            elif len(poisoned.read(path)) == before:  # pytest itself, or a file that it cannot import
                ended = f"pytest ended with code {code}: {last_words(log)}"
                break
        return poisoned.read(path), ended

    with ThreadPoolExecutor(count) as pool:
        shares = list(pool.map(work, range(count)))
    found = {test: entry for results, _ in shares for test, entry in results.items()}
    for entry in found.values():
        entry["outcome"] = "died" if entry["outcome"] == "started" else entry["outcome"]
    ended = [why for _, why in shares if why]
    outcomes = Counter(entry["outcome"] for entry in found.values())
    bad = {test: entry for test, entry in found.items() if entry["outcome"] not in ("passed", "skipped")}
    return {"outcomes": dict(outcomes), "not passed": bad, "ended early": ended}


def judged(result: dict[str, Any]) -> dict[str, Any]:
    """The result of tests; Failed where some did not pass or none did."""
    if result["not passed"] or result["ended early"] or not result["outcomes"].get("passed"):
        raise Failed(result)
    return result


# -------------------------------------------------------------------------------------- part 2: does it work by chance?


def failures(job: Job) -> Any:
    """The tests of part 1 that did not pass, each in a process of its own: which of them fail alone?"""
    path = job.out / "part1.json"
    if not path.exists():
        raise Absent(f"{path}: part 1 was not run, or with another --out")
    steps = {step["name"]: step for step in json.loads(path.read_text(encoding="utf-8"))["steps"]}
    before = (steps["tests"].get("result") or {}).get("not passed", {})
    found: dict[str, Any] = {}
    for i, test in enumerate(before):
        if job.left < 5:
            found[test] = "not run"
            continue
        blocking = {"CUDA_LAUNCH_BLOCKING": "1", "BRINGUP_LIMIT": "30"}  # the error is that of the launch that made it
        one = run_tests(job, f"alone{i}-", [test], **blocking)
        found[test] = one["not passed"].get(test) or one["outcomes"] or one["ended early"]
    if any(result != {"passed": 1} for result in found.values()):
        raise Failed(found)
    return found


def captured(job: Job) -> Any:
    """Training with captured steps against eager ones: losses, scales and weights, bit for bit."""
    from . import gpu, models

    steps = 5 if job.tiny else 200
    network, shape = (partial(models.cnn, size=4, width=2), (2, 1, 4, 4)) if job.tiny else (models.cnn, (64, 1, 28, 28))
    apart, weights = [], []
    with device(job.device):
        rng = np.random.default_rng(0)
        batches = [(rng.standard_normal(shape).astype("f2"), rng.integers(0, 10, shape[0])) for _ in range(8)]
        for capture in (False, True):
            model = gpu.made(network, mp.MIXED)
            step: Any = models.momentum_step(model, mp.MIXED)
            step = mp.capture(step) if capture else step
            losses = []
            for i in range(steps):
                images, labels = (mp.tensor(x) for x in batches[i % len(batches)])
                losses.append(step(images, labels).numpy().tobytes())
            apart.append(losses)
            weights.append({name: p.tobytes() for name, p in model.state_dict().items()})
    first = next((i for i, (a, b) in enumerate(zip(*apart)) if a != b), None)
    different = [name for name in weights[0] if weights[0][name] != weights[1][name]]
    result = {"steps": steps, "first loss that differs": first, "weights that differ": different}
    if first is not None or different:
        raise Failed(result)
    return result


TINY = "test_cuda_tables"  # the file that a rehearsal runs
GRAVE = ("conv", "norm", "pool", "loss", "recurrent", "optimizer")  # kernels with shared memory and odd edges


def filled(job: Job) -> Any:
    """The tests of kernels with new memory full of NaN: what is read before it is written shows."""
    files = sorted(ROOT.glob(f"tests/fast/{TINY if job.tiny else 'test_cuda_*'}.py"))
    return judged(run_tests(job, "filled", list(map(str, files)), BRINGUP_MEMORY="0xFF"))


def sanitized(job: Job, tool: str) -> dict[str, Any]:
    """compute-sanitizer over the tests of some kernels, with every array an allocation of its own.

    memcheck finds accesses out of bounds and misaligned ones, racecheck races in shared memory, synccheck barriers that
    not all threads reach.
    """
    folders = [f"{os.environ.get('CUDA_PATH', '/usr/local/cuda')}/{name}" for name in ("bin", "compute-sanitizer")]
    program = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], *folders]))
    if program is None:
        raise Absent("compute-sanitizer is neither on PATH nor in CUDA's folder")
    found: dict[str, Any] = {}
    names = GRAVE[-1:] if job.tiny else GRAVE
    for i, name in enumerate(names):
        file = ROOT / "tests" / "fast" / f"test_cuda_{name}.py"
        log, results = (job.out / "logs" / f"{tool}-{name}.{kind}" for kind in ("txt", "jsonl"))
        for old in (log, results):
            old.unlink(missing_ok=True)
        command = [program, "--tool", tool, "--error-exitcode", "99", "--print-limit", "20"]
        command += pytest(job, [str(file), *(["-k", "nothing"] if job.tiny else [])])
        settings = {"BRINGUP_RESULTS": str(results), "BRINGUP_MEMORY": "no pool", "BRINGUP_LIMIT": "600"}
        code = run(command, job.left / (len(names) - i), log, **settings)
        said = log.read_text(encoding="utf-8", errors="replace")
        errors = re.findall(r"SUMMARY: (?:\d+ hazards? displayed \()?(\d+) error", said)
        found[name] = {
            "code": code,
            "errors": sum(map(int, errors)) if errors else None,
            "outcomes": dict(Counter(entry["outcome"] for entry in poisoned.read(results).values())),
            "first": [line for line in said.splitlines() if line.startswith("=========")][:30] if code else [],
        }
    if any(one["code"] not in (0, None) or one["errors"] for one in found.values()):
        raise Failed(found)
    return found


# -------------------------------------------------------------------------------------- parts 3 and 4: how fast is it?


def section(job: Job, name: str) -> Any:
    """A section of benchmarks/gpu.py."""
    from . import gpu

    report = gpu.measured([name], job.device, job.tiny, job.out / f"gpu-{name}.json", job.left)
    if report.failed:
        raise Failed(report.rows)
    return report.rows


def tiles(job: Job) -> Any:
    """How fast each tile of fast/cuda/conv.py is, relative to the fastest: measured, and as its table has it."""
    from tinymp import ops
    from tinymp.fast.cuda import conv

    from .report import Report
    from .timing import Bench

    n, c, size = (8, 8, 4) if job.tiny else (64, 256, 56)
    found: dict[str, Any] = {}
    table = conv.TILES
    with device(job.device):
        bench = Bench(Report(), job.tiny, job.device == "gpu", job.left)
        x = mp.Tensor(conv.batch_first(bench.random((c, size, size, n))))
        w = mp.Tensor(bench.random((2 * c, c, 3, 3)))  # many full waves of every tile, and a long sum
        operations = 2 * w.numel() * x.numel() / c
        try:
            for i, tile in enumerate(table):
                conv.TILES = (tile,)
                conv.schedule.cache_clear()
                times = bench.times({"": lambda: ops.conv2d(x, w, padding=1)}, bench.share(len(table) - i))
                rate = operations / statistics.median(times[""]) / 1e12
                found[f"{tile.rows}x{tile.columns}"] = {"TFLOP/s": rate, "in the table": tile.speed}
        finally:
            conv.TILES = table
            conv.schedule.cache_clear()
    largest = max(found.values(), key=lambda one: one["in the table"])  # what the others are relative to
    for name, one in found.items():
        one["measured"] = one["TFLOP/s"] / largest["TFLOP/s"] * largest["in the table"]
        print(
            f"{name:<10} {one['TFLOP/s']:8.1f} TFLOP/s  {one['measured']:.2f}, in the table {one['in the table']:.2f}"
        )
    return found


def results(job: Job) -> Any:
    """All rows of parts 3 and 4 as one gpu.json, for benchmarks/results."""
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(job.out.glob("gpu-*.json"))]
    if not parts:
        raise Absent(f"{job.out}: no section has run")
    whole = {
        "rows": [row for part in parts for row in part["rows"]],
        "cases": {name: cases for part in parts for name, cases in part["cases"].items()},
        "environment": parts[-1]["environment"],
        "seconds": sum(part["seconds"] for part in parts),
    }
    write(job.out / "gpu.json", whole)
    return {"rows": len(whole["rows"])}


# ---------------------------------------------------------------------------------------------------------------- main


def _steps(*steps: tuple[Callable[[Job], Any] | str, float]) -> list[Step]:
    """Steps by their functions, or by the name of a section or of a tool of compute-sanitizer."""
    return [
        Step(run.__name__, run, seconds)
        if callable(run)
        else Step(run, partial(sanitized, tool=run) if run.endswith("check") else partial(section, name=run), seconds)
        for run, seconds in steps
    ]


PARTS = {
    1: _steps((versions, 40), (compiled, 140), (instructions, 40), (tests, 310)),
    2: _steps((failures, 80), (captured, 50), ("memcheck", 160), (filled, 90), ("racecheck", 100), ("synccheck", 50)),
    3: _steps((tiles, 60), ("gemm", 160), ("conv", 310)),
    4: _steps(("training", 270), ("recurrent", 110), ("memory", 90), ("sums", 20), (results, 40)),
}


def here(step: Step, job: Job, path: pathlib.Path) -> None:
    """Run a step in this process, and write what it found."""
    try:
        entry = {"state": "done", "result": step.run(job)}
    except Absent as error:
        entry = {"state": "absent", "error": str(error)}
    except Failed as error:
        entry = {"state": "failed", "result": error.result}
    except Exception as error:
        entry = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
    write(path, entry)


def apart(step: Step, part: int, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Run a step in a process of its own; its entry for the JSON."""
    start = time.monotonic()
    found, log = options.out / "logs" / f"{step.name}.json", options.out / "logs" / f"{step.name}.log"
    for old in (found, log):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.bringup", str(part), "--step", step.name, "--out", str(options.out)]
    command += ["--device", options.device, "--seconds", str(seconds - GRACE), *["--tiny"] * options.tiny]
    code = run(command, seconds, log, CUPY_CACHE_DIR=str(options.out / "cupy"))
    entry = {"name": step.name, "seconds": round(time.monotonic() - start, 1)}
    if found.exists():
        return entry | json.loads(found.read_text(encoding="utf-8"))
    state = "timed out" if code is None else "died"
    return entry | {"state": state, "error": f"exit code {code}: {last_words(log)}"}


def part(number: int, options: argparse.Namespace, seconds: float = PART) -> list[dict[str, Any]]:
    """Run the steps of a part, write its JSON as it goes; returns the entries."""
    end, steps = time.monotonic() + seconds, PARTS[number]
    entries = [{"name": step.name, "state": "not run"} for step in steps]
    for i, step in enumerate(steps):
        later = sum(other.seconds for other in steps[i + 1 :])
        left = end - time.monotonic()
        if left < 2 * GRACE:
            break
        entries[i] = apart(step, number, options, min(max(left - later, step.seconds), left))
        print(
            f"{step.name:<16} {entries[i]['state']:<10} {entries[i]['seconds']:6.1f} s  {_short(entries[i])}",
            flush=True,
        )
        write(options.out / f"part{number}.json", {"steps": entries, "device": options.device})
    write(options.out / f"part{number}.json", {"steps": entries, "device": options.device})
    return entries


def _short(entry: dict[str, Any]) -> str:
    """What to say of a step on one line."""
    result = entry.get("error") or (entry.get("result") if entry["state"] == "failed" else "")
    return " ".join(str(result).split())[-300:]


def main(arguments: list[str] | None = None) -> int:
    """Run a part. Returns the exit code."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.bringup", description=__doc__.split("\n\n")[0])
    p.add_argument("part", type=int, choices=PARTS)
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/bringup"), help="where the JSON goes")
    p.add_argument("--device", choices=("gpu", "cuda-on-cpu"), default="gpu", help="cuda-on-cpu: the tests' stand-in")
    p.add_argument("--tiny", action="store_true", help="tiny sizes: shows that everything runs")
    p.add_argument("--step", help=argparse.SUPPRESS)
    p.add_argument("--seconds", type=float, default=PART, help=argparse.SUPPRESS)
    options = p.parse_args(arguments)
    options.out = options.out.resolve()
    if options.device == "cuda-on-cpu" and not options.tiny:
        p.error("--device cuda-on-cpu runs every thread of every kernel on the CPU: add --tiny")
    if options.step:
        step = next(step for step in PARTS[options.part] if step.name == options.step)
        job = Job(options.out, options.device, options.tiny, time.monotonic() + options.seconds)
        here(step, job, options.out / "logs" / f"{step.name}.json")
        return 0
    entries = part(options.part, options)
    return int(any(entry["state"] not in ("done", "absent") for entry in entries))


if __name__ == "__main__":
    sys.exit(main())
