"""Solutions and other right answers pass; empty exercises and wrong answers fail, with a message that helps."""

import ast
import json
import linecache
import re
from functools import cache
from pathlib import Path

import matplotlib
import pytest
from tinymp.course.checking import check, hold, judge

from browser.inside import LENGTH
from tinymp import autograd
from tinymp.course import lesson as source

matplotlib.use("Agg")
from matplotlib import pyplot as plt

pytestmark = pytest.mark.cpu
LESSONS = source.lessons()
HERE = Path(__file__).parent
SYLLABUS = (HERE.parents[1] / "course" / "README.md").read_text(encoding="utf-8")
lessons = pytest.mark.parametrize("lesson", LESSONS.values(), ids=[one.path.stem for one in LESSONS.values()])


@pytest.fixture(autouse=True)
def _style():
    """A lesson sets matplotlib's style; what else runs in this process keeps its own."""
    with matplotlib.rc_context():
        yield


# ------------------------------------------------------------------------------------------------------------- answers


def statements(lesson):
    """(statement, its text) of each that a solved notebook needs for its exercises: no trainings, no pictures."""
    for cell in lesson.cells:
        if cell.kind in ("code", "exercise"):
            text = source.exercise(cell.source, solved=True)
            for node in ast.parse(text).body:
                cheap = isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))
                constant = isinstance(getattr(node, "value", None), ast.Constant)
                if cell.kind == "exercise" or cheap or constant or "itertools.count()" in ast.unparse(node):
                    yield node, ast.get_source_segment(text, node)


@cache
def notebook(lesson):
    """The names of a notebook in which everything is solved, and the text of each solution."""
    names, texts = {"__name__": "__main__"}, {}
    for node, text in statements(lesson):
        exec(compile(text, f"<ipython-{lesson.number}>", "exec"), names)
        name = node.name if hasattr(node, "name") else ast.unparse(getattr(node, "targets", [None])[0] or node)
        texts[name] = text
    return names, texts


def answer(lesson, name, code):
    """The answer of a student who solved everything, and then wrote one cell more."""
    names = dict(notebook(lesson)[0])
    file = f"<ipython-{name}>"
    linecache.cache[file] = len(code), None, code.splitlines(True), file
    exec(compile(code, file, "exec"), names)
    return names[name]


def mistakes(lesson):
    """(exercise, message, code) of typical mistakes."""
    found = re.split(r"^# %% (\w+): (.*)\n", (HERE / "mistakes" / lesson.path.name).read_text(), flags=re.MULTILINE)
    return list(zip(found[1::3], found[2::3], found[3::3]))


