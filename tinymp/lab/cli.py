"""The command line: `tinymp COMMAND`, or `python -m tinymp COMMAND`; `tinymp --help` lists the commands.

Exit code 2: the command line is wrong; of diff 1: the runs differ.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from .. import backend
from ..audit.audit import audit
from ..audit.crash import STOPS
from ..audit.machine import info
from ..audit.numbers import LONG, lasts
from ..backend import __version__
from ..backend.extras import hint
from ..checkpoint.writing import check, printable, write, write_json
from ..study.formats import SCALED
from . import shipped
from .ablate import EXAMPLES, Ablation, decisions, workload
from .bisect import RESULTS, Bisection, BisectionError
from .diff import diff
from .explain import explain, overview
from .program import TERMINATED, as_if, check_program, children, ended, run, started, terminated_as_exit
from .trial import FILE, NAME

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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """In one line, without the options, of which there are many."""
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` says more\n")


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    p = _Parser("tinymp", description="Mixed-precision training whose every rounding can be seen.")
    p.add_argument("--version", action="version", version=__version__)
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], text: str, **options: Any) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False, **options)
        made.set_defaults(run=run)
        return made

    def program(a: argparse.ArgumentParser) -> None:
        a.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
        what = "a file; with -m a module. What follows goes to the program"
        a.add_argument("program", metavar="SCRIPT", nargs="?", help=what)
        a.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help=argparse.SUPPRESS)

    a = command("audit", _audit, "run a program and say in which precision it computed, and what was lost there")
    a.add_argument("--out", type=Path, metavar="DIR", help="default: runs/audit/SCRIPT")
    a.add_argument("--shadow", action="store_true", help="also run every op again in FP32 (slow)")
    first = "end the program at the first op that makes a NaN (or an infinity)"
    a.add_argument("--stop-at-first", choices=STOPS, help=first)
    a.add_argument("--every", type=_positive, default=1, metavar="N", help="listen to one step in N, for long runs")
    a.add_argument("--trace", action="store_true", help="also mark every tensor, for tinymp diff")
    said = f"also say what these would have lost: {', '.join(SCALED)}"
    a.add_argument("--formats", type=_formats, default=(), metavar="NAME,...", help=said)
    program(a)

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

    a = command("bisect", _bisect, "which modules must stay in FP32 so that a run matches?")
    what = "the number to match: a global variable that SCRIPT leaves (of a list the last), or FILE.json:key.key"
    a.add_argument("--measure", type=_measure, required=True, metavar="NAME", help=what)
    a.add_argument("--seeds", type=_positive, default=3, metavar="K", help="runs per try (default: 3)")
    far = "how far the mean may lie outside of FP32's runs (default: as far as they lie apart, at least 1 %%)"
    a.add_argument("--tolerance", type=_tolerance, metavar="T", help=far)
    a.add_argument("--out", type=Path, default=Path("runs/bisect"), metavar="DIR", help="default: runs/bisect")
    program(a)

    a = command("example", _example, "run a training of tinymp's own; without NAME: which there are")
    a.add_argument("name", nargs="?", metavar="NAME", help=f"{', '.join(shipped.EXAMPLES)}. What follows goes to it")
    a.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help=argparse.SUPPRESS)

    a = command("explain", _explain, "the rule behind an op, a layer, a policy or a topic")
    a.add_argument("name", nargs="*", metavar="NAME", help='softmax, BatchNorm2d, "loss scaling"; none: a list')

    import_module("tinymp.course.cli").register(command)

    command("info", _info, "what tinymp runs on here")
    return p, dict(commands.choices)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def _measure(text: str) -> str:
    if not FILE.fullmatch(text) and not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected the name of a variable, or FILE.json:key.key; got {text!r}")
    return text


def _tolerance(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!r}")


def _formats(text: str) -> tuple[str, ...]:
    """NAME,NAME."""
    for name in (names := tuple(text.split(","))):
        if name not in SCALED:
            raise argparse.ArgumentTypeError(f"unknown format {name!r}; there are {', '.join(SCALED)}")
    return names


_say = partial(print, flush=True)

# ----------------------------------------------------------------------------------------------------------- commands


def _info(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    print(info())
    return 0


def _example(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    name, module = options.name, f"examples.{options.name}"
    try:
        if name is None:
            print(shipped.overview())
            return 0
        if name not in shipped.EXAMPLES:
            near = [f"did you mean {one}?" for one in difflib.get_close_matches(name, shipped.EXAMPLES, 1)]
            raise ValueError(f"no example is called {name!r}; {(near or ['`tinymp example` lists them'])[0]}")
        path = shipped.examples_home()
    except (ValueError, ImportError) as error:
        p.error(str(error))
    needs = f"{name} needs %s, which is not installed: {hint(shipped.EXAMPLES[name])}"
    if importlib.util.find_spec("matplotlib") is None:  # its picture would be missing after all that it trained
        p.error(needs % "matplotlib")
    with as_if(module, options.arguments, path):
        try:
            run(module, True)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in ("tinymp", "examples"):
                raise
            p.error(needs % error.name)
    return 0


def _explain(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    try:
        print(explain(" ".join(options.name)) if options.name else overview())
    except ValueError as error:
        p.error(str(error).removeprefix("explain: "))
    return 0


def _ablate(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    with as_if(None, [], os.getcwd()):  # for FILE.py:FUNCTION
        try:
            chosen = decisions(options.only.split(",") if options.only else None)
            options.out.mkdir(parents=True, exist_ok=True)
            if rest:
                raise ValueError(f"{options.example} takes no options, got {' '.join(rest)}")
            work = workload(options.example, options.steps)
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            p.error(str(error))
        ablation = Ablation(work, options.seeds)
        began = time.perf_counter()
        for number, decision in enumerate(chosen, 1):
            try:
                ablation.run(decision)
            except (OSError, ImportError) as error:  # data that are missing
                p.error(str(error))
            spent = time.perf_counter() - began
            left = f", about {lasts(spent / number * (len(chosen) - number))} to go" * (number < len(chosen))
            _say(f"{number} of {len(chosen)}, {lasts(spent)}{left}: {decision.name}: {decision.flipped}")
            write_json(options.out / "ablation.json", ablation.as_dict())  # so far: all of them may take hours
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
    write_json(options.out / "diff.json", found.as_dict())
    write(options.out / "diff.html", found.to_html())
    print(f"\nwrote diff.json, diff.html to {printable(str(options.out))}")
    return 0 if found.same else 1


def _audit(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    _check_program(p, options)
    title, error = " ".join([options.program, *options.arguments]), None
    with started(options.program, options.arguments, options.module):
        try:
            check_program(options.program, options.module)
            name = options.program if options.module else Path(options.program).stem
            options.out = (options.out or Path("runs", "audit", name)).absolute()  # the program may change the folder
            check(options.out)
        except (ValueError, OSError, ImportError, SyntaxError) as wrong:
            p.error(str(wrong))
        alike = {name: getattr(options, name) for name in ("shadow", "formats", "every")}
        plain = {name: [*value] if isinstance(value, tuple) else value for name, value in alike.items()}
        asked = {"title": printable(title), "trace": options.trace, **plain}
        _say_how_long(asked, options.out)
        earlier = _move_earlier(options.out)  # what follows is written while the program runs
        audited = audit(**alike, stop_at=options.stop_at_first, trace=options.out if options.trace else None)
        own, before, began = os.getpid(), (), time.perf_counter()
        try:
            with audited, terminated_as_exit():
                before = children()
                run(options.program, options.module)
        except BaseException as ends:
            error = ends
        if os.getpid() != own:  # a process that the program has forked ends here
            raise error or SystemExit
        asked["seconds"] = round(time.perf_counter() - began, 1)
        how = f" (ended early: {said})" if error is not None and (said := ended(error)) else ""
        lines = [title + how]
        if before != children():
            lines.append("It started other processes: what ran in them was not listened to.")
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        further = [str(part) for part in (audited.shadow, audited.formats) if part]
        print("\n" + printable("\n\n".join([*lines, audited.told(width), *further])), flush=True)
        data, ledger, page = FILES
        write_json(options.out / data, {"asked": asked, **audited.as_dict()})
        write(options.out / ledger, audited.ledger.to_csv())
        audited.report(options.out / page, printable(lines[0]))
        written = [*FILES, *_traces(options.out)]
        print(f"\nwrote {', '.join(written)} to {printable(str(options.out))}{earlier}")
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if error is not None:
        raise error
    return 0


def _check_program(p: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.program is None:
        p.error(f"expected the program to run, as in `{p.prog} train.py`")


COSTS = {"shadow": 3, "trace": 2, "formats": 1}  # in plain steps, beside the 2 to 4 of an audited one


def _say_how_long(asked: dict[str, Any], out: Path) -> None:
    """Say about how long a long audit takes: what the last one of the same did; else what it makes of a step."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        last = json.loads((out / FILES[0]).read_bytes())["asked"]
        if {**asked, "seconds": last["seconds"]} == last:
            if last["seconds"] >= LONG:
                print(f"It will take about {lasts(last['seconds'])}, as it did the last time.", file=sys.stderr)
            return
    if more := [name for name in COSTS if asked[name]]:
        options, times = " and ".join([f"--{name}" for name in more]), 3 + sum(COSTS[name] for name in more)
        hint = "" if asked["every"] > 1 else "; --every 10 listens to one in ten"
        print(f"With {options} a step takes about {times} times as long as without an audit{hint}.", file=sys.stderr)


