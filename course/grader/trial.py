"""A submission is judged in a process of its own: it may run on for ever, end the process, or change what judges it.

In one process nothing is proof against everything. What is noticed: functions and classes, of whatever was imported
before, that are not what they were; code of a function that was replaced; and attempts to read what a check expects
(frames, the garbage collector), to write files, to start programs or to open connections. The verdict comes back as
a literal behind a token that only the frames of the judging code hold: what a student's process says is not trusted.
"""

from __future__ import annotations

import ast
import contextlib
import io
import multiprocessing
import os
import secrets
import sys
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import submission
from .checking import MISSING, RIGHT, WRONG, Result, judge_one, raised
from .lesson import lessons

SECONDS = 30.0  # for one submission; the solutions of the longest lesson take a tenth
FORBIDDEN = {
    **dict.fromkeys(("gc.get_objects", "gc.get_referrers", "gc.get_referents"), "looked for other code's objects"),
    **dict.fromkeys(("sys._getframe", "sys._current_frames"), "looked at other code's variables"),
    **dict.fromkeys(("sys.settrace", "sys.setprofile"), "traced other code"),
    **dict.fromkeys(("ctypes.dlopen", "ctypes.dlsym"), "loaded a library"),
    **dict.fromkeys(("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen"), "started a program"),
    "socket.connect": "opened a connection",
    "os.remove": "removed a file",
    "os.rename": "renamed a file",
}


@dataclass(frozen=True)
class Verdict:
    """What came of one submission.

    lesson    its number; 0 if that could not be told
    results   one per exercise of the lesson; several draws of cases: wrong if one of them is
    patched   what the student's code changed or tried that no exercise asks for
    problem   why there are no results, or what of the notebook could not be read; ""
    seconds   how long it took
    """

    path: Path
    lesson: int
    results: tuple[Result, ...]
    patched: tuple[str, ...]
    problem: str
    seconds: float

    @property
    def right(self) -> int:
        """How many exercises are solved; none if something was patched."""
        return 0 if self.patched else sum(r.verdict == RIGHT for r in self.results)


def run(path: Path, lesson: int | None = None, variants: Sequence[int] = (0,), seconds: float = SECONDS) -> Verdict:
    """Judge a submission in a process of its own, which is ended after so many seconds.

    lesson: its number; None: told by the exercises that it defines. variants: which cases the checks draw.
    """
    context, token = _context(), secrets.token_bytes(16)
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, token, path, lesson, tuple(variants)), daemon=True)
    start = time.monotonic()
    _start(process)
    theirs.close()
    problem = f"it did not end within {seconds:g} seconds"
    try:
        if mine.poll(seconds):
            message = mine.recv_bytes()
            if message.startswith(token):
                number, results, *others = ast.literal_eval(message[len(token) :].decode())
                return Verdict(path, number, tuple(Result(*result) for result in results), *others)
            problem = "its process said something else than a verdict"
    except (EOFError, OSError):
        process.join()
        problem = f"its process ended without a word (exit code {process.exitcode})"
    finally:
        process.kill()
        process.join()
    return Verdict(path, lesson or 0, (), (), problem, time.monotonic() - start)


def _start(process: Any) -> None:
    """Start a process. An earlier submission may have ended the server that starts it: then a new one is made."""
    for pause in (0.1, 1.0):
        try:
            return process.start()
        except (ConnectionError, EOFError):
            time.sleep(pause)  # until the old server is known to have ended
    process.start()


def _context() -> Any:
    """How processes start: from a server that has imported everything, where there are such."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _work(results: Any, token: bytes, path: Path, lesson: int | None, variants: tuple[int, ...]) -> None:
    """In the process: judge, and send the verdict."""
    _limit_memory()
    send = results.send_bytes
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        verdict = judged(path, lesson, variants)
    found = [(r.exercise, r.verdict, r.message) for r in verdict.results]
    # an f-string is made in C, where nothing can be put in between
    said = f"{(verdict.lesson, found, verdict.patched, verdict.problem, verdict.seconds)!r}"
    send(token + said.encode())
    results.close()
    os._exit(0)  # without what the student's code left to be done at the end


def _limit_memory() -> None:
    """At most 4 GiB of data, where the system can limit it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))


