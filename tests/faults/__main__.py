"""Plant 200 faults, one at a time, in a copy of the repository, and note which test finds each.

    python -m tests.faults                  all of them; tests/faults/found.json has the results
    python -m tests.faults --part optim     those of one part, or --name adam_eps_in_root: one
    python -m tests.faults --record         first see anew which test file calls which function
    python -m tests.faults --show           the table of the results that are there

faults.txt lists them: a name, a kind, a file below tinymp/, a function or Class.method in it; a text that stands there
once (blanks count as one); and what a person could have written instead. A function that has moved is looked for in the
package. A fault whose text is gone is stale: it must be planted anew.

Only test files that call the function are run, until a test fails: first the one that found the fault last, then those
of its name, quick ones before slow ones. Which do is recorded once, in a temporary folder. Files that read the source
as text would find any change, and are left out (EXCLUDED), and so are notebooks. A run that hangs counts as killed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
FAULTS, FOUND = Path(__file__).with_name("faults.txt"), Path(__file__).with_name("found.json")
CACHE = Path(tempfile.gettempdir()) / f"tinymp-faults-{sha256(str(ROOT).encode()).hexdigest()[:8]}"
_LEFT_OUT = "docs/", "faults/", "ptx/", "guards/test_rounding", "guards/test_s", "guards/test_layers"
EXCLUDED = tuple(f"tests/{name}" for name in _LEFT_OUT)
SLOW = tuple(f"tests/{name}/" for name in ("benchmarks", "course", "examples", "gpu", "guards", "lab", "parallel"))
SLOW += ("tests/face/test_programs",)
BATCHES = (20, 60, 200)  # seconds of tests that one process runs: most faults need the first alone
TICKS = count(2**30, 2)  # when a module was written: no compiled one is from then

# Put into the copy's tinymp/__init__.py: every process notes the functions that it calls, when it first calls them.
RECORDER = """
def _record(path):
    import os, sys, threading
    seen, folder = {}, __file__[:-11]
    def note(frame, event, argument):
        code = frame.f_code
        if id(code) not in seen:
            seen[id(code)] = code
            if code.co_filename.startswith(folder):
                file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(file, f"{code.co_filename[len(folder):]} {code.co_qualname}\\n".encode())
                os.close(file)
    threading.settrace(note)
    sys.settrace(note)
if path := __import__("os").environ.get("FAULTS_RECORD"):
    _record(path)
"""


class Stale(Exception):
    """The text of a fault is not there, or more than once."""


class Fault(NamedTuple):
    part: str
    name: str
    kind: str
    file: str
    function: str
    old: str
    new: str

    def planted(self, package: Path) -> tuple[Path, str]:
        """The file in which it is planted, and its text with the fault in it."""
        words, own = re.compile(r"\s+".join(map(re.escape, self.old.split()))), package / self.file
        files = [own] if own.exists() and self.function in functions(own) else sorted(package.rglob("*.py"))
        places = [
            (path, source[: m.start()] + self.new + source[m.end() :])
            for path in files
            for source in [path.read_text(encoding="utf-8")]
            for low, high in functions(path).get(self.function, [])
            for m in words.finditer(source, low, high)
        ]
        if len(places) != 1:
            raise Stale(f"{self.name}: {self.function} of {self.file} has its text {len(places)} times, not once")
        return places[0]


def functions(path: Path) -> dict[str, list[tuple[int, int]]]:
    """The functions and classes in a file, by their qualified names: where each begins and ends."""
    starts, found = [0], {}
    tree = ast.parse(source := path.read_text(encoding="utf-8"))
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, outer = waiting.pop()
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                name = f"{outer}.{child.name}".strip(".")
                found.setdefault(name, []).append((starts[child.lineno - 1], starts[child.end_lineno or -1]))
            waiting.append((child, name))
    return found


def read(path: Path = FAULTS) -> list[Fault]:
    faults: list[Fault] = []
    part = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            part = line[3:]
        elif head := re.fullmatch(r"(\w+) \(([\w ]+)\) (\S+) (\S+)", line):
            faults.append(Fault(part, *head.groups(), "", ""))
        elif line[:2] in ("- ", "+ "):
            faults[-1] = faults[-1]._replace(**{"old" if line[0] == "-" else "new": line[2:]})
    return faults


def pytest(folder: Path, files: list[str], limit: float, *more: str, **environment: str) -> tuple[int, str]:
    """Run test files in a copy: pytest's exit status, and what it said. A status of -1: it hung."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", *more]
    own = os.environ | {"PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1", **environment}
    with tempfile.TemporaryFile("w+") as said:
        job = subprocess.Popen(
            [*command, *files], cwd=folder, env=own, stdout=said, stderr=said, start_new_session=True
        )
        try:
            status = job.wait(limit)
        except subprocess.TimeoutExpired:
            status = -1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)  # with what it has started
        job.wait()
        said.seek(0)
        return status, said.read()


