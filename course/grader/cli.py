"""`tinymp course`: get the lessons, check one's work, grade a class, race."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tinymp.checkpoint.writing import check as check_folder
from tinymp.checkpoint.writing import write, write_json

from . import grade, race, trial
from .checking import RIGHT, WRONG
from .lesson import Lesson, lessons


def register(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see tinymp.lab.cli."""
    p = command("course", _list, "lessons with exercises that check themselves: start, check, grade, race")
    commands = p.add_subparsers(metavar="WHAT")

    def sub(name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        made.set_defaults(run=run)
        return made

    a = sub("start", _start, "write the notebooks to a folder; those that are there stay as they are")
    a.add_argument("folder", nargs="?", type=Path, default=Path("course"), metavar="DIR", help="default: course")
    a.add_argument("--solutions", action="store_true", help="with the solutions filled in")

    a = sub("check", _check, "say which exercises of a lesson are right, and what is wrong with the others")
    a.add_argument("lesson", type=_number, metavar="N", help="the number of the lesson")
    a.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: its notebook, here or in course/")

    a = sub("grade", _grade, "judge all submissions in a folder, with cases that the students have not seen")
    a.add_argument("folder", type=Path, metavar="DIR", help="a folder per student, or files that begin with names")
    a.add_argument("--lesson", type=_number, metavar="N", help="what all of them are (default: told by each)")
    a.add_argument("--draws", type=int, choices=range(1, 11), default=2, metavar="K", help="of cases (default: 2)")
    a.add_argument(
        "--seed", type=int, metavar="SEED", help="of the cases: the same gives the same (default: a new one)"
    )
    a.add_argument("--out", type=Path, default=Path("runs/grade"), metavar="DIR", help="default: runs/grade")

    a = sub("race", _race, "train entries under one budget of bytes, and say who names most digits rightly")
    a.add_argument("entry", type=Path, metavar="FILE", help="an entry, or a folder of entries: a leaderboard")
    a.add_argument("--budget", type=_gib, default=race.BUDGET, metavar="GIB", help="bytes to move (default: 4 GiB)")
    a.add_argument("--out", type=Path, default=Path("runs/race"), metavar="DIR", help="default: runs/race")


def _gib(text: str) -> int:
    with suppress(ValueError):
        if 0 < (value := float(text)) <= 1024:
            return int(value * 2**30)
    raise argparse.ArgumentTypeError(f"expected a number of GiB, above 0, got {text!r}")


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) not in lessons():
        there = ", ".join(f"{n} ({lesson.path.stem[3:]})" for n, lesson in lessons().items())
        raise argparse.ArgumentTypeError(f"expected the number of a lesson, got {text!r}; there are {there}")
    return int(text)


def _list(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    for lesson in lessons().values():
        print(f"{lesson.title:<44}{len(lesson.exercises)} exercises: {', '.join(lesson.exercises)}")
    print("\ntinymp course start writes their notebooks to the folder course; tinymp course check 1 checks the first.")
    return 0


def _start(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    check_folder(options.folder)
    for lesson in lessons().values():
        path = options.folder / f"{lesson.path.stem}{'_solved' * options.solutions}.ipynb"
        if path.exists():
            print(f"{path} is there already, and stays as it is")
            continue
        write(path, notebook(lesson, options.solutions))
        print(path)
    print("\nOpen them in Jupyter (jupyter lab), VS Code or Colab, one after the other.")
    return 0


def notebook(lesson: Lesson, solved: bool = False) -> str:
    """The text of a lesson's notebook: with its pictures where it is unsolved and they were drawn."""
    drawn = lesson.path.with_suffix(".ipynb")
    if not solved and drawn.is_file():
        return drawn.read_text(encoding="utf-8")
    return json.dumps(lesson.notebook(solved), indent=1, ensure_ascii=False) + "\n"


def _check(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    lesson = lessons()[options.lesson]
    name = f"{lesson.path.stem}.ipynb"
    path = options.file or next((f for f in (Path(name), Path("course", name)) if f.is_file()), None)
    if path is None or not path.is_file():
        p.error(f"expected {path or f'{name} here or in course/'}, which is not there; tinymp course start writes it")
    verdict = trial.run(path, lesson.number)
    if verdict.problem:
        print(verdict.problem, file=sys.stderr)
    for result in verdict.results:
        print(result)
    for what in verdict.patched:
        print(f"no exercise asks for this: {what}")
    print(f"{lesson.title}: {verdict.right} of {len(lesson.exercises)}")
    return int(any(r.verdict != RIGHT for r in verdict.results) or not verdict.results or bool(verdict.patched))


def _grade(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    seed = secrets.randbits(32) if options.seed is None else options.seed
    if seed < 0:
        p.error(f"argument --seed: expected 0 or more, got {seed}")
    check_folder(options.out)

    def told(verdict: trial.Verdict) -> None:
        wrong = sum(r.verdict == WRONG for r in verdict.results)
        look = "  LOOK: " + "; ".join((*verdict.patched, verdict.problem)) if verdict.patched or verdict.problem else ""
        print(f"{verdict.path}: {verdict.right} right, {wrong} wrong, {verdict.seconds:.1f} s{look}")

    variants = [seed * 16 + 1 + draw for draw in range(options.draws)]  # 0 is what students see
    try:
        graded = grade.grade(options.folder, options.lesson, variants, told)
    except OSError as error:
        p.error(str(error))
    for name, table in (("grades.csv", grade.points), ("details.csv", grade.details)):
        write(options.out / name, table(graded))
    print(f"\n{len(graded)} submissions, seed {seed}: {options.out / 'grades.csv'} and {options.out / 'details.csv'}")
    return 0


def _race(p: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]) -> int:
    paths = sorted(options.entry.glob("*.py")) if options.entry.is_dir() else [options.entry]
    if not paths or not paths[0].exists():
        p.error(f"expected an entry (FILE.py) or a folder of them, found none at {options.entry}")
    check_folder(options.out)
    finishes, refused = [], []
    for path in paths:
        try:
            finishes.append(race.run(race.read(path), options.budget))
        except Exception as error:  # an entry's own: the others race on
            refused.append(f"{path.name} did not race: {type(error).__name__}: {error}")
            continue
        print(f"{path.name}: {finishes[-1].right / 10:.1f} % right after {finishes[-1].steps} steps", flush=True)
    print()
    print(race.board(finishes))
    print("\n".join(refused), file=sys.stderr, end="\n" * bool(refused))
    write_json(options.out / "race.json", [asdict(finish) for finish in finishes])
    print(f"\nwrote {options.out / 'race.json'}")
    return int(bool(refused))
