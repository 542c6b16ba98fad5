"""The command line.

    tinymp audit SCRIPT [ARGS]       run a program and say in which precision it computed, and what was lost there
    tinymp audit -m MODULE [ARGS]
    tinymp diff A B                  compare two runs of `tinymp audit --trace`: where do they part?
    tinymp ablate EXAMPLE            train with each precision decision flipped: which are needed there?
    tinymp explain [NAME]            the rule behind an op, a layer, a policy or a topic
    tinymp info                      what tinymp runs on here

`python -m tinymp` does the same. Exit code 2: the command line is wrong; of diff 1: the runs differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from .. import backend
from ..backend.formats import SCALED
from ..info import __version__, info
from ..writing import check, printable, write, write_json
from . import trace
from .ablate import EXAMPLES, Ablation, decisions, workload
from .audit import Audit, audit
from .diff import diff
from .explain import explain, overview
from .ledger import COLUMNS, NUMBERS, Rows

FILES = "audit.json", "ledger.csv", "audit.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. SystemExit with code 2 where it is wrong."""
    backend.cpu.keep_freed_memory()
    p, commands = _parser()
    options, rest = p.parse_known_args(arguments)
    if rest and options.command != "ablate":
        commands[options.command].error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return options.run(commands[options.command], options, rest)
    except BrokenPipeError:  # `tinymp ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    p = argparse.ArgumentParser("tinymp", description="Mixed-precision training whose every rounding can be seen.")
    p.add_argument("--version", action="version", version=__version__)
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], text: str, **options: Any) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False, **options)
        made.set_defaults(run=run)
        return made

    a = command("audit", _audit, "run a program and say in which precision it computed, and what was lost there")
    a.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    a.add_argument("--out", type=Path, default=Path("runs/audit"), metavar="DIR", help="default: runs/audit")
    a.add_argument("--shadow", action="store_true", help="also run every op again in FP32 (slow)")
    a.add_argument("--every", type=_positive, default=1, metavar="N", help="listen to one step in N, for long runs")
    a.add_argument("--modules", type=_expression, metavar="REGEX", help="listen only to modules of such names")
    a.add_argument("--trace", action="store_true", help="also mark every tensor, for tinymp diff")
    a.add_argument(
        "--formats",
        type=_formats,
        default=(),
        metavar="NAME,...",
        help=f"also say what these would have lost: {', '.join(SCALED)}",
    )
    a.add_argument("--sort", choices=COLUMNS, metavar="COLUMN", help="print the ledger alone, sorted by a column")
    a.add_argument(
        "--filter",
        type=_condition,
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="print the rows of the ledger that hold VALUE (a part of the text, or the number); may be repeated",
    )
    a.add_argument("program", metavar="SCRIPT", help="a file; with -m a module. What follows goes to the program")
    a.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help=argparse.SUPPRESS)
    a.epilog = f"columns: {', '.join(COLUMNS)}"

    a = command("diff", _diff, "compare two runs of `tinymp audit --trace`, tensor by tensor: where do they part?")
    for name in ("A", "B"):
        a.add_argument(name.lower(), metavar=name, help="a folder with a trace; DIR:POLICY for one policy in it alone")
    a.add_argument("--out", type=Path, default=Path("runs/diff"), metavar="DIR", help="default: runs/diff")
    a.epilog = "exit code: 0 if all tensors are the same, bit for bit; 1 if not"

    a = command("ablate", _ablate, "train with each precision decision flipped: which are needed there?")
    a.add_argument("example", metavar="EXAMPLE", help=f"{', '.join(EXAMPLES)}, or FILE.py:FUNCTION")
    a.add_argument("--steps", type=_positive, metavar="N", help="length of each run (default: the example's)")
    a.add_argument("--seeds", type=_positive, default=3, metavar="K", help="runs per decision (default: 3)")
    a.add_argument("--only", metavar="NAME,...", help="these decisions alone (default: all)")
    a.add_argument("--out", type=Path, default=Path("runs/ablate"), metavar="DIR", help="default: runs/ablate")

    a = command("explain", _explain, "the rule behind an op, a layer, a policy or a topic")
    a.add_argument("name", nargs="*", metavar="NAME", help='softmax, BatchNorm2d, "loss scaling"; none: a list')

    command("info", _info, "what tinymp runs on here")
    return p, dict(commands.choices)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"expected a regular expression, got {text!r} ({error})") from None
    return text


def _formats(text: str) -> tuple[str, ...]:
    """NAME,NAME."""
    for name in (names := tuple(text.split(","))):
        if name not in SCALED:
            raise argparse.ArgumentTypeError(f"unknown format {name!r}; there are {', '.join(SCALED)}")
    return names


def _condition(text: str) -> tuple[str, Any]:
    """COLUMN=VALUE."""
    column, equals, value = text.partition("=")
    if not equals or column not in COLUMNS:
        raise argparse.ArgumentTypeError(f"expected COLUMN=VALUE with a column of {', '.join(COLUMNS)}; got {text!r}")
    try:
        return column, float(value) if column in NUMBERS else value
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number for {column}, got {value!r}") from None


# ----------------------------------------------------------------------------------------------------------- commands