def in_copies(work: Callable[[Path, Any], None], items: list, processes: int) -> None:
    """work(folder, item) for all items, in so many processes at any time, each with a copy of the repository."""
    folders: queue.Queue[Path] = queue.Queue()
    ignored = shutil.ignore_patterns(".git", ".*_cache", ".hypothesis", "__pycache__")
    for i in range(min(processes, len(items))):
        shutil.rmtree(CACHE / f"copy{i}", ignore_errors=True)
        folders.put(shutil.copytree(ROOT, CACHE / f"copy{i}", ignore=ignored))

    def one(item: Any) -> None:
        folder = folders.get()
        try:
            work(folder, item)
        finally:
            folders.put(folder)

    with ThreadPoolExecutor(max(processes, 1)) as pool:
        list(pool.map(one, items))


def record(processes: int, anew: bool) -> dict[str, Any]:
    """By test file: what it calls when it is run alone, its seconds, pytest's exit status. Changed files run again."""
    file, lock, known = CACHE / "called.json", Lock(), {}
    if file.exists() and not anew:
        known = json.loads(file.read_text(encoding="utf-8"))
    paths = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py")))
    digests = {name: sha256((ROOT / name).read_bytes()).hexdigest() for name in paths if not name.startswith(EXCLUDED)}
    known = {name: known[name] for name, digest in digests.items() if known.get(name, {}).get("digest") == digest}

    def one(folder: Path, name: str) -> None:
        package, log, begin = folder / "tinymp" / "__init__.py", folder / "functions_called", time.time()
        if "_record(" not in (source := package.read_text(encoding="utf-8")):
            end = source.index('"""', 3) + 3
            package.write_text(source[:end] + RECORDER + source[end:], encoding="utf-8")
        status, said = pytest(folder, [name], 900, FAULTS_RECORD=str(log))
        seconds = round(time.time() - begin, 1)
        if status:  # because it is recorded, perhaps
            status, said = pytest(folder, [name], 900)
        calls = sorted({line.replace(".<locals>", "") for line in log.read_text().splitlines()} if log.exists() else ())
        log.unlink(missing_ok=True)
        with lock:
            known[name] = {"seconds": seconds, "status": status, "digest": digests[name], "calls": calls}
            file.write_text(json.dumps(known), encoding="utf-8")
            print(f"{name}: {len(calls)} functions, {seconds} s{said[-500:] if status else ''}", flush=True)

    in_copies(one, sorted(digests.keys() - known.keys(), key=lambda name: name.startswith(SLOW)), processes)
    return {name: one for name, one in known.items() if not one["status"]}


