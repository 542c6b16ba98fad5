"""Which tests, together, run every kernel at the least cost: writes selected.txt, which test_ptx.py runs.

`python -m ptx.select`, in tests/, after kernels or their tests have changed. It takes some minutes.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from functools import cache

from tinymp.gpu import kernels

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
SELECTED = HERE / "selected.txt"
SPECIAL = ("attention", "conv")  # the sources with special instructions: see nvrtc.stand_in
WORK = 256  # bytes that a launch moves in earnest
OVERHEAD = 0.05  # seconds that a test costs besides its own
Row = tuple[float, dict[str, dict[str, int]]]  # of a test: its seconds; what each "kernel storage" has done in it


def run(
    architecture: str, *tests: str, more: tuple[str, ...] = ()
) -> tuple[subprocess.CompletedProcess, dict[str, Row]]:
    """Run tests, or what `more` selects, as PTX; those that passed."""
    assert tests, f"no test in {SELECTED.name}"  # without any pytest would run all, and this again
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder) / "tests.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ptx", architecture, *more, *tests]
        environment = {**os.environ, "PTX_RECORD": str(record)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        lines = record.read_text().splitlines() if record.exists() else []
    rows = map(json.loads, lines)
    ours = {test: (s, {k: c for k, c in ran.items() if k.partition(" ")[0] in known()}) for test, s, ran in rows}
    return done, ours


@cache
def known() -> dict[str, str]:
    """{kernel of the package: its source's name}; tests have others of their own."""
    files = pathlib.Path(kernels.__file__).parents[1].rglob("*.cu")
    return {name: path.stem for path in files for name in kernels.signatures(kernels.source(path), "half")}


def runs(rows: dict[str, Row]) -> dict[str, set[str]]:
    """What each test runs in earnest: of a kernel whose launches move WORK bytes in some test, fewer do not count."""
    moved = {
        test: {name: (c.get("load bytes", 0) + c.get("store bytes", 0)) / c["launches"] for name, c in ran.items()}
        for test, (_, ran) in rows.items()
    }
    most: dict[str, int] = {}
    for ran in moved.values():
        for name, n in ran.items():
            most[name] = max(most.get(name, 0), n)
    return {test: {name for name, n in ran.items() if n >= min(WORK, most[name])} for test, ran in moved.items()}


def select(rows: dict[str, Row]) -> list[str]:
    """A cover, greedily: always the test that runs the most new kernels per second."""
    found = runs(rows)
    left, chosen = set().union(*found.values()), []
    while left:
        best = max(rows, key=lambda test: len(left & found[test]) / (rows[test][0] + OVERHEAD))
        chosen.append(best)
        left -= found[best]
    return sorted(chosen)


def selected() -> list[str]:
    """The tests of selected.txt."""
    return SELECTED.read_text().splitlines()


def choose(architecture: str, *where: str) -> list[str]:
    """Tests that cover what those in `where` do, which may depend on others before: so they are tried alone."""
    rows = run(architecture, *where, more=("-n", "2"))[1]
    while True:
        chosen = select(rows)
        rows.update(run(architecture, *chosen)[1])
        found = runs(rows)
        if set().union(*(found[test] for test in chosen)) == set().union(*found.values()):
            return chosen


if __name__ == "__main__":
    SELECTED.write_text("\n".join(choose("90", "tests/gpu")) + "\n")
