"""The command line: `tinymp COMMAND`, or `python -m tinymp COMMAND`; `tinymp --help` lists the commands.

Exit code 2: the command line is wrong; of diff 1: the runs differ.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from .. import backend
from ..audit.audit import audit
from ..audit.crash import STOPS
from ..audit.machine import info
from ..backend import __version__
from ..backend.extras import hint
from ..checkpoint.writing import check, printable, write, write_json
from ..study.formats import SCALED
from . import shipped
from .ablate import Ablation, decisions, workload
from .bisect import Bisection, BisectionError
from .diff import diff
from .explain import explain, overview
from .program import as_if, check_program, children, ended, run, started, terminated_as_exit
from .trial import Plan

FILES = "audit.json", "ledger.csv", "audit.html"
WRONG = (ValueError, OSError, ImportError, AttributeError, SyntaxError)  # what a wrong command line raises


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. SystemExit with code 2 where it is wrong."""
    backend.cpu.keep_freed_memory()
    p, commands = _parser()
    options = p.parse_args(arguments)
    try:
        return options.run(commands[options.command], options)
    except BrokenPipeError:  # `tinymp ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """In one line, without the options, of which there are many."""
        self.exit(
            2, f"{self.prog}: {message.removeprefix(f'{self.prog.split()[-1]}: ')}; `{self.prog} --help` says more\n"
        )


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    p = _Parser("tinymp", description="Mixed-precision training whose every rounding can be seen.")
    p.add_argument("--version", action="version", version=__version__)
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], text: str, out: str = "", **options: Any) -> Any:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False, **options)
        made.set_defaults(run=run)
        if out:
            made.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help=f"default: {out}")
        return made

    def program(a: argparse.ArgumentParser) -> None:
        a.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
        a.add_argument("program", metavar="SCRIPT", help="a file; with -m a module. What follows goes to the program")
        arguments(a)

    def arguments(a: argparse.ArgumentParser) -> None:
        a.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False

    a = command("audit", _audit, "run a program and say in which precision it computed, and what was lost there")
    a.add_argument("--out", type=Path, metavar="DIR", help="default: runs/audit/SCRIPT")
    a.add_argument("--shadow", action="store_true", help="also run every op again in FP32 (slow)")
    first = "end the program at the first op that makes a NaN (or an infinity)"
    a.add_argument("--stop-at-first", choices=STOPS, help=first)
    a.add_argument("--every", type=int, default=1, metavar="N", help="listen to one step in N, for long runs")
    a.add_argument("--trace", action="store_true", help="also mark every tensor, for tinymp diff")
    said = f"also say what these would have lost: {', '.join(SCALED)}"
    a.add_argument("--formats", type=_names, default=(), metavar="NAME,...", help=said)
    program(a)

    a = command("diff", _diff, "compare two runs of `tinymp audit --trace`: where do they part?", "runs/diff")
    for name in ("A", "B"):
        a.add_argument(name.lower(), metavar=name, help="a folder with a trace; DIR:POLICY for one policy in it alone")
    a.epilog = "exit code: 0 if all tensors are the same, bit for bit; 1 if not"

    a = command("ablate", _ablate, "train with each precision decision flipped: which are needed there?", "runs/ablate")
    a.add_argument("example", metavar="EXAMPLE", help="cnn, lstm, dcgan, or MODULE:FUNCTION")
    a.add_argument("--steps", type=_positive, metavar="N", help="length of each run (default: the function's)")
    a.add_argument("--seeds", type=_positive, default=3, metavar="K", help="runs per decision (default: 3)")
    a.add_argument("--only", type=_names, default=(), metavar="NAME,...", help="these decisions alone (default: all)")

    a = command("bisect", _bisect, "which modules must stay in FP32 so that a run matches?", "runs/bisect")
    what = "the number to match: a global variable that SCRIPT leaves (of a list the last), or FILE.json:key.key"
    a.add_argument("--measure", required=True, metavar="NAME", help=what)
    a.add_argument("--seeds", type=_positive, default=3, metavar="K", help="runs per try (default: 3)")
    far = "how far the mean may lie outside of FP32's runs (default: as far as they lie apart, at least 1 %%)"
    a.add_argument("--tolerance", type=float, metavar="T", help=far)
    program(a)

    a = command("example", _example, "run a training of tinymp's own; without NAME: which there are")
    a.add_argument("name", nargs="?", choices=shipped.EXAMPLES, metavar="NAME", help="What follows goes to it")
    arguments(a)

    a = command("explain", _explain, "the rule behind an op, a layer, a policy or a topic")
    a.add_argument("name", nargs="*", metavar="NAME", help='softmax, BatchNorm2d, "loss scaling"; none: a list')

    import_module("tinymp.course.cli").register(command)

    command("info", _info, "what tinymp runs on here")
    return p, dict(commands.choices)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def _names(text: str) -> list[str]:
    return text.split(",")


