"""Copies of the package without some of its subpackages, and the tests of the core on the core alone.

    python -m tests.core_alone                 all tests of the core on the core alone, once FAILS is empty
    python -m tests.core_alone tests/core/ops -x    these, with pytest's options, without all that can be deleted today

A test that asks for what was deleted is skipped, and counted; any other error is a failure.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tinymp"

# Every subpackage, by what holds it below tinymp: its folder, and what will move there. All other files are the core.
SUBPACKAGES = {
    "fast/cpu": ["fast/cpu"],
    "gpu": ["gpu"],
    "study": ["study"],
    "audit": ["audit"],
    "lab": ["lab"],
    "checkpoint": ["checkpoint"],
    "parallel": ["parallel"],
    "sparse": ["sparse"],
    "torch": ["torch"],
    "data/more": ["data/more"],
    "optim/more": ["optim/more"],
    "nn/more": ["nn/more"],
    "ops/more": ["ops/more"],
    "course": ["course"],
}
# Those without which tinymp cannot be imported or cannot train today. The list only gets shorter.
FAILS: set[str] = set()

CAN_GO = [name for name in SUBPACKAGES if name not in FAILS]

CORE_TESTS = ["tests/core"]
GONE = "TINYMP_GONE"  # in the environment: the modules that were deleted, for tests/conftest.py


def copy(folder: Path, gone: Iterable[str]) -> list[str]:
    """Copy tinymp into `folder` without the subpackages `gone`; the modules that are not there, by their names."""
    shutil.copytree(PACKAGE, folder / "tinymp")  # with what was compiled
    modules = []
    for name in gone:
        found = [path for pattern in SUBPACKAGES[name] for path in (folder / "tinymp").glob(pattern)]
        assert found, f"{name}: there is nothing to delete"
        for path in found:
            modules.append(".".join(path.relative_to(folder).with_suffix("").parts))
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return modules


def only_from(folder: str) -> None:
    """Let `import` find no tinymp elsewhere: an editable install would bring back what was deleted in the copy."""
    sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.path.insert(0, folder)


def run(tests: list[str], gone: Iterable[str]) -> int:
    """Run tests on a copy without the subpackages `gone`; pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="tinymp") as folder:
        modules = copy(Path(folder), gone)
        shutil.copytree(ROOT / "tests", Path(folder, "tests"), ignore=shutil.ignore_patterns("__pycache__"))
        for path in ROOT.iterdir():  # what tests read: the examples, the pages
            if not path.name.startswith(".") and path.name not in ("tinymp", "tests", "build"):
                Path(folder, path.name).symlink_to(path)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
        return subprocess.run(command, cwd=folder, env=os.environ | {GONE: " ".join(modules)}).returncode


def deleted(error: BaseException | None) -> str | None:
    """The deleted module that `error`, or what led to it, asked for; None if it is another error."""
    modules = os.environ.get(GONE, "").split()
    while modules and error is not None:
        wanted = [getattr(error, "name", None) or ""]
        if found := re.match(r"cannot import name '(\w+)' from '(tinymp[\w.]*)'", str(error)):
            wanted.append(f"{found[2]}.{found[1]}")
            try:
                getattr(importlib.import_module(found[2]), found[1])
            except Exception as reason:  # it says more than the error of `import`
                error = reason
        if found := re.match(r"(tinymp[\w.]*|device '\w+') is not installed here", str(error)):
            return found[1]
        for module in modules:
            if any(f"{name}.".startswith(f"{module}.") for name in wanted):
                return module
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    if FAILS and not sys.argv[1:]:
        sys.exit(print("Nothing was tested: the core does not yet stand without", *sorted(FAILS)))
    sys.exit(run(sys.argv[1:] or ["-q", "-n", "2", *CORE_TESTS], CAN_GO))