def batches(file: str, function: str, known: dict[str, Any], before: str = "") -> list[list[str]]:
    """The test files that may notice a fault in a function: the one that did `before`, then likely and quick ones."""
    words = {*Path(file).parts[:-1], Path(file).stem}
    found = [name for name, one in known.items() if f"{file} {function}" in one["calls"]] or [
        name for name, one in known.items() if any(call.startswith(f"{file} ") for call in one["calls"])
    ]  # what a decorator has made has no name of its own when it is called

    def order(name: str) -> tuple:
        folders, stem = Path(name).parts[1:-1], Path(name).stem.removeprefix("test_")
        alike = len(words & {*folders, stem}) + (folders in (Path(file).parts[:-1], ("core", *Path(file).parts[:-1])))
        return name.startswith(SLOW), -alike, known[name]["seconds"]

    parts: list[list[str]] = [[before]] if before in known else []
    total, limit, sizes = 0.0, 0.0, iter(BATCHES)
    for name in sorted(found, key=order):
        total += known[name]["seconds"]
        if total > limit:
            limit = total + next(sizes, BATCHES[-1])
            parts.append([])
        parts[-1].append(name)
    return parts


def result(folder: Path, fault: Fault, known: dict, most: int | None = None, before: str = "") -> dict[str, Any]:
    """The fate of a fault: "killed", by which test; "survived", so many files; "stale". most: of BATCHES."""
    begin, tried, by = time.time(), 0, ""
    try:
        path, source = fault.planted(folder / "tinymp")
    except Stale as stale:
        return {"part": fault.part, "result": "stale", "by": str(stale)}
    whole = path.read_text(encoding="utf-8")
    try:
        write(path, source)
        for files in batches(path.relative_to(folder / "tinymp").as_posix(), fault.function, known, before)[:most]:
            tried += len(files)
            status, said = pytest(folder, files, 60 + 3 * sum(known[file]["seconds"] for file in files), "-x")
            if status not in (0, 5):  # 5: all tests are skipped
                failed = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[| |$)", said, re.M)
                by = "a test that hangs" if status == -1 else failed[1] if failed else "a crash"
                break
    finally:
        write(path, whole)
    seconds = round(time.time() - begin)
    return {"part": fault.part, "result": "killed" if by else "survived", "by": by, "files": tried, "seconds": seconds}


def write(path: Path, source: str) -> None:
    path.write_text(source, encoding="utf-8")
    os.utime(path, (now := next(TICKS), now))


def table(faults: list[Fault], found: dict[str, Any]) -> str:
    """Per part, how many were planted and killed, and the names of the others."""
    lines = ["| part | planted | killed | not found |", "|---|---|---|---|"]
    parts = Counter(fault.part for fault in faults if fault.name in found)
    for part, n in [*parts.items(), ("all", sum(parts.values()))]:
        left = [name for name, one in found.items() if one["result"] != "killed" and part in (one["part"], "all")]
        lines.append(f"| {part} | {n} | {n - len(left)} | {len(left) if part == 'all' else ', '.join(left)} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.faults")
    for name in ("--part", "--name"):
        options.add_argument(name, action="append", default=[], help="the faults of this one; may come several times")
    for name, text in (("--record", "see anew which test file calls what"), ("--show", "show the results alone")):
        options.add_argument(name, action="store_true", help=text)
    options.add_argument("--quick", action="store_true", help="by the quickest test files alone")
    options.add_argument("--out", type=Path, default=FOUND, help="the file of results: those of other faults stay")
    options.add_argument("-n", type=int, default=2, help="processes")
    given, faults, lock = options.parse_args(), read(), Lock()
    old = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    chosen = [f for f in faults if f.part in (given.part or [f.part]) and f.name in (given.name or [f.name])]
    if not given.show:
        CACHE.mkdir(exist_ok=True)
        known = record(given.n, given.record)

        def one(folder: Path, fault: Fault) -> None:
            before = old.get(fault.name, {}).get("by", "").partition("::")[0]
            found = result(folder, fault, known, 2 if given.quick else None, before)
            with lock:
                old[fault.name] = found
                rows = [f"{json.dumps(f.name)}: {json.dumps(old[f.name])}" for f in faults if f.name in old]
                given.out.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
                print(f"{fault.name}: {found['result']} {found['by']}", flush=True)

        in_copies(one, chosen, given.n)
    print(table(faults, {f.name: old[f.name] for f in faults if f.name in old}))


if __name__ == "__main__":
    main()