# ----------------------------------------------------------------------------------------------------------- commands


def _info(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    print(info())
    return 0


def _example(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.name is None:
        print(shipped.overview())
        return 0
    module = f"examples.{options.name}"
    with as_if([module, *options.arguments], shipped.examples_home()):
        try:
            run(module, True)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in ("tinymp", "examples"):
                raise
            p.error(f"{error.name} is not installed: {hint(shipped.EXAMPLES[options.name])}")
    return 0


def _explain(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        print(explain(" ".join(options.name)) if options.name else overview())
    except ValueError as error:
        p.error(str(error))
    return 0


def _ablate(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    with as_if(sys.argv, os.getcwd()):  # for MODULE:FUNCTION
        try:
            chosen = decisions(options.only)
            check(options.out)
            ablation = Ablation(workload(options.example, options.steps), options.seeds)
        except WRONG as error:
            p.error(str(error))
        for number, decision in enumerate(chosen, 1):
            try:
                ablation.run(decision)
            except (OSError, ImportError) as error:  # data that are missing
                p.error(str(error))
            print(f"{number} of {len(chosen)}: {decision.name}: {decision.flipped}", flush=True)
            write_json(options.out / "ablation.json", ablation.as_dict())  # so far: all of them may take hours
    print(f"\n{ablation}\n\nwrote ablation.json to {options.out}")
    try:
        ablation.write_png(options.out / "ablation.png")
        print(f"wrote ablation.png to {options.out}")
    except ModuleNotFoundError as error:
        print(f"no curves were drawn: {error}")
    return 0


def _diff(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        check(options.out)
        found = diff(options.a, options.b)
    except WRONG as error:
        p.error(str(error))
    print(printable(str(found)), flush=True)
    write(options.out / "diff.html", found.to_html())
    print(f"\nwrote diff.html to {printable(str(options.out))}")
    return 0 if found.same else 1


def _audit(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    title, error = " ".join([options.program, *options.arguments]), None
    with started(options.program, options.arguments, options.module):
        try:
            check_program(options.program, options.module)
            name = options.program if options.module else Path(options.program).stem
            out = (options.out or Path("runs", "audit", name)).absolute()  # the program may change the folder
            check(out)
            audited = audit(
                shadow=options.shadow,
                formats=options.formats,
                every=options.every,
                stop_at=options.stop_at_first,
                trace=out if options.trace else None,
            )
        except WRONG as wrong:
            p.error(str(wrong))
        if times := [n for n, asked in ((3, options.shadow), (2, options.trace), (1, options.formats)) if asked]:
            hint = "" if options.every > 1 else "; --every 10 listens to one in ten"
            print(f"A step will take about {3 + sum(times)} times as long as without an audit{hint}.", file=sys.stderr)
        own, before = os.getpid(), ()
        try:
            with audited, terminated_as_exit():
                before = children()
                run(options.program, options.module)
        except BaseException as ends:
            error = ends
        if os.getpid() != own:  # a process that the program has forked ends here
            raise error or SystemExit
        lines = [title + (f" (ended early: {said})" if error is not None and (said := ended(error)) else "")]
        if before != children():
            lines.append("It started other processes: what ran in them was not listened to.")
        further = [str(part) for part in (audited.shadow, audited.formats) if part]
        print("\n" + printable("\n\n".join([*lines, audited.told(), *further])), flush=True)
        data, ledger, page = FILES
        write_json(out / data, audited.as_dict())
        write(out / ledger, audited.ledger.to_csv())
        audited.report(out / page, printable(lines[0]))
        print(f"\nwrote {', '.join(FILES)}{', trace.jsonl' * options.trace} to {printable(str(out))}")
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if error is not None:
        raise error
    return 0


def _bisect(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    with started(options.program, options.arguments, options.module):
        try:
            check_program(options.program, options.module)
            check(options.out)
        except WRONG as error:
            p.error(str(error))
    plan = Plan(options.program, options.module, options.arguments, options.measure)
    bisection = Bisection(plan, options.seeds, options.tolerance, options.out)
    try:
        bisection.run()
    except BisectionError as error:
        p.exit(1, f"tinymp bisect: {printable(str(error))}\n")
    print(f"\n{printable(str(bisection))}\n\nwrote bisect.json to {printable(str(options.out))}")
    return 0