def _bisect(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    _check_program(p, options)
    given = {name: value for name, value in vars(options).items() if name not in ("command", "run")}
    with started(options.program, options.arguments, options.module):
        try:
            check_program(options.program, options.module)
            check(options.out)
            bisection = Bisection(**given, say=_say)
        except (ValueError, OSError, ImportError, SyntaxError) as error:
            p.error(str(error))
    code, earlier = 0, "" if bisection.runs else _move_earlier(options.out, (RESULTS, "logs"), "search")
    try:
        with terminated_as_exit():
            bisection.run()
    except BisectionError as error:
        print(f"tinymp bisect: {printable(str(error))}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemExit) as end:
        _say(f"\n{ended(end)}; the same command goes on from here")
        code = TERMINATED if isinstance(end, SystemExit) else 128 + signal.SIGINT
    _say(f"\n{printable(str(bisection))}\n\nwrote {RESULTS} to {printable(str(options.out))}{earlier}")
    return code


def _traces(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("trace*.jsonl"))


def _move_earlier(out: Path, files: Sequence[str] = FILES, what: str = "audit") -> str:
    """Move the files of an earlier audit to a folder that is named after their time; returns what to say of it."""
    there = [out / name for name in (*files, *_traces(out)) if (out / name).exists()]
    if not there:
        return ""
    when = datetime.fromtimestamp(there[0].stat().st_mtime).strftime("%Y-%m-%d-%H%M%S")
    folder = next(f for i in count() if not (f := out / (when + (f"-{i}" if i else ""))).exists())
    folder.mkdir()
    for path in there:
        path.rename(folder / path.name)
    return f"; the earlier {what} is in {folder.name}"
