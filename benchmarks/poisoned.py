"""A plugin for pytest on a GPU: results are written as they come, and a lost CUDA context ends the process.

    BRINGUP_RESULTS=FILE python -m pytest -p benchmarks.poisoned ...

After an illegal address every further call of CUDA in the process fails: a hundred tests would fail for one. Here the
first such error ends the process with code LOST; a test that takes longer than BRINGUP_LIMIT seconds ends it with code
HUNG. What FILE lists already is not run again, so that the same command goes on where the last one ended.

BRINGUP_SHARE="i/n" runs the tests i, i + n, ... of all. BRINGUP_MEMORY says where memory comes from: "no
pool" (every array is an allocation of its own, for compute-sanitizer) or "0xFF" (new memory is full of NaN).
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

LOST, HUNG = 86, 87  # exit codes
# the errors of CUDA after which its documentation says that the process must be ended; cuBLAS only says that it failed
FATAL = re.compile(
    "illegal_?address|illegal_?instruction|misaligned_?address|invalid_?address_?space|invalid_?pc|launch_?failure|"
    "launch_?failed|launch_?timeout|hardware_?stack_?error|assert_?triggered|cuda_?error_?assert|ecc_?uncorrectable|"
    "CUBLAS_STATUS_EXECUTION_FAILED",
    re.I,
)


def read(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """The results by test: {"outcome", "seconds", "error"}; "outcome" is "started" where a test did not end."""
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        entry = json.loads(line)
        found[entry.pop("test")] = entry
    return found


class Plugin:
    """What pytest calls."""

    def __init__(self) -> None:
        self.path = pathlib.Path(os.environ["BRINGUP_RESULTS"])
        self.limit = float(os.environ.get("BRINGUP_LIMIT", "60"))
        self.watch: Any = None
        self.entry: dict[str, Any] = {}

    def _write(self, entry: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:  # closed at once: the process may end at any time
            file.write(json.dumps(entry) + "\n")

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Leave out what has run before, and what other processes run."""
        known = read(self.path)
        share, of = map(int, os.environ.get("BRINGUP_SHARE", "0/1").split("/"))
        wanted = [item for item in items[share::of] if item.nodeid not in known]
        config.hook.pytest_deselected(items=list(set(items) - set(wanted)))
        items[:] = wanted

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported."""
        if report.failed:
            entry = {"test": report.nodeid, "outcome": "not collected", "seconds": 0.0}
            self._write(entry | {"error": report.longreprtext[-2000:]})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test begins: if nothing follows, it ended the process."""
        self.entry = {"test": nodeid, "outcome": "started", "seconds": 0.0, "error": None}
        self._write(self.entry)
        self.watch = threading.Timer(self.limit, self._hang)
        self.watch.daemon = True
        self.watch.start()

    def _hang(self) -> None:
        self._write(self.entry | {"outcome": "hung", "seconds": self.limit})
        os._exit(HUNG)  # the main thread waits inside CUDA: no exception would reach it

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add up the phases of a test: setup, call, teardown."""
        self.entry["seconds"] = round(self.entry["seconds"] + report.duration, 3)
        if report.when == "call" and report.user_properties:
            self.entry["said"] = dict(report.user_properties)
        if report.failed or (report.skipped and self.entry["outcome"] != "failed"):
            self.entry |= {"outcome": report.outcome, "error": report.longreprtext[-2000:]}
        if report.failed and FATAL.search(report.longreprtext):
            self._write(self.entry | {"outcome": "lost the context"})
            os._exit(LOST)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Write the result."""
        self.watch.cancel()
        self._write(self.entry | ({"outcome": "passed"} if self.entry["outcome"] == "started" else {}))


def pytest_configure(config: Any) -> None:
    """Register, where there is a file for the results."""
    if "BRINGUP_RESULTS" in os.environ:
        config.pluginmanager.register(Plugin())


@pytest.fixture(autouse=True)
def _memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """BRINGUP_MEMORY."""
    kind = os.environ.get("BRINGUP_MEMORY")
    if kind is None:
        yield
        return
    request.getfixturevalue("gpu")  # of tests/conftest.py
    import cupy

    before = cupy.cuda.get_allocator()

    def filled(size: int) -> Any:
        memory = before(size)
        if size:
            memory.memset_async(0xFF, size)
        return memory

    cupy.cuda.set_allocator(filled if kind == "0xFF" else None)
    try:
        yield
    finally:
        cupy.cuda.set_allocator(before)
