"""Runs that are kept in files, and with --resume go on as if they had never been stopped, bit for bit."""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import tinymp as mp
from tinymp import checkpoint
from tinymp.checkpoint import writing

from . import report
from .options import positive

# The options that are not those of one run: another run has others of them, and they change nothing of it.
OTHERS = ("out", "checkpoint", "resume", "every", "parallel", "device", "compare", "seeds")


def add_options(p: argparse.ArgumentParser) -> None:
    """What a program can be told about its checkpoints."""
    p.add_argument("--checkpoint", type=Path, metavar="DIR", help="keep each run in a file of this folder")
    p.add_argument("--every", type=positive, default=100, help="steps between two checkpoints (default: 100)")
    p.add_argument("--resume", action="store_true", help="go on with the runs that --checkpoint has kept")


class Checkpoint(NamedTuple):
    """Where a run is kept, after every so many steps and at its end; whether it begins with what is kept there.

    path     None: nowhere
    options  of the run, by name: those of a run that goes on must be the same
    """

    path: Path | None = None
    every: int = 1
    resume: bool = False
    options: dict[str, str] = {}  # noqa: RUF012

    def check(self) -> None:
        """ValueError where a run with other options is kept, OSError where none can be; where none is, one begins."""
        if self.path is not None:
            writing.check(self.path.parent)
        kept = checkpoint.peek(self.path).get("options", {}) if self._kept() else self.options
        differ = [name for name in {**self.options, **kept} if kept.get(name) != self.options.get(name)]
        if differ:
            said = ", ".join(f"{name} {kept.get(name)}, not {self.options.get(name)}" for name in differ)
            raise ValueError(f"the run in {self.path} had {said}: give it the same options, or leave --resume out")

    def load(self, run: report.Run, **parts: Any) -> None:
        """Put run and parts where they were, where a run is kept. The program ends where that cannot be."""
        if self._kept():
            try:
                vars(run).update(mp.load(self.path, **parts)["run"])
            except (TypeError, ValueError) as error:
                raise SystemExit(f"--resume: {error}") from error

    def save(self, run: report.Run, now: bool = False, **parts: Any) -> None:
        """Write all that it takes to go on, after a step that is due or `now`.

        Nothing is written of a run that has diverged: what is kept from before is good, and goes on to the same end.
        """
        if self.path is not None and not run.stopped and (now or len(run.curve) % self.every == 0):
            with suppress(FloatingPointError):  # weights that are not finite: the next loss will tell
                mp.save(self.path, **parts, run=vars(run), options=self.options)

    def _kept(self) -> bool:
        return self.resume and self.path is not None and self.path.exists()


NOWHERE = Checkpoint()


def of(options: argparse.Namespace, label: str, without: tuple[str, ...] = (), **own: Any) -> Checkpoint:
    """That of the run with a label, checked. own: what it has in place of a program's options; without: options that
    change nothing of it. Errors: see `Checkpoint.check`; ValueError for --resume alone.
    """
    if options.checkpoint is None:
        if options.resume:
            raise ValueError("--resume goes on with what --checkpoint DIR has kept: name the folder")
        return NOWHERE
    path = options.checkpoint / f"{re.sub('[^a-z0-9_]+', '-', label)}.safetensors"
    said = {**vars(options), **own}
    mine = {name: str(value) for name, value in said.items() if name not in (*OTHERS, *without)}
    found = Checkpoint(path, options.every, options.resume, mine)
    found.check()
    return found