def judged(path: Path, number: int | None, variants: Sequence[int]) -> Verdict:
    """The same in this process, which the student's code may change."""
    start = time.monotonic()
    try:
        handed_in = submission.read(path)
        lesson = lessons()[number] if number else handed_in.lesson()
    except (submission.Unreadable, OSError) as error:
        return Verdict(path, number or 0, (), (), str(error), time.monotonic() - start)
    watch, checks = Watch(path.name), lesson.checks()
    noticed = watch.noticed  # before the student's code can put another one in its place
    results: dict[str, Result] = {name: Result(name, MISSING, "not found in this file") for name in lesson.exercises}
    problem = "\n".join(handed_in.broken)
    with watch:
        try:
            things = handed_in.run(lesson.exercises)
        except BaseException as error:
            things, problem = {}, "\n".join(filter(None, (problem, raised(error, path.name))))
        for variant in variants:
            for name, thing in things.items():
                if results[name].verdict in (MISSING, RIGHT):
                    try:
                        results[name] = judge_one(name, checks[name], thing, variant, path.name)
                    except BaseException as error:  # code that tries to end the program
                        results[name] = Result(name, WRONG, raised(error, path.name))
    return Verdict(path, lesson.number, tuple(results.values()), noticed(), problem, time.monotonic() - start)


# ------------------------------------------------------------------------------------------------------------ watching


class Watch:
    """Notices what the student's code does in a block that no exercise asks for.

    file: what the names of the student's cells begin with.
    """

    _now: Watch | None = None  # Python's audit hooks cannot be taken off again: there is one, which asks this

    def __init__(self, file: str) -> None:
        self.file = file
        self.tried: list[str] = []
        self.before = {name: (thing, _print(thing)) for name, thing in _things()}

    def __enter__(self) -> None:
        if not _hooked:
            sys.addaudithook(_hook)
            _hooked.append(True)
        Watch._now = self

    def __exit__(self, *_: object) -> None:
        Watch._now = None

    def noticed(self) -> tuple[str, ...]:
        """What changed since the beginning, and what was tried."""
        now = dict(_things())
        changed = [
            f"changed {name}" for name, (thing, print_) in self.before.items()
            if now.get(name) is not thing or _print(thing) != print_
        ]  # fmt: skip
        return tuple(dict.fromkeys([*self.tried, *changed]))

    def heard(self, event: str, arguments: tuple) -> None:
        what = FORBIDDEN.get(event)
        if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
            what = "wrote a file"
        elif event == "object.__setattr__" and arguments[1:2] == ("__code__",):
            what = "replaced a function's code"
        if what and self._is_theirs():
            self.tried.append(f"{what} ({event})")

    def _is_theirs(self) -> bool:
        """Whether the student's code made the call itself."""
        Watch._now = None  # what follows is heard, too
        try:
            frame: types.FrameType | None = sys._getframe(3)  # behind this, `heard` and the hook
            while frame is not None and _carries_out(frame.f_code.co_filename):
                frame = frame.f_back
            return frame is not None and frame.f_code.co_filename.startswith(self.file)
        finally:
            Watch._now = self


_LIBRARY = Path(os.__file__).parent
_HANDS = {"pathlib", "subprocess", "inspect", "os", "shutil", "socket", "tempfile", "io", "ctypes"}  # they do as told


def _carries_out(file: str) -> bool:
    """Whether the code of this file only does what its caller wants: so does text that was given to exec."""
    if file.startswith("<") and not file.startswith("<frozen"):
        return True
    path = Path(file)
    return path.is_relative_to(_LIBRARY) and path.relative_to(_LIBRARY).parts[0].removesuffix(".py") in _HANDS


_hooked: list[bool] = []


def _hook(event: str, arguments: tuple) -> None:
    if Watch._now is not None:
        Watch._now.heard(event, arguments)


def _things() -> Iterator[tuple[str, Any]]:
    """All functions and classes of all modules by name, with what the classes hold: a verdict may rest on any."""
    modules = {name: m for name, m in sorted(sys.modules.items()) if isinstance(m, types.ModuleType)}
    for name, module in modules.items():
        for key, thing in list(vars(module).items()):
            if isinstance(thing, type):
                yield f"{name}.{key}", thing
                for inner, value in list(vars(thing).items()):
                    if callable(value) or isinstance(value, (property, classmethod, staticmethod)):
                        yield f"{name}.{key}.{inner}", value
            elif callable(thing):
                yield f"{name}.{key}", thing


def _print(thing: Any) -> tuple:
    """What else a function or a class is, besides itself."""
    if isinstance(thing, type):
        return tuple(sorted(key for key, value in vars(thing).items() if callable(value)))
    if not isinstance(thing, types.FunctionType):
        return ()
    return id(thing.__code__), id(thing.__defaults__), id(thing.__kwdefaults__)