def _info(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    print(info())
    return 0


def _explain(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    try:
        print(explain(" ".join(options.name)) if options.name else overview())
    except ValueError as error:
        p.error(str(error).removeprefix("explain: "))
    return 0


def _ablate(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    with _as_if(None, [], os.getcwd()):  # the examples lie beside tinymp, not in it
        try:
            chosen = decisions(options.only.split(",") if options.only else None)
            options.out.mkdir(parents=True, exist_ok=True)
            work = workload(options.example, rest, options.steps, options.out)
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            p.error(str(error))
        ablation = Ablation(work, options.seeds)
        for decision in chosen:
            ablation.run(decision)
            ablation.write_json(options.out / "ablation.json")  # the results so far: all of them may take hours
    print(f"\n{ablation}\n\nwrote {options.out / 'ablation.json'}")
    try:
        ablation.write_png(options.out / "ablation.png")
        print(f"wrote {options.out / 'ablation.png'}")
    except ModuleNotFoundError:
        print("no curves were drawn: matplotlib is not installed")
    return 0


def _diff(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    try:
        check(options.out)
        found = diff(options.a, options.b)
    except (ValueError, OSError) as error:
        p.error(str(error).removeprefix("diff: "))
    print(printable(str(found)), flush=True)
    files = ["diff.json"]
    write_json(options.out / files[0], found.as_dict())
    try:
        found.report(options.out / "diff.html")
        files.append("diff.html")
    except ModuleNotFoundError as error:
        print(f"no diff.html: {error}", file=sys.stderr)
    print(f"\nwrote {', '.join(files)} to {printable(str(options.out))}")
    return 0 if found.same else 1


def _audit(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    path = os.getcwd() if options.module else os.path.dirname(os.path.abspath(options.program))
    with _as_if(options.program, options.arguments, path):
        try:
            _check_program(options.program, options.module)
            options.out = options.out.absolute()  # the program may change the folder
            check(options.out)
        except (ValueError, OSError, ImportError, SyntaxError) as error:
            p.error(str(error))
        earlier = _move_earlier(options.out) if options.trace else ""  # the trace is written while the program runs
        audited = audit(
            shadow=options.shadow,
            formats=options.formats,
            every=options.every,
            modules=options.modules,
            trace=options.out if options.trace else None,
        )
        title = " ".join([options.program, *options.arguments])
        try:
            with audited, _terminated_as_exit():
                if options.module:
                    runpy.run_module(options.program, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(options.program, run_name="__main__")
        except BaseException as error:
            if not isinstance(error, SystemExit) or error.code:
                title += f" (ended early: {type(error).__name__} {error})"
            raise
        finally:  # also if the program raises, or calls sys.exit
            further = [str(part) for part in (audited.shadow, audited.formats) if part]
            print("\n" + printable("\n\n".join([title, _table(audited, options), *further])), flush=True)
            earlier = earlier if options.trace else _move_earlier(options.out)
            files = ", ".join([*_write(audited, options.out, printable(title)), *[trace.FILE] * options.trace])
            print(f"\nwrote {files} to {printable(str(options.out))}{earlier}")
    return 0


@contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """Within the block, SIGTERM ends the program as sys.exit does, so that what ran is reported."""

    def end(number: int, _: Any) -> None:
        sys.exit(128 + number)

    own = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if own else None
    try:
        yield
    finally:
        if own and signal.getsignal(signal.SIGTERM) is end:  # else the program has its own
            signal.signal(signal.SIGTERM, before)


def _move_earlier(out: Path) -> str:
    """Move the files of an earlier audit to a folder that is named after their time; returns what to say of it."""
    there = [out / name for name in (*FILES, trace.FILE) if (out / name).exists()]
    if not there:
        return ""
    when = datetime.fromtimestamp(there[0].stat().st_mtime).strftime("%Y-%m-%d-%H%M%S")
    folder = next(f for i in count() if not (f := out / (when + (f"-{i}" if i else ""))).exists())
    folder.mkdir()
    for path in there:
        path.rename(folder / path.name)
    return f"; the earlier audit is in {folder.name}"


def _check_program(program: str, module: bool) -> None:
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


def _table(audited: Audit, options: argparse.Namespace) -> str:
    """The audit as text; where the command line sorts or filters, the rows of the ledger."""
    if not options.sort and not options.filter:
        return str(audited)
    rows: Rows = audited.ledger
    for column, value in options.filter:
        rows = rows.filter(**{column: value})
    return str(rows.sorted_by(options.sort, descending=options.sort in NUMBERS) if options.sort else rows)


def _write(audited: Audit, out: Path, title: str) -> list[str]:
    """Write everything; returns the names of the files."""
    data, ledger, page = FILES
    write_json(out / data, audited.as_dict())
    write(out / ledger, audited.ledger.to_csv())
    try:
        audited.report(out / page, title)
    except ModuleNotFoundError as error:
        print(f"no {page}: {error}", file=sys.stderr)
        return [data, ledger]
    return [*FILES]


@contextmanager
def _as_if(program: str | None, arguments: list[str], path: str) -> Iterator[None]:
    """Within the block, sys.argv and sys.path are as if Python had been started with a program; None: only the path."""
    argv, paths = sys.argv, sys.path
    sys.path = [path, *(p for p in paths if p != path)]
    if program is not None:
        sys.argv = [program, *arguments]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, paths
