"""A program that runs as if Python had been started with it: for `tinymp audit`, and each run of `tinymp bisect`."""

from __future__ import annotations

import importlib.util
import multiprocessing.process
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from .shipped import EXAMPLES, examples_home

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

TERMINATED = 128 + signal.SIGTERM


def check_program(program: str, module: bool) -> None:
    """OSError, ModuleNotFoundError or SyntaxError where there is nothing to run: a typo costs no earlier report."""
    if not module:
        compile(Path(program).read_bytes(), program, "exec")
    elif importlib.util.find_spec(program) is None:
        raise ModuleNotFoundError(f"there is no module {program!r}")


def as_module(script: str) -> tuple[str, str]:
    """The name that a script has as a module of the package in which it lies, and the folder above that package; the
    name is empty where it lies in none.
    """
    path = Path(os.path.abspath(script))
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        names, folder = [folder.name, *names], folder.parent
    return ".".join(names) if len(names) > 1 else "", str(folder)


def run(program: str, module: bool) -> dict[str, Any]:
    """Run a script, or with `module` a module; returns its global variables, or raises what it raises. A script that
    lies in a package is run as its module, so that its relative imports work.
    """
    name = program if module else as_module(program)[0]
    if not name:
        return runpy.run_path(program, run_name="__main__")
    return runpy.run_module(name, run_name="__main__", alter_sys=True)


def started(program: str, arguments: list[str], module: bool) -> AbstractContextManager[None]:
    """Within the block, sys.argv and sys.path are as if Python had been started with this program. An example of
    tinymp's is found from everywhere, unless the folder has examples of its own.
    """
    paths = [os.getcwd()] if module else [os.path.dirname(os.path.abspath(program)), as_module(program)[1]]
    if module and program in (f"examples.{name}" for name in EXAMPLES) and not os.path.isdir("examples"):
        paths = [examples_home()]
    return as_if([program, *arguments], *paths)


@contextmanager
def as_if(argv: list[str], *paths: str) -> Iterator[None]:
    """Within the block, sys.argv is this, and sys.path begins with these folders."""
    before = sys.argv, sys.path
    sys.argv, sys.path = argv, [*dict.fromkeys([*paths, *sys.path])]
    try:
        yield
    finally:
        sys.argv, sys.path = before


def children() -> tuple:
    """Something that differs once this process has started another."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt if resource is not None else 0
    return used, repr(getattr(multiprocessing.process, "_process_counter", None))


def ended(error: BaseException) -> str:
    """The reason why a program ended early, in words; empty for sys.exit()."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    if isinstance(error, SystemExit):
        return "stopped by SIGTERM" if error.code == TERMINATED else f"sys.exit({error.code!r})" * bool(error.code)
    return f"{type(error).__name__}: {error}"


@contextmanager
def terminated_as_exit() -> Iterator[None]:
    """Within the block, SIGTERM ends the program as sys.exit does, so that what ran is reported."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