def answers(lesson):
    """(exercise, verdict, code) of answers.txt; there "wrong OLD >>> NEW" is an edit of the solution."""
    text = (HERE / "answers.txt").read_text(encoding="utf-8")
    for part in re.split(r"^= ", text, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        if name not in lesson.exercises:
            continue
        for verdict, edits, code in re.findall(r"^(right|wrong)\b(.*)\n((?:(?!right|wrong).*\n)*)", rest, re.MULTILINE):
            solution = notebook(lesson)[1][name]
            for edit in edits.strip().split(" ;; ") if edits else ():
                old, new = edit.split(" >>> ")
                assert old in solution, f"{name}: {edit}"
                solution = solution.replace(old, new.replace("NOTHING", ""))
            yield name, verdict, solution if edits else code


@lessons
def test_right_and_wrong_answers(lesson):
    """Each is judged with the cases that students see and with others; a wrong one must fail with one of them."""
    found, counts = [], dict.fromkeys(lesson.exercises, (0, 0))
    for name, verdict, code in answers(lesson):
        results = (judge(name, answer(lesson, name, code), variant) for variant in (0, 1))
        bad = next((result for result in results if result.verdict != "right"), None)
        right, wrong = counts[name]
        counts[name] = right + (verdict == "right"), wrong + (verdict == "wrong")
        if (bad is None) != (verdict == "right"):
            found.append(f"{name} is {verdict}, but {bad or 'passes'}\n{code}")
    few = [f"{name}: {r} right and {w} wrong answers" for name, (r, w) in counts.items() if r < 2 or w < 5]
    assert not found + few, "\n".join([f"{len(found)} of them:", *found, *few])


@lessons
def test_a_typical_mistake_is_found_and_explained(lesson):
    found = []
    for name, says, code in mistakes(lesson):
        result = judge(name, answer(lesson, name, code))
        if result.verdict != "wrong" or says not in result.message:
            found.append(f"{name}: expected {says!r}, got {result}\n{code}")
    assert not found, "\n".join(found)
    assert len(mistakes(lesson)) >= 10 and {name for name, *_ in mistakes(lesson)} == set(lesson.exercises)


@lessons
def test_solutions_pass_with_cases_that_students_do_not_see(lesson):
    for name in lesson.exercises:
        for variant in (1, 2):
            hold(name, notebook(lesson)[0], variant)


@lessons
def test_an_empty_exercise_is_not_right(lesson):
    text = json.dumps(lesson.notebook())
    assert "SOLUTION" not in text and "# END" not in text
    names = dict(notebook(lesson)[0])
    for cell in lesson.cells:
        if cell.kind == "exercise":
            exec(source.exercise(cell.source, solved=False), names)
    assert [judge(name, names[name]).verdict for name in lesson.exercises] == ["empty"] * len(lesson.exercises)


def test_errors_of_answers_and_of_calls(capsys):
    (lesson,) = (one for one in LESSONS.values() if "lost" in one.exercises)
    for body, says in {
        "return 1 / 0": "your code raises ZeroDivisionError: division by zero\n  in lost, line 2: return 1 / 0",
        "return mine(gradients)": "NameError: name 'mine' is not defined",
        "return lost(gradients, scale)": "calls itself without end",
        "return 'a third'": "is str 'a third', expected numbers",
        "return None": "is NoneType None, expected numbers",
        "return [[0.1], [0.2, 0.3]]": "expected numbers",
    }.items():
        check(answer(lesson, "lost", f"def lost(gradients, scale):\n    {body}\n"))
        assert says in capsys.readouterr().out
    with pytest.raises(ValueError, match="expected something that an exercise asks for, got 'x'"):
        check(x=3)
    with pytest.raises(TypeError, match="expected a function, a class, or name=value; got int 3"):
        check(3)


# ------------------------------------------------------------------------------------------------------------- lessons


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
def test_a_lesson_is_whole(lesson):
    """It begins with a question and a picture and ends with what to remember."""
    first = lesson.cells[0].source
    assert re.match(rf"# {lesson.number}\. ", first) and "minutes" in first
    assert "?**" in first, "the question, in bold"
    assert re.findall(r"^- \*\*(You \w+(?: then)?)\*\*", first, re.MULTILINE) == ["You know", "You do", "You can then"]
    assert "## What to remember" in lesson.cells[-1].source
    (row,) = re.findall(rf"^\| {lesson.number} \| \[.*", SYLLABUS, re.MULTILINE)
    assert f"]({lesson.path.stem}.ipynb)" in row
    if lesson.number <= 10:
        assert "| {} |".format(*re.findall(r"(\d+) minutes", first)) in row
    notebook = json.loads(lesson.drawn)
    pictures = [
        out for cell in notebook["cells"] for out in cell.get("outputs", []) if "image/png" in out.get("data", {})
    ]
    shown = [out for cell in notebook["cells"] for out in cell.get("outputs", [])]
    assert pictures and not [out for out in shown if out["output_type"] == "execute_result"], "a repr above a picture"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    assert notebook == lesson.notebook(), "run: python -m course.generate"


def test_what_a_lesson_names_of_the_core_is_there():
    named = {name for lesson in LESSONS.values() for name in re.findall(r"`((?:Op|Backward)\.\w+)`", lesson.drawn)}
    assert len(named) >= 4 and not [name for name in named if not hasattr(autograd, name.split(".")[0])]
    assert not [name for name in named if not hasattr(getattr(autograd, name.split(".")[0]), name.split(".")[1])]


def test_exercises_have_names_of_their_own():
    names = [name for lesson in LESSONS.values() for name in lesson.exercises]
    assert len(set(names)) == len(names)
