"""`tinymp course`: get the lessons, race, make assignments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from tinymp.checkpoint.writing import check as check_folder
from tinymp.checkpoint.writing import write

from . import race, teaching
from .lesson import lessons


def register(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see tinymp.lab.cli."""
    p = command("course", _list, "lessons with exercises that check themselves: start, race, assign")
    commands = p.add_subparsers(metavar="WHAT")

    def sub(name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        made.set_defaults(run=run)
        return made

    a = sub("start", _start, "write the notebooks to a folder; those that are there stay as they are")
    a.add_argument("folder", nargs="?", type=Path, default=Path("course"), metavar="DIR", help="default: course")

    a = sub("race", _race, "train under a budget of bytes, and count the digits that are named rightly")
    a.add_argument("entry", nargs="+", type=Path, metavar="FILE", help="your entry; several run one after the other")
    a.add_argument(
        "--budget",
        type=float,
        default=4.0,
        metavar="GIB",
        help="bytes to move (default: 4 GiB)",
    )

    a = sub("assign", _assign, "write assignments for Otter-Grader: notebooks, public and hidden tests, solutions")
    a.add_argument("lesson", nargs="*", type=int, metavar="N", help="numbers of lessons (default: all)")
    a.add_argument("--seed", type=int, required=True, metavar="SEED", help="of the hidden cases: keep it to yourself")
    a.add_argument("--wheel", type=Path, metavar="FILE", help="tinymp's wheel, for Otter's containers to install")
    a.add_argument("--out", type=Path, default=Path("assignments"), metavar="DIR", help="default: assignments")


def _list(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    for lesson in lessons().values():
        print(f"{lesson.title:<44}{len(lesson.exercises)} exercises: {', '.join(lesson.exercises)}")
    print("\ntinymp course start writes their notebooks to the folder course.")
    return 0


def _start(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    check_folder(options.folder)
    for lesson in lessons().values():
        path = options.folder / f"{lesson.path.stem}.ipynb"
        print(f"{path} is there already, and stays as it is" if path.exists() else path)
        if not path.exists():
            write(path, lesson.drawn)
    print("\nOpen them in Jupyter (jupyter lab), VS Code or Colab, one after the other.")
    return 0


def _assign(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.seed < 1:
        p.error(f"argument --seed: expected 1 or more (0 draws what students see), got {options.seed}")
    if options.wheel is not None and not options.wheel.is_file():
        p.error(f"argument --wheel: expected a file, found none at {options.wheel}")
    if unknown := set(options.lesson) - set(lessons()):
        p.error(f"argument N: expected numbers of lessons, {', '.join(map(str, lessons()))}; got {unknown}")
    for folder in ("students", "solved", "otter"):
        check_folder(options.out / folder)
    for number in options.lesson or lessons():
        lesson, name = lessons()[number], lessons()[number].path.stem
        if not any("# SOLUTION" in cell.source for cell in lesson.cells):
            p.error("expected the lessons with their solutions, which the repository has; a wheel has none")
        write(options.out / "students" / f"{name}.ipynb", lesson.drawn)
        write(options.out / "solved" / f"{name}.ipynb", json.dumps(lesson.notebook(solved=True), ensure_ascii=False))
        teaching.autograder(lesson, options.seed, options.out / "otter" / f"{name}.zip", options.wheel)
        print(f"{name}: {len(lesson.exercises)} points")
    print(f"\nStudents get {options.out / 'students'}, and nothing else of {options.out}.")
    return 0


def _race(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if not 0 < options.budget <= 1024:
        p.error(f"argument --budget: expected a number of GiB, above 0, got {options.budget}")
    for path in options.entry:
        if not path.is_file():
            p.error(f"expected an entry (FILE.py), found none at {path}")
        print(race.run(path, int(options.budget * 2**30)), flush=True)
    return 0
