"""A program that runs as if Python had been started with it: for `tinymp audit`, and each run of `tinymp bisect`."""

from __future__ import annotations

import importlib.util
import multiprocessing.process
import os
import runpy
import signal
import sys
import threading
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
    """FileNotFoundError, ModuleNotFoundError, ValueError or SyntaxError where there is nothing to run."""
    if not module:
        if not os.path.isfile(program):
            hint = f"; did you mean -m {program}?" if not program.endswith(".py") and "/" not in program else ""
            raise FileNotFoundError(f"there is no script {program!r}{hint}")
        compile(Path(program).read_bytes(), program, "exec")  # a typo must not cost the last report
    elif program.endswith(".py"):
        raise ValueError(f"{program!r} is a script, not the name of a module: leave out -m")
    else:
        spec = importlib.util.find_spec(program)
        if spec is None:
            raise ModuleNotFoundError(f"there is no module {program!r}")
        if spec.submodule_search_locations is not None and importlib.util.find_spec(f"{program}.__main__") is None:
            raise ModuleNotFoundError(f"{program!r} is a package without a __main__: name a module in it")


def as_module(script: str) -> tuple[str, str]:
    """The name that a script has as a module of the package in which it lies, and the folder above that package; the
    name is empty where it lies in none.
    """
    path = Path(os.path.abspath(script))
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        names, folder = [folder.name, *names], folder.parent
    runs = len(names) > 1 and names[-1] != "__init__" and all(name.isidentifier() for name in names)
    return ".".join(names) if runs else "", str(folder)


def run(program: str, module: bool) -> dict[str, Any]:
    """Run a script, or with `module` a module; returns its global variables, or raises what it raises. A script that
    lies in a package is run as its module, so that its relative imports work.
    """
    name = program if module else as_module(program)[0]
    if not name:
        return runpy.run_path(program, run_name="__main__")
    imported = sys.modules.pop(name, None)  # in this process, before: it is run anew, and runpy would warn
    try:
        return runpy.run_module(name, run_name="__main__", alter_sys=True)
    finally:
        if imported is not None:
            sys.modules[name] = imported


def started(program: str, arguments: list[str], module: bool) -> AbstractContextManager[None]:
    """Within the block, sys.argv and sys.path are as if Python had been started with this program. An example of
    tinymp's is found from everywhere, unless the folder has examples of its own.
    """
    paths = [os.getcwd()] if module else [os.path.dirname(os.path.abspath(program)), as_module(program)[1]]
    if module and program in (f"examples.{name}" for name in EXAMPLES) and not os.path.isdir("examples"):
        paths = [examples_home()]
    return as_if(program, arguments, *paths)


@contextmanager
def as_if(program: str | None, arguments: list[str], *paths: str) -> Iterator[None]:
    """Within the block, sys.argv and sys.path are as if Python had been started with a program; None: only the path."""
    argv, before = sys.argv, sys.path
    try:
        sys.path = [*dict.fromkeys([*paths, *before])]
        if program is not None:
            sys.argv = [program, *arguments]
        yield
    finally:
        sys.argv, sys.path = argv, before


def children() -> tuple:
    """Something that differs once this process has started another."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt if resource is not None else 0
    return used, repr(getattr(multiprocessing.process, "_process_counter", None))


def ended(error: BaseException) -> str:
    """What ended a program early, in words; empty for the end that sys.exit() is."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    if isinstance(error, SystemExit):
        asked = error.code if isinstance(error.code, (int, str)) else 0
        return "stopped by SIGTERM" if asked == TERMINATED else f"sys.exit({asked!r})" * bool(asked)
    return f"{type(error).__name__}: {error}"


@contextmanager
def terminated_as_exit() -> Iterator[None]:
    """Within the block, SIGTERM ends the program as sys.exit does, so that what ran is reported."""

    def end(*_: Any) -> None:
        sys.exit(TERMINATED)

    own = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if own else None
    try:
        yield
    finally:
        if own and signal.getsignal(signal.SIGTERM) is end:  # else the program has its own
            signal.signal(signal.SIGTERM, before)
