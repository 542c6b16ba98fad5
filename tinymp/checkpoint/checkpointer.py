"""The checkpoints of a loop, in a folder."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from ..arguments import count, file, flag, name_all, whole
from ..events import here
from .saving import load, require_state, save

NAMED = re.compile(r"step-(\d{8,})\.safetensors")


class Checkpointer:
    """The checkpoints of a loop, in a folder: the newest few.

        kept = mp.Checkpointer("runs/1", every=100, model=model, optimizer=optimizer, scaler=scaler, loader=loader)
        step = kept.load().get("step", 0)  # 0 if there is no checkpoint
        while step < steps:
            for x, y in loader:
                ...
                step += 1
                kept.save(step, loss=loss.item())

    directory  made where it is missing. A file there is named after its step: step-00000100.safetensors
    keep       how many of the newest stay, at least 1
    every      `save` writes where the step is a multiple of it
    objects    objects with a state, by name, as for `mp.save` and `mp.load`

    It removes files that it wrote, and those that were there when it loaded one; files of another Checkpointer stay.
    """

    def __init__(self, directory: str | os.PathLike, *, keep: int = 3, every: int = 1, **objects: Any) -> None:
        self.directory = file("Checkpointer", "directory", directory)
        self.keep, self.every = count("Checkpointer", "keep", keep), count("Checkpointer", "every", every)
        self.objects = objects
        require_state("Checkpointer", objects)
        if "step" in objects:
            raise ValueError("Checkpointer: expected names for its objects, got `step`, which is the step's number")
        self._own: set[int] = set()  # the steps whose files it may remove
        self.directory.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """The steps whose checkpoints are there, in order."""
        return sorted(int(match[1]) for path in self.directory.iterdir() if (match := NAMED.fullmatch(path.name)))

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.directory / f"step-{whole('Checkpointer.path', 'step', step):08}.safetensors"

    def save(self, step: int, *, now: bool = False, **parts: Any) -> bool:
        """Write the checkpoint of a step, if it is a multiple of `every` or with `now`, and remove the oldest ones.

        parts: further values for the file, such as a loss. Returns True if it was written. Errors: see `mp.save`.
        """
        if not flag("Checkpointer.save", "now", now) and whole("Checkpointer.save", "step", step) % self.every:
            return False
        if taken := sorted(self.objects.keys() & parts.keys()):
            raise ValueError(f"Checkpointer.save: expected other names than those of its objects, got {taken}")
        self._own.add(step)
        save(self.path(step), **self.objects, **parts, step=step)
        own = [one for one in self.steps() if one in self._own and not here.rank]
        for old in {*own} - {*own[-self.keep :], step}:
            self.path(old).unlink(missing_ok=True)
        return True

    def load(self, step: int | None = None) -> dict[str, Any]:
        """Restore the objects' state at a step, by default the newest. Returns the other parts and "step", or an empty
        dict if there is no checkpoint. Removes half-written files of killed processes. Errors: see `mp.load`;
        FileNotFoundError for an unknown step.
        """
        for left in [] if here.rank else self.directory.glob(".step-*.part"):
            shutil.rmtree(left, ignore_errors=True)
        steps = self.steps()
        if not steps and step is None:
            return {}
        found = steps[-1] if step is None else whole("Checkpointer.load", "step", step)
        if found not in steps:
            raise FileNotFoundError(
                f"Checkpointer.load: expected one of the steps {steps} of {self.directory}, got {step}"
            )
        parts = load(self.path(found), **self.objects)
        self._own.update(steps)
        return parts


name_all(globals())
