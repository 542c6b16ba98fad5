"""Whether the tests find what they are for: 200 faults, planted one at a time in a copy of the package.

    python -m tests.faults                       all of them; tests/faults/found.json has the results
    python -m tests.faults --part optim          those of one part
    python -m tests.faults --name adam_bias      one, and the end of what pytest said
    python -m tests.faults --record              first see anew which test file calls which function
    python -m tests.faults --show                the table of the last results

faults.txt lists them:

    == part
    name (kind) path/below/tinymp.py function, or Class.method, or - for what is outside of any
    - a text that stands there once
    + what stands there instead

Blanks count as one, so that a line may be wrapped anew. If the function has moved, it is looked for in the package; a
fault whose text is gone is stale, and is to be planted anew. Only test files that call the function are run, those of
its own name first, until one fails; which do is recorded once, in a folder for temporary files. Files that read the
source as text (EXCLUDED) would find any change, and are not run. A run that hangs counts as killed.
"""

from __future__ import annotations

import argparse
import ast
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
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
FAULTS, FOUND = Path(__file__).with_name("faults.txt"), Path(__file__).with_name("found.json")
CACHE = Path(tempfile.gettempdir()) / f"tinymp-faults-{sha256(str(ROOT).encode()).hexdigest()[:8]}"
EXCLUDED = (
    "tests/docs/",
    "tests/faults/",
    "tests/guards/test_rounding",
    "tests/guards/test_s",
    "tests/guards/test_layers",
)
SLOW = (
    "tests/examples",
    "tests/course",
    "tests/lab",
    "tests/benchmarks",
    "tests/parallel",
    "tests/ptx",
    "tests/guards",
)
BATCHES = (20, 60, 200, 1e9)  # seconds of tests in one process, so that most faults need only the first

# Put into the copy's tinymp/__init__.py: every process notes the functions that it calls, as it calls them.
RECORDER = """
def _record():
    import os, sys, threading
    path, seen, folder = os.environ.get("FAULTS_RECORD"), {}, __file__[:-11]
    def note(frame, event, argument):
        code = frame.f_code
        if id(code) not in seen:
            seen[id(code)] = code
            if code.co_filename.startswith(folder):
                file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(file, f"{code.co_filename[len(folder):]} {code.co_qualname}\\n".encode())
                os.close(file)
    if path:
        threading.settrace(note)
        sys.settrace(note)
_record()
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

    def place(self, package: Path) -> tuple[Path, int, int]:
        """The file in which it is to be planted, and the place of the old text there."""
        words = re.compile(r"\s+".join(map(re.escape, self.old.split())))
        own = package / self.file
        found = [f for f in [own] if own.exists() and self.function in functions(f)]
        if not found and self.function != "-":
            found = [f for f in sorted(package.rglob("*.py")) if self.function in functions(f)]
        places = []
        for path in found:
            source = path.read_text(encoding="utf-8")
            for low, high in functions(path)[self.function]:
                places += [(path, m.start(), m.end()) for m in words.finditer(source, low, high)]
        if len(places) != 1:
            raise Stale(f"{self.name}: {self.function} of {self.file} has its text {len(places)} times, not once")
        return places[0]

    def planted(self, package: Path) -> tuple[Path, str]:
        """The file in which it is planted, and its text with the fault in it."""
        path, low, high = self.place(package)
        source = path.read_text(encoding="utf-8")
        return path, source[:low] + self.new + source[high:]


def functions(path: Path) -> dict[str, list[tuple[int, int]]]:
    """Functions and classes in a file, by their qualified names, and where each begins and ends; "-" is the file."""
    source = path.read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[str, list[tuple[int, int]]] = {"-": [(0, len(source))]}

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                name = f"{outer}.{child.name}" if outer else child.name
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found.setdefault(name, []).append((starts[first - 1], starts[child.end_lineno or first]))
            visit(child, name)

    visit(ast.parse(source), "")
    return found


def read(path: Path = FAULTS) -> list[Fault]:
    faults: list[Fault] = []
    part = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        mark, text = line[:2], line[2:]
        if line.startswith("== "):
            part = line[3:]
        elif head := re.fullmatch(r"(\w+) \(([\w ]+)\) (\S+) (\S+)", line):
            faults.append(Fault(part, *head.groups(), "", ""))
        elif mark in ("- ", "+ ") and faults:
            field = "old" if mark == "- " else "new"
            before = getattr(faults[-1], field)
            faults[-1] = faults[-1]._replace(**{field: f"{before}\n{text}" if before else text})
    return faults


def copied(folder: Path) -> Path:
    """A copy of the repository, without what git keeps."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".*_cache", ".hypothesis", "__pycache__"))
    return folder


