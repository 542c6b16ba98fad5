"""Writes the lessons' notebooks, without solutions: `python -m course.generate [NUMBER ...]`, in tinymp's repository.

A notebook is run with its solutions first. What the cells above the first exercise show is kept, so that a lesson
begins with its picture. Needs nbclient and ipykernel.
"""

import json
import sys

import nbclient
import nbformat
from tinymp.course.lesson import Lesson, lessons

from tinymp.checkpoint.writing import write


def generate(lesson: Lesson) -> None:
    """Run one lesson and write its notebook beside it."""
    solved = nbformat.reads(json.dumps(lesson.notebook(solved=True)), as_version=4)
    nbclient.NotebookClient(solved, timeout=600, kernel_name="python3").execute()
    notebook = lesson.notebook()
    kinds = [cell.kind for cell in lesson.cells if cell.kind != "check"]
    for kind, cell, run in zip(kinds, notebook["cells"], solved["cells"]):
        if kind == "exercise":
            break
        if kind == "code":
            cell["outputs"] = [
                {**one, "execution_count": None} if "execution_count" in one else one for one in run.outputs
            ]
    write(lesson.path.with_suffix(".ipynb"), json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    print(lesson.path.stem)


if __name__ == "__main__":
    for number, lesson in lessons().items():
        if not sys.argv[1:] or str(number) in sys.argv[1:]:
            generate(lesson)
