"""Every solution passes, every empty exercise and every typical mistake fails with a message that helps."""

import json
import re
from pathlib import Path

import matplotlib
import pytest
from tinymp.course.checking import judge

from tinymp.course import lesson as source
from tinymp.course import submission

matplotlib.use("Agg")
from matplotlib import pyplot as plt

pytestmark = pytest.mark.cpu
LESSONS = source.lessons()


@pytest.fixture(autouse=True)
def _style():
    """A lesson sets matplotlib's style; what else runs in this process keeps its own."""
    with matplotlib.rc_context():
        yield


MISTAKES = Path(__file__).parent / "mistakes"
SYLLABUS = (Path(__file__).parents[2] / "course" / "README.md").read_text(encoding="utf-8")
LENGTH = re.compile(r"^([A-Z]+ = )\d+  # of each training.*", re.MULTILINE)
lessons = pytest.mark.parametrize("lesson", LESSONS.values(), ids=[one.path.stem for one in LESSONS.values()])


def mistakes():
    for lesson in LESSONS.values():
        found = re.split(r"^# %% (\w+): (.*)\n", (MISTAKES / lesson.path.name).read_text(), flags=re.MULTILINE)
        for name, says, code in zip(found[1::3], found[2::3], found[3::3]):
            yield pytest.param(lesson, name, says, code, id=f"{lesson.number}-{name}-{says}"[:60])


@lessons
def test_the_lesson_runs_with_its_solutions(lesson, capsys):
    """All its cells in order, its trainings cut short; and each of its check cells says "right"."""
    text, cut = LENGTH.subn(r"\g<1>8", lesson.path.read_text(encoding="utf-8"))
    assert cut <= 1
    space = {"__name__": "lesson"}
    try:
        exec(compile(text, str(lesson.path), "exec"), space)
    finally:
        plt.close("all")
    said = re.findall(r"^(right|wrong|empty): (\w+)", capsys.readouterr().out, re.MULTILINE)
    assert said == [("right", name) for name in lesson.exercises]


@lessons
def test_solutions_pass_with_cases_that_students_do_not_see(lesson):
    for variant in (1, 2):
        results = judge(lesson, solutions(lesson), variant)
        assert {r.exercise: r.message for r in results} == dict.fromkeys(lesson.exercises, "")


def solutions(lesson, more="", names=None):
    """What a student has who filled in everything, and then wrote one cell more; the last definition counts."""
    cells = lesson.notebook(solved=True)["cells"]
    code = [(f"mine[cell {i}]", "".join(c["source"])) for i, c in enumerate(cells) if c["cell_type"] == "code"]
    return submission.Submission(lesson.path, (*code, ("mine[last]", more)), ()).run(names or lesson.exercises)


@lessons
def test_an_empty_notebook_has_no_right_exercise(lesson, tmp_path):
    path = tmp_path / "mine.ipynb"
    path.write_text(json.dumps(lesson.notebook()))
    handed_in = submission.read(path)
    assert handed_in.lesson() == lesson and not handed_in.broken
    results = judge(lesson, handed_in.run(lesson.exercises))
    assert [(r.exercise, r.verdict) for r in results] == [(name, "empty") for name in lesson.exercises]
    assert "SOLUTION" not in path.read_text() and "# END" not in path.read_text()


@pytest.mark.parametrize(("lesson", "name", "says", "code"), list(mistakes()))
def test_a_typical_mistake_is_found_and_explained(lesson, name, says, code):
    (result,) = judge(lesson, solutions(lesson, code, [name]), file="mine")
    assert result.verdict == "wrong" and says in result.message


@lessons
def test_a_lesson_is_whole(lesson):
    """It begins with a question and a picture and ends with what to remember; ten mistakes are known."""
    first = lesson.cells[0].source
    assert re.match(rf"# {lesson.number}\. ", first) and "minutes" in first
    assert "?**" in first, "the question, in bold"
    assert "## What to remember" in lesson.cells[-1].source
    (row,) = re.findall(rf"^\| {lesson.number} \| \[.*", SYLLABUS, re.MULTILINE)
    assert f"]({lesson.path.stem}.ipynb)" in row
    if lesson.number <= 10:
        assert "| {} |".format(*re.findall(r"(\d+) minutes", first)) in row
    assert sum(1 for p in mistakes() if p.values[0] is lesson) >= 10
    assert {p.values[1] for p in mistakes() if p.values[0] is lesson} == set(lesson.exercises)
    notebook = json.loads(lesson.path.with_suffix(".ipynb").read_text(encoding="utf-8"))
    pictures = [
        out for cell in notebook["cells"] for out in cell.get("outputs", []) if "image/png" in out.get("data", {})
    ]
    assert pictures
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    assert notebook == lesson.notebook(), "run: python -m course.generate"


def test_exercises_have_names_of_their_own():
    names = [name for lesson in LESSONS.values() for name in lesson.exercises]
    assert len(set(names)) == len(names)