def pytest(folder: Path, files: list[str], limit: float, **environment: str) -> tuple[int, str]:
    """Run test files in a copy until one fails: pytest's exit status, and what it said. A status of -1: it hung."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line"]
    own = {"PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "", **environment}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, *files], cwd=folder, env=os.environ | own, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = -1
        try:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started
        except ProcessLookupError:
            pass
        process.wait()
        output.seek(0)
        return status, output.read()


def called(folder: Path, file: str) -> dict[str, Any]:
    """What a test file calls when it is run alone, how long it takes, and pytest's exit status."""
    log = folder / "functions_called"
    log.unlink(missing_ok=True)
    begin = time.time()
    status, said = pytest(folder, [file], 900, FAULTS_RECORD=str(log))
    names = sorted(set(log.read_text().splitlines())) if log.exists() else []
    return {"seconds": round(time.time() - begin, 1), "status": status, "calls": names, "said": said[-500:]}


def test_files() -> list[str]:
    found = (p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "tests").rglob("test_*.py")))
    return [name for name in found if not name.startswith(EXCLUDED)]


def in_copies(work: Any, items: list, processes: int) -> list:
    """work(folder, item) for all items, at any time in as many processes, each with a copy of its own."""
    folders: queue.Queue[Path] = queue.Queue()
    for i in range(processes):
        folders.put(copied(CACHE / f"copy{i}"))

    def one(item: Any) -> Any:
        folder = folders.get()
        try:
            return work(folder, item)
        finally:
            folders.put(folder)

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(one, items))


def record(processes: int, anew: bool) -> dict[str, Any]:
    """By test file, what `called` says; those files that have changed are run again."""
    path, known = CACHE / "called.json", {}
    if path.exists() and not anew:
        known = json.loads(path.read_text(encoding="utf-8"))
    digests = {file: sha256((ROOT / file).read_bytes()).hexdigest()[:16] for file in test_files()}
    known = {file: known[file] for file, digest in digests.items() if known.get(file, {}).get("digest") == digest}

    lock = Lock()

    def one(folder: Path, file: str) -> None:
        package = folder / "tinymp" / "__init__.py"
        if "_record()" not in (source := package.read_text(encoding="utf-8")):
            end = source.index('"""', 3) + 3
            package.write_text(source[:end] + RECORDER + source[end:], encoding="utf-8")
        found = {**called(folder, file), "digest": digests[file]}
        with lock:
            known[file] = found
            path.write_text(json.dumps(known, indent=1), encoding="utf-8")
        print(f"{file}: {known[file]['seconds']} s, {len(known[file]['calls'])} functions", flush=True)

    in_copies(one, [file for file in digests if file not in known], processes)
    return known


def batches(fault: Fault, place: Path, package: Path, known: dict[str, Any]) -> list[list[str]]:
    """The test files that may notice a fault, those first that are likely to and quick."""
    file = place.relative_to(package).as_posix()
    calls = {f"{file} {fault.function}"}

    def calls_it(file_of_test: str) -> bool:
        return any(name.replace(".<locals>", "") in calls for name in known[file_of_test]["calls"])

    found = [name for name in known if not known[name]["status"] and calls_it(name)]
    if not found:  # it has no name when it is called: a function made by a decorator, a table of a module
        stem = f"{file} "
        found = [
            name
            for name in known
            if not known[name]["status"] and any(c.startswith(stem) for c in known[name]["calls"])
        ]
    words = {*Path(file).parts[:-1], Path(file).stem}

    def order(name: str) -> tuple:
        own = words & {*Path(name).parts[1:-1], Path(name).stem.removeprefix("test_")}
        return name.startswith(SLOW), -len(own), known[name]["seconds"]

    parts: list[list[str]] = []
    total, most = 0.0, iter(BATCHES)
    limit = 0.0
    for name in sorted(found, key=order):
        total += known[name]["seconds"]
        if total > limit:
            limit = total + next(most, 200)
            parts.append([])
        parts[-1].append(name)
    return parts


