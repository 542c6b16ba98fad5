"""Copies of the package without some of its subpackages, and the tests of the core on the core alone.

    python -m tests.core_alone                      all tests of the core on the core alone
    python -m tests.core_alone tests/core/ops -x    these, with pytest's options

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

# Every subpackage, by its folder below tinymp. All other files are the core.
SUBPACKAGES = (
    *("fast/cpu", "gpu", "study", "audit", "lab", "checkpoint", "parallel", "sparse", "torch", "course"),
    *("data/more", "optim/more", "nn/more", "ops/more"),
)
GONE = "TINYMP_GONE"  # in the environment: the modules that were deleted, for tests/conftest.py


def copy(folder: Path, gone: Iterable[str]) -> list[str]:
    """Copy tinymp into `folder` without the subpackages `gone`; the modules that are not there, by their names."""
    shutil.copytree(PACKAGE, folder / "tinymp")  # with what was compiled
    modules = []
    for name in gone:
        shutil.rmtree(folder / "tinymp" / name)
        modules.append(f"tinymp/{name}".replace("/", "."))
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
    sys.exit(run(sys.argv[1:] or ["-q", "-n", "2", "tests/core"], SUBPACKAGES))
