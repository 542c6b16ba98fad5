"""Assignments for Otter-Grader (PyPI otter-grader, the extra `teaching`): see docs/teaching.md."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path

from tinymp.backend.extras import hint

from .lesson import Lesson

# Otter runs the whole notebook, and writes `STEPS = 8` on top of each cell: trainings are cut short
SETTINGS = {"seed": 8, "seed_variable": "STEPS", "logo": False}
TEST = """from otter.test_files import test_case
from tinymp.course.checking import hold

OK_FORMAT = False
name = "{name}"
points = 1
all_or_nothing = True

@test_case(name="{name}, the cases that check shows")
def public(env):
    hold("{name}", env, 0)

@test_case(name="{name}, other cases", hidden=True)
def hidden(env):
    for variant in ({seed}, {seed} + 1):
        hold("{name}", env, variant)
"""


def autograder(lesson: Lesson, seed: int, path: Path, wheel: Path | None = None) -> None:
    """Write the zip with which Otter grades a lesson: a point for each exercise whose public and hidden test pass.

    seed: of the hidden cases. wheel: tinymp's, for Otter's containers; `otter run` takes what is installed.
    ModuleNotFoundError without Otter.
    """
    try:
        from otter.generate import main as generate
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"assign: expected Otter-Grader: {hint('teaching')}", name=error.name) from None
    with tempfile.TemporaryDirectory() as folder:
        settings, needed = Path(folder, "settings.json"), Path(folder, "requirements.txt")
        for name in lesson.exercises:
            Path(folder, f"{name}.py").write_text(TEST.format(name=name, seed=seed), encoding="utf-8")
        settings.write_text(json.dumps(SETTINGS), encoding="utf-8")
        needs = f"tiny-mixed-precision[course] @ file:///autograder/source/files/{wheel.name}" if wheel else ""
        needed.write_text(needs, encoding="utf-8")
        files = {"config": str(settings), "requirements": str(needed), "no_environment": True}
        generate(tests_dir=folder, output_path=str(path), **files)
    if wheel is not None:
        with zipfile.ZipFile(path, "a") as made:
            made.write(wheel, f"files/{wheel.name}")