def result(folder: Path, fault: Fault, known: dict[str, Any], tell: bool = False) -> dict[str, Any]:
    """What the tests make of a fault: "killed", by which test and how; "survived", after how many files; "stale"."""
    begin, tried = time.time(), 0
    try:
        path, source = fault.planted(folder / "tinymp")
    except Stale as stale:
        return {"part": fault.part, "result": "stale", "by": str(stale)}
    whole = path.read_text(encoding="utf-8")
    found = {"part": fault.part, "result": "survived", "by": ""}
    try:
        write(path, source)
        for files in batches(fault, path, folder / "tinymp", known):
            tried += len(files)
            status, said = pytest(folder, files, 60 + 3 * sum(known[file]["seconds"] for file in files))
            if tell:
                print(said[-6000:])
            if status not in (0, 5):  # 5: all tests are skipped
                failed = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[| |$)", said, re.M)
                found.update(result="killed", by="hung" if status == -1 else failed[1] if failed else "crashed")
                break
    finally:
        write(path, whole)
    return {**found, "files": tried, "seconds": round(time.time() - begin)}


def write(path: Path, source: str) -> None:
    """Write a module, at a time that no compiled one is from."""
    path.write_text(source, encoding="utf-8")
    write.count = getattr(write, "count", 0) + 1  # type: ignore[attr-defined]
    now = 2**30 + 2 * write.count  # type: ignore[attr-defined]
    os.utime(path, (now, now))


def table(faults: list[Fault], found: dict[str, Any]) -> str:
    """Per part how many were planted and killed, and the names of the others."""
    lines = ["| part | planted | killed | not found |", "|---|---|---|---|"]
    parts = Counter(fault.part for fault in faults if fault.name in found)
    for part, n in [*parts.items(), ("all", parts.total())]:
        mine = [f.name for f in faults if f.name in found and part in (f.part, "all")]
        left = [name for name in mine if found[name]["result"] != "killed"]
        shown = ", ".join(f"{name} (stale)" if found[name]["result"] == "stale" else name for name in left)
        lines.append(f"| {part} | {n} | {n - len(left)} | {shown if part != 'all' else len(left) or ''} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.faults")
    options.add_argument("--part", action="append", help="the faults of a part")
    options.add_argument("--name", action="append", help="the faults of these names")
    options.add_argument("--out", type=Path, default=FOUND, help="where results are written, and those there are kept")
    options.add_argument("--record", action="store_true", help="see anew which test file calls what")
    options.add_argument("--show", action="store_true", help="the table of the results that are there")
    options.add_argument("-n", type=int, default=2, help="processes")
    given = options.parse_args()
    faults, found = read(), json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    chosen = [f for f in faults if f.part in (given.part or [f.part]) and f.name in (given.name or [f.name])]
    if not chosen:
        options.error("there is no such fault")
    if not given.show:
        CACHE.mkdir(exist_ok=True)
        known, lock = record(given.n, given.record), Lock()

        def one(folder: Path, fault: Fault) -> None:
            got = result(folder, fault, known, tell=bool(given.name))
            with lock:
                found[fault.name] = got
                order = {f.name: found[f.name] for f in faults if f.name in found}
                given.out.write_text(json.dumps(order, indent=1) + "\n", encoding="utf-8")
                print(f"{fault.name}: {got['result']} {got['by']} {got.get('seconds', 0)} s", flush=True)

        in_copies(one, chosen, min(given.n, len(chosen)))
    print(table(faults, found))


if __name__ == "__main__":
    main()
