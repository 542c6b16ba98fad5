"""A GPU's first half hour: are the kernels right, how fast are they, and why does something fail?

    python -m benchmarks.bringup {1,2,3} [--out DIR] [--seconds 560] [--only STEP] [--device cuda-on-cpu --tiny]

Three calls of at most ten minutes, each complete in itself. A call is a list of steps, a step a list of cases. Each
step runs in processes of its own with a time limit: where a lost CUDA context, a crash or a hang ends one, another goes
on behind that case. DIR/STEP.json is written after every case, DIR/callN.json after every step, and every few seconds
all of it becomes one archive of at most 16 MB, DIR/bringup.zip. The same command again goes on where it ended, from
what that archive holds, too; what is known is not run again. --device cuda-on-cpu --tiny is the rehearsal without a
GPU. The exit code is 1 if a step did not end well; an absent program is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import tinymp as mp
from tinymp.checkpoint import writing

from . import poisoned
from .machine import device, write
from .report import Absent, Report, TimeUp

ROOT = pathlib.Path(__file__).parents[1]
SECONDS = 560  # of a call
OUT_OF_TIME = "no time for the rest"
GRACE = 10  # seconds that a step has to end by itself
HANGS = 150  # seconds without a result after which a process is ended
MOST = 15_500_000  # bytes of the archive


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
    """A function, and the seconds that it may take (what earlier ones left over is its, too)."""

    name: str
    run: Callable[[Job], None]
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
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )  # fmt: skip
        RUNNING.add(process.pid)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:  # also after Ctrl-C; what hangs in a driver call does not listen to SIGTERM
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            RUNNING.discard(process.pid)


RUNNING: set[int] = set()  # processes that `run` waits for


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also where this process is killed itself


def last_words(log: pathlib.Path, characters: int = 1500) -> str:
    """The end of what a command printed."""
    return log.read_text(encoding="utf-8", errors="replace")[-characters:] if log.exists() else ""


def program(name: str, *folders: str) -> str:
    """Where a program of the CUDA toolkit lies. Absent where it does not."""
    cuda = os.environ.get("CUDA_PATH", "/usr/local/cuda")
    path = os.pathsep.join([os.environ["PATH"], *(f"{cuda}/{folder}" for folder in ("bin", *folders))])
    if (found := shutil.which(name, path=path)) is None:
        raise Absent(f"{name} is neither on PATH nor in CUDA's folder")
    return found


# ---------------------------------------------------------------------------------------------------------- the steps


ATTRIBUTES = ("num_regs", "local_size_bytes", "shared_size_bytes", "max_threads_per_block")  # CuPy's names


def versions(job: Job) -> None:
    """mp.info(), the driver, PyTorch and cuDNN."""
    from . import gpu

    job.report.case("versions", "environment", gpu.environment)


def section(name: str, job: Job) -> None:
    """A section of benchmarks/gpu.py."""
    from . import gpu
    from .timing import Bench

    with job.report.row(name):
        gpu.SECTIONS[name](Bench(job.report, job.tiny, job.device == "gpu", job.left))


def pytest(job: Job, tests: list[str]) -> list[str]:
    """The command that runs tests, with no plugin but ours."""
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.poisoned", "-p", "no:cacheprovider", "-q"]
    command += ["-o", "addopts=", "--import-mode=importlib", "-W", "default", "--rootdir", str(ROOT)]
    command += ["--continue-on-collection-errors"]  # a file that needs a library that is not here
    return [*command, "--backend", job.device, *tests]


TINY = "test_flags", "test_tables", "test_elementwise", "test_against_torch"  # the files that a rehearsal runs,
TINY_ONLY = "flags or tables or relu"  # and the tests


def suite(name: str, patterns: Sequence[str], job: Job, only: str = "", **options: Any) -> None:
    """The tests of some files, or of these those that `only` selects (pytest's -k); options: of `run_tests`."""
    paths = [path for pattern in patterns for path in sorted((ROOT / "tests").glob(pattern))]
    names = [str(path) for path in paths if path.stem in TINY or not job.tiny]
    tests = [*names, "-k", TINY_ONLY if job.tiny else only]
    result = run_tests(job, name, tests, **options)
    job.report.cases[name] = [
        {"case": "all", "outcomes": result["outcomes"], "said": result["said"]},
        *({"case": test, "error": f"{e['outcome']}: {e['error']}"} for test, e in result["not passed"].items()),
    ]
    if result["ended early"]:
        raise TimeUp if set(result["ended early"]) == {OUT_OF_TIME} else RuntimeError(result["ended early"])


def run_tests(
    job: Job, name: str, tests: list[str], processes: int = 12, tool: Sequence[str] = (), **environment: str
) -> dict[str, Any]:
    """Run tests in several processes; where one of them loses its context, dies or hangs, a new one goes on behind it.

    Returns how many ended how, what they recorded, and what is to be known of those that did not pass.
    """
    count = 1 if job.tiny else max(1, min(processes, (os.cpu_count() or 1) * 3 // 4))
    command = [*tool, *pytest(job, tests)]

    def work(i: int) -> tuple[dict[str, Any], str | None]:
        log, path = (job.out / "logs" / f"{name}{i}.{kind}" for kind in ("txt", "jsonl"))
        log.parent.mkdir(parents=True, exist_ok=True)
        # what began when the call before was killed runs again
        ended = [{"test": test} | e for test, e in poisoned.read(path).items() if e["outcome"] != "started"]
        writing.write(path, "".join(json.dumps(entry) + "\n" for entry in ended))
        while job.left > 2:
            before = len(poisoned.read(path))
            settings = {"BRINGUP_RESULTS": str(path), "BRINGUP_SHARE": f"{i}/{count}"} | environment
            code = run(command, job.left, log, **settings)
            if code in (0, 1, 5):  # all passed, some failed, none are left
                return poisoned.read(path), None
            if code is not None and len(poisoned.read(path)) == before:  # pytest itself, or a file, cannot begin
                return poisoned.read(path), f"pytest ended with code {code}: {last_words(log)}"
        return poisoned.read(path), OUT_OF_TIME

    with ThreadPoolExecutor(count) as pool:
        shares = list(pool.map(work, range(count)))
    found = {test: entry for results, _ in shares for test, entry in results.items()}
    for entry in found.values():
        entry["outcome"] = "died" if entry["outcome"] == "started" else entry["outcome"]
    bad = {test: entry for test, entry in found.items() if entry["outcome"] not in ("passed", "skipped")}
    return {
        "outcomes": dict(Counter(entry["outcome"] for entry in found.values())), "not passed": bad,
        "said": {test: entry["said"] for test, entry in found.items() if entry.get("said")},
        "ended early": [why for _, why in shares if why],
    }  # fmt: skip


def compiled(job: Job) -> None:
    """Every kernel of tinymp/gpu/*.cu for this GPU: registers, bytes of local memory (spills), shared memory."""
    from tinymp.gpu.kernels import STORAGE, Kernels, signatures, source

    def one(path: pathlib.Path, dtype: Any, storage: str) -> dict[str, Any]:
        loaded = Kernels(str(path))
        every = {kernel: loaded.load(kernel, dtype)[0] for kernel in signatures(source(path), storage)}
        found = {kernel: getattr(x, "attributes", {}) for kernel, x in every.items()}  # the stand-in has none
        return {kernel: {k: x.get(k) for k in ATTRIBUTES} for kernel, x in found.items()}

    for path in sorted((ROOT / "tinymp" / "gpu").glob("*.cu"))[: 2 if job.tiny else None]:
        for dtype, storage in STORAGE.items():
            job.report.case("compiled", f"{path.name}, {storage}", partial(one, path, dtype, storage))


def tiles(job: Job) -> None:
    """How fast each tile of gpu/conv.py is, relative to the fastest: measured, and as its table has it."""
    from tinymp import ops
    from tinymp.gpu import conv

    from .timing import Bench

    n, c, size = (8, 8, 4) if job.tiny else (64, 256, 56)
    table, bench = conv.TILES, Bench(job.report, job.tiny, job.device == "gpu", job.left)
    x = mp.Tensor(conv.batch_first(bench.random((c, size, size, n))))
    w = mp.Tensor(bench.random((2 * c, c, 3, 3)))  # many full waves of every tile, and a long sum

    def one(tile: Any, left: int) -> dict[str, Any]:
        conv.TILES = (tile,)
        conv.schedule.cache_clear()
        try:
            times = bench.times({"": lambda: ops.conv2d(x, w, padding=1)}, bench.share(left))
        finally:
            conv.TILES = table
            conv.schedule.cache_clear()
        rate = 2 * w.numel() * x.numel() / c / statistics.median(times[""]) / 1e12
        return {"TFLOP/s": rate, "in the table": tile.speed}

    for i, tile in enumerate(table):
        job.report.case("tiles", f"{tile.rows}x{tile.columns}", partial(one, tile, len(table) - i))
    done = [entry for entry in job.report.cases["tiles"] if "TFLOP/s" in entry]
    largest = max(done, key=lambda one: one["in the table"])  # what the others are relative to
    for entry in done:
        entry["measured"] = entry["TFLOP/s"] / largest["TFLOP/s"] * largest["in the table"]


def alone(job: Job) -> None:
    """The first two mixed steps of the network BRINGUP_NETWORK in this process, which began at BRINGUP_BEGAN, and a
    third between the marks that ncu looks for.
    """
    from . import gpu
    from .timing import Bench

    def steps() -> dict[str, Any]:
        bench, found = Bench(job.report, job.tiny, job.device == "gpu", job.left), {}
        step = gpu.workloads(job.tiny)[os.environ["BRINGUP_NETWORK"]].step(bench, mp.MIXED)
        for which in ("first", "second"):
            step()
            mp.synchronize()
            found[f"seconds to the end of the {which} step"] = round(
                time.time() - float(os.environ["BRINGUP_BEGAN"]), 3
            )
        marks = bench.xp.cuda.runtime
        for act in (getattr(marks, "profilerStart", None), step, mp.synchronize, getattr(marks, "profilerStop", None)):
            if act:
                act()
        return found

    job.report.case("alone", os.environ["BRINGUP_NETWORK"], steps)


def run_alone(job: Job, network: str, log: pathlib.Path, tool: Sequence[str] = (), **environment: str) -> Any:
    """Run `alone` under a tool, or as it is: the exit code, and what it found."""
    out = job.out / "under"
    shutil.rmtree(out, ignore_errors=True)
    command = [*tool, sys.executable, "-m", "benchmarks.bringup", "1", "--step", "alone", "--out", str(out)]
    command += ["--device", job.device, "--seconds", str(max(job.left - 2, 1)), *["--tiny"] * job.tiny]
    environment |= {"BRINGUP_NETWORK": network, "BRINGUP_BEGAN": str(time.time())}
    code = run(command, job.left, log, **environment)
    return code, known(out / "1-alone.json").get("cases", {}).get("alone", [{"error": f"exit code {code}"}])[0]


def first(job: Job) -> None:
    """The seconds from the start of a process to the end of its first mixed steps, by network: with an empty cache of
    kernels, and with what that process left there.
    """
    from . import gpu

    def one(network: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as cache:
            log, found = job.out / "logs" / "first.txt", {}
            for state in ("empty", "filled"):
                _, case = run_alone(job, network, log, CUPY_CACHE_DIR=cache)
                if "error" in case:
                    raise RuntimeError(f"{case['error']}: {last_words(log, 500)}")
                found[f"{state} cache"] = case
            return found | {"files in the cache": len(os.listdir(cache))}

    for network in gpu.workloads(job.tiny):
        job.report.case("first", network, partial(one, network))


METRICS = ["gpu__time_duration.sum", "launch__registers_per_thread"]
METRICS += [f"{unit}__throughput.avg.pct_of_peak_sustained_elapsed" for unit in ("dram", "sm")]


def ncu(job: Job) -> None:
    """The ten kernels that take longest in a mixed step of ResNet-50."""
    # the card's clocks are left as they are
    command = [program("ncu"), "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    command += ["--print-units", "base", "--metrics", ",".join(METRICS)]

    def dearest() -> dict[str, Any]:
        log, found = job.out / "logs" / "ncu.csv", Counter()
        log.unlink(missing_ok=True)
        code, _ = run_alone(job, "CNN" if job.tiny else "ResNet-50, batch 128", log, command)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
        rows = [row for row in csv.DictReader(lines[first:]) if row["ID"].isdigit()]
        for row in rows:
            row["ns"] = float(row[METRICS[0]].replace(",", ""))
            found[row["Kernel Name"]] += row["ns"]
        dearest = {}
        for name, ns in found.most_common(10):
            mine = [row for row in rows if row["Kernel Name"] == name]
            longest = max(mine, key=lambda row: row["ns"])
            of_longest = {metric: longest.get(metric) for metric in METRICS}
            dearest[name[:120]] = {"ms": ns / 1e6, "launches": len(mine), "the longest": of_longest}
        error = {} if dearest else {"error": f"ncu ended with code {code}: {last_words(log, 500)}"}
        return {"launches": len(rows), "ms": sum(found.values()) / 1e6, "dearest": dearest} | error

    job.report.case("ncu", "mixed", dearest)


def failures(job: Job) -> None:
    """Run each test that did not pass in calls 1 and 2 in a process of its own: which fails alone, and where?"""
    logs = [path for name in ("traced", "tests", "kernels") for path in (job.out / "logs").glob(f"{name}[0-9]*.jsonl")]
    known = [(test, e) for path in logs for test, e in poisoned.read(path).items()]
    if not known:
        raise Absent("no tests were run with this --out")

    def alone(test: str, i: int) -> dict[str, Any]:
        blocking = {"CUDA_LAUNCH_BLOCKING": "1", "BRINGUP_LIMIT": "30"}  # the error is that of the launch that made it
        one = run_tests(job, f"alone{i}-", [test], 1, **blocking)
        wrong = one["not passed"].get(test) or one["ended early"]
        return {"error": str(wrong)} if wrong else one["outcomes"]

    for i, (test, entry) in enumerate(known):
        if entry["outcome"] not in ("passed", "skipped"):
            job.report.case("failures", test, partial(alone, test, i))


def sanitized(tool: str, job: Job) -> None:
    """compute-sanitizer over kernels and ops, on tiny arrays, each an allocation of its own: memcheck finds accesses
    out of bounds and misaligned ones, racecheck races in shared memory.
    """
    command = [program("compute-sanitizer", "compute-sanitizer"), "--tool", tool, "--error-exitcode", "99"]
    settings = {"BRINGUP_MEMORY": "no pool", "BRINGUP_LIMIT": "100", "TEST_SIZES": "tiny"}
    try:
        command += ["--print-limit", "20"]
        suite(tool, KERNELS + AGAINST, job, "not nvrtc", processes=8, tool=command, **settings)
    finally:
        said = "".join(last_words(log, 10**7) for log in sorted((job.out / "logs").glob(f"{tool}[0-9]*.txt")))
        errors = sum(map(int, re.findall(r"SUMMARY: (?:\d+ hazards? displayed \()?(\d+) error", said)))
        first = [line for line in said.splitlines() if line.startswith("=========")][:40]
        found = {"error": f"{errors} errors", "first": first} if errors else {}
        job.report.cases.setdefault(tool, []).append({"case": "the sanitizer", "errors": errors} | found)


# ---------------------------------------------------------------------------------------------------------------- main


def _section(name: str, seconds: float) -> Step:
    return Step(name, partial(section, name), seconds)


def _suite(name: str, seconds: float, patterns: Sequence[str], only: str = "", **options: Any) -> Step:
    return Step(name, partial(suite, name, patterns, only=only, **options), seconds)


AGAINST, KERNELS = ["core/test_against_torch.py"], ["gpu/test_*.py"]
CALLS = {
    1: [
        *(Step("versions", versions, 15), _suite("traced", 60, ["gpu/test_elementwise.py"])),
        _suite("ops", 110, AGAINST, "test_op", processes=4),
        *(_section("training", 225), Step("first", first, 125), _section("same_bits", 30)),
    ],
    2: [
        _suite("kernels", 90, KERNELS, "not elementwise and not nvrtc"),
        _suite("tests", 170, ["core/**/test_*.py"], "not test_against_torch"),
        *(Step("compiled", compiled, 40), _section("gains", 90), Step("tiles", tiles, 15), _section("gemm", 40)),
        *(_section("conv", 65), _section("recurrent", 35), Step("ncu", ncu, 20)),
    ],
    3: [
        *(Step("failures", failures, 110), Step("memcheck", partial(sanitized, "memcheck"), 150)),
        *(Step("racecheck", partial(sanitized, "racecheck"), 120), _section("sums", 20), _section("memory", 55)),
        _suite("large", 30, AGAINST, "many or count", processes=1),
        _suite("filled", 80, KERNELS, "not nvrtc", BRINGUP_MEMORY="0xFF"),
    ],
}
ALONE = Step("alone", alone, 0)


def known(path: pathlib.Path) -> dict[str, Any]:
    """The content of a JSON file; nothing where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def here(step: Step, job: Job, path: pathlib.Path) -> None:
    """Run a step in this process. `path` has what it found, after each case; "state" is there once it has ended."""

    def hung() -> None:
        if not RUNNING:  # it waits inside CUDA: no exception would reach it
            os._exit(poisoned.HUNG)

    watch = threading.Timer(HANGS, hung)

    def save(report: Report, **state: str) -> None:
        nonlocal watch
        write(path, {"rows": report.rows, "cases": report.cases} | state)
        watch.cancel()
        watch = threading.Timer(HANGS, hung)
        watch.daemon = True
        watch.start()
        if not state and poisoned.FATAL.search(report.latest.get("error", "")):
            os._exit(poisoned.LOST)

    report, state = Report(save, job.end, known(path).get("cases")), {"state": "done"}
    job = job._replace(report=report)
    try:
        with device(job.device), warnings.catch_warnings():
            warnings.filterwarnings("error", "capture: ")  # what should be a graph's time is not to be another's
            step.run(job)
        state = {"state": "failed"} if report.failed else state
    except Absent as error:
        state = {"state": "absent", "error": str(error)}
    except TimeUp:
        state = {"state": OUT_OF_TIME}
    except Exception as error:
        state = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
    save(report, **state)
    watch.cancel()


def apart(step: Step, number: int, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Run a step in a process of its own; its entry for the JSON. One that ends in the middle of a case is followed by
    another, which goes on behind that.
    """
    start = time.monotonic()
    found, log = options.out / f"{number}-{step.name}.json", options.out / "logs" / f"{number}-{step.name}.log"
    command = [sys.executable, "-m", "benchmarks.bringup", str(number), "--step", step.name, "--out", str(options.out)]
    command += ["--device", options.device, *["--tiny"] * options.tiny]
    result: dict[str, Any] = {}
    while (left := seconds - (time.monotonic() - start)) > 1 and "state" not in result:
        before = known(found)
        if before.pop("state", None):
            write(found, before)
        code = run([*command, "--seconds", str(left - GRACE)], left, log, CUPY_CACHE_DIR=str(options.out / "cupy"))
        result = known(found)
        if "state" not in result and code is not None and result.get("cases") == before.get("cases"):
            result |= {"state": "died", "error": f"exit code {code}: {last_words(log)}"}
    cases = [(group, c) for group, some in result.get("cases", {}).items() for c in some]
    cases += [("", {"case": row["work"], **row}) for row in result.get("rows", [])]
    return {
        "name": step.name, "state": result.get("state", OUT_OF_TIME), "seconds": round(time.monotonic() - start, 1),
        "cases": len(cases), "error": result.get("error"),
        "wrong": [f"{group}, {c['case']}: {c['error']}"[:300] for group, c in cases if c.get("error")],
    }  # fmt: skip


def archived(out: pathlib.Path) -> None:
    """All that was found as one file, the small files first, of long ones the end."""
    with contextlib.suppress(FileNotFoundError):  # a file that has just been replaced: next time
        files = [path for path in out.rglob("*") if path.suffix in (".json", ".jsonl", ".txt", ".log", ".csv")]
        partial_ = out / "bringup.zip.part"
        with zipfile.ZipFile(partial_, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(files, key=lambda path: (path.suffix not in (".json", ".jsonl"), path.stat().st_size)):
                left = MOST - (archive.fp.tell() if archive.fp else 0) - 200 * len(files)
                if left > 0 and out / "cupy" not in path.parents:
                    archive.writestr(str(path.relative_to(out)), path.read_bytes()[-min(left, 2_000_000) :])
        partial_.replace(out / "bringup.zip")


def call(number: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the steps of a call that are not known to have ended, write its JSON as it goes; returns the entries."""
    end, steps = time.monotonic() + options.seconds, CALLS[number]
    path, over = options.out / f"call{number}.json", threading.Event()
    before = {entry["name"]: entry for entry in known(path).get("steps", [])}
    unknown = "not run", OUT_OF_TIME
    entries = [before.get(step.name, {"name": step.name, "state": "not run"}) for step in steps]
    if options.only:
        entries = [e | {"state": "not run"} if e["name"] == options.only else e for e in entries]
        for old in [
            *options.out.glob(f"{number}-{options.only}.json"),
            *options.out.glob(f"logs/{options.only}[0-9]*"),
        ]:
            old.unlink()

    def keep() -> None:
        while not over.wait(5):
            archived(options.out)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    for i, step in enumerate(steps):
        left = end - time.monotonic()
        if entries[i]["state"] not in unknown or (options.only or step.name) != step.name or left < 2 * GRACE:
            continue
        later = sum(s.seconds for s, e in zip(steps[i + 1 :], entries[i + 1 :]) if e["state"] in unknown)
        entries[i] = apart(step, number, options, min(max(left - later, step.seconds), left))
        short = " ".join(str(entries[i]["wrong"][:3] or entries[i]["error"] or "").split())[-300:]
        print(f"{step.name:<18} {entries[i]['state']:<20} {entries[i]['seconds']:6.1f} s  {short}", flush=True)
        write(path, {"steps": entries, "device": options.device})
    write(path, {"steps": entries, "device": options.device})
    over.set()
    keeper.join()
    archived(options.out)
    return entries


def main(arguments: list[str] | None = None) -> int:
    """Run a call. Returns the exit code."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.bringup", description=__doc__.split("\n\n")[0])
    p.add_argument("call", type=int, choices=CALLS)
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/bringup"), help="where the JSON goes")
    p.add_argument("--seconds", type=float, default=SECONDS, help="how long the call may take")
    p.add_argument("--only", help="one step, again")
    p.add_argument("--device", choices=("gpu", "cuda-on-cpu"), default="gpu", help="cuda-on-cpu: the tests' stand-in")
    p.add_argument("--tiny", action="store_true", help="tiny sizes: shows that everything runs")
    p.add_argument("--step", help=argparse.SUPPRESS)
    options = p.parse_args(arguments)
    options.out = options.out.resolve()
    if options.device == "cuda-on-cpu" and not options.tiny:
        p.error("--device cuda-on-cpu runs every thread of every kernel on the CPU: add --tiny")
    if options.step:
        step = next(step for step in [*CALLS[options.call], ALONE] if step.name == options.step)
        job = Job(options.out, options.device, options.tiny, time.monotonic() + options.seconds, Report())
        here(step, job, options.out / f"{options.call}-{step.name}.json")
        return 0
    if options.only and options.only not in [step.name for step in CALLS[options.call]]:
        p.error(f"call {options.call} has the steps {', '.join(step.name for step in CALLS[options.call])}")
    options.out.mkdir(parents=True, exist_ok=True)
    archive = options.out / "bringup.zip"
    if archive.exists() and not (options.out / f"call{options.call}.json").exists():
        with zipfile.ZipFile(archive) as found:
            found.extractall(options.out)
    entries = call(options.call, options)
    return int(any(entry["state"] not in ("done", "absent") for entry in entries))


if __name__ == "__main__":
    sys.exit(main())
