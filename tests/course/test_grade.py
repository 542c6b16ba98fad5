"""Submissions are judged in processes of their own, honest and other ones; a class becomes two tables."""

import csv
import io
import json
import multiprocessing

import pytest
from tinymp.course.lesson import lessons

from tinymp.course import grade, submission, trial
from tinymp.lab import cli

pytestmark = pytest.mark.cpu
LESSON = lessons()[5]
SOLVED = json.dumps(LESSON.notebook(solved=True))
LOST = """
import numpy as np
def lost(gradients, scale):
    {}
    alive = gradients[gradients != 0]
    return float(np.mean((alive * np.float32(scale)).astype(np.float16) == 0)) if alive.size else 0.0
"""


def file(tmp_path, body="", name="mine.py"):
    path = tmp_path / name
    path.write_text(LOST.format(body))
    return path


def verdicts(verdict):
    return {r.exercise: r.verdict for r in verdict.results}


# ---------------------------------------------------------------------------------------------------------------- one


@pytest.mark.parametrize("start", multiprocessing.get_all_start_methods())
def test_solutions_are_right_and_nothing_is_noticed(tmp_path, monkeypatch, start):
    if start == "fork":
        pytest.skip("is not used: a thread may hold a lock")
    if start == "spawn":
        monkeypatch.setattr(trial, "_context", lambda: multiprocessing.get_context("spawn"))
    path = tmp_path / "ada.ipynb"
    path.write_text(SOLVED)
    verdict = trial.run(path, variants=(0, 7, 8))
    assert (verdict.lesson, verdict.patched, verdict.problem) == (5, (), "")
    assert verdicts(verdict) == dict.fromkeys(LESSON.exercises, "right")
    assert verdict.right == len(LESSON.exercises) and verdict.seconds < 10


def test_what_is_missing_is_empty(tmp_path):
    verdict = trial.run(file(tmp_path))
    assert verdict.right == 1 and verdicts(verdict) == dict.fromkeys(LESSON.exercises, "empty") | {"lost": "right"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return 1 / 0", "your code raises ZeroDivisionError: division by zero\n  in lost, line 4: return 1 / 0"),
        ("return mine(gradients)", "NameError: name 'mine' is not defined (a check sees"),
        ("raise SystemExit(0)", "your code raises SystemExit: 0"),
        ("return lost(gradients, scale)", "calls itself without end"),
        ("return 'a third'", "is str 'a third', expected numbers"),
        ("return None", "is NoneType None, expected numbers"),
        ("return [[0.1], [0.2, 0.3]]", "expected numbers"),
    ],
)
def test_what_does_not_work_is_said(tmp_path, body, says):
    (result, *_) = trial.run(file(tmp_path, body)).results
    assert result.verdict == "wrong" and says in result.message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("while True: pass", "it did not end within 0.5 seconds"),
        ("import os; os._exit(0)", "its process ended without a word (exit code 0)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its process ended without a word (exit code -9)"),
    ],
)
def test_what_does_not_come_back_has_no_points(tmp_path, body, says):
    verdict = trial.run(file(tmp_path, body), seconds=0.5 if "while" in body else 30.0)
    assert (verdict.right, verdict.results, verdict.problem) == (0, (), says)


PATCHES = {
    "np.isclose = lambda *a, **k: np.array(True)": "changed numpy.isclose",
    "import tinymp.course.checking as c; c.expect = print": "changed tinymp.course.checking.expect",
    "import tinymp.course.checking as c; c.close.__code__ = c.short.__code__": "replaced a function's code",
    "from tinymp import optim; optim.SGD.step = print": "changed tinymp.optim",
    "from tinymp import ops; ops.mse_loss = print": "changed tinymp.ops.mse_loss",
    "import builtins; builtins.abs = lambda x: 0": "changed builtins.abs",
    "import sys; sys._getframe(1).f_locals": "looked at other code's variables",
    "import inspect; inspect.currentframe().f_back": "looked at other code's variables",
    "import gc; gc.get_objects()": "looked for other code's objects",
    "open('made', 'w').close()": "wrote a file",
    "import pathlib; pathlib.Path('made').write_text('x')": "wrote a file",
    "import subprocess; subprocess.run(['true'])": "started a program",
    "import socket; socket.socket().connect_ex(('127.0.0.1', 9))": "opened a connection",
    "import sys; sys.settrace(print); sys.settrace(None)": "traced other code",
    "import tinymp.course.trial as t; t.Watch.noticed = lambda self: ()": "changed tinymp.course.trial.Watch",
    "import random; random.Random.random = print": "changed random.Random",
    "import ctypes; ctypes.pythonapi.Py_IsInitialized": "loaded a library",
}


@pytest.mark.parametrize(("body", "says"), PATCHES.items())
def test_what_no_exercise_asks_for_is_noticed(tmp_path, monkeypatch, body, says):
    monkeypatch.chdir(tmp_path)
    verdict = trial.run(file(tmp_path, f"exec({body!r})" if "import" not in body else body))
    assert any(says in one for one in verdict.patched), verdict
    assert verdict.right == 0


def test_a_verdict_cannot_be_forged(tmp_path):
    """Whatever a student's process writes to what is open there, is no verdict."""
    forged = "{b'[]': 1}"
    body = f"""
    import os, struct
    for number in range(3, 64):
        try:
            os.write(number, struct.pack('!i', {len(forged)}) + {forged!r}.encode())
        except OSError:
            pass
    """
    verdict = trial.run(file(tmp_path, body))
    assert verdict.right == 0 and verdict.problem == "its process said something else than a verdict"


def test_only_what_an_exercise_needs_is_run(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def scale():\n    return 2\nfactor = scale()\nx = 1 / 0\nnp = None\n"
        + LOST.format("y = factor; x = y")
        + "print(1 / 0)\nfor i in range(10**12): pass\n"
    )
    assert trial.run(path).right == 1


def test_cells_that_are_no_python(tmp_path):
    cells = ["%matplotlib inline\n!pip install x\n" + LOST.format(""), "def broken(:\n  pass", "x = ?"]
    notebook = {"cells": [{"cell_type": "code", "source": text} for text in cells]}
    path = tmp_path / "mine.ipynb"
    path.write_text(json.dumps(notebook))
    verdict = trial.run(path)
    assert verdict.right == 1
    assert "mine.ipynb[cell 2] is not Python" in verdict.problem and "def broken(:" in verdict.problem


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cells": 3}', "\x00", '{"cells": [{"cell_type": "code"}]}'])
def test_what_is_no_notebook(tmp_path, text):
    path = tmp_path / "mine.ipynb"
    path.write_text(text)
    verdict = trial.run(path)
    assert verdict.right == 0 and ("expected a notebook" in verdict.problem or "no exercise" in verdict.problem)
    with pytest.raises(submission.Unreadable):
        submission.read(path).lesson()


# -------------------------------------------------------------------------------------------------------------- a class


@pytest.fixture
def handed_in(tmp_path):
    folder = tmp_path / "class"
    for name in ("ada", "bob"):
        (folder / name).mkdir(parents=True)
        (folder / name / "05_loss_scaling.ipynb").write_text(SOLVED)
    (folder / "eve").mkdir()
    file(folder / "eve", "np.isclose = lambda *a, **k: np.array(True)")
    (folder / "=cmd_05_loss_scaling.ipynb").write_text(json.dumps(LESSON.notebook()))
    (folder / "bob" / ".ipynb_checkpoints").mkdir()
    (folder / "bob" / ".ipynb_checkpoints" / "05_loss_scaling-checkpoint.ipynb").write_text(SOLVED)
    (folder / "bob" / "older_05_loss_scaling.ipynb").write_text(json.dumps(LESSON.notebook()))
    return folder


def test_a_class_is_graded(handed_in, tmp_path, capsys):
    assert cli.main(["course", "grade", str(handed_in), "--out", str(tmp_path / "out"), "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "5 submissions, seed 3" in out and "LOOK: changed numpy.isclose" in out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "grades.csv").read_text())))
    assert [(r["student"], r["sum"]) for r in rows] == [("'=cmd", "0"), ("ada", "5"), ("bob", "5"), ("eve", "0")]
    assert rows[3]["look at"].startswith("mine.py: changed numpy.isclose")
    assert rows[0]["5. Loss scaling (of 5)"] == "0"
    details = list(csv.DictReader(io.StringIO((tmp_path / "out" / "details.csv").read_text())))
    assert len(details) == 25
    assert {(r["student"], r["verdict"], r["point"]) for r in details if r["student"] == "ada"} == {
        ("ada", "right", "1")
    }


def test_cases_that_students_have_not_seen(tmp_path):
    """What is right for the one draw that a student sees is not for another."""
    path = file(tmp_path)
    scale = next(s for s in (8, 16, 32, 64, 128, 256) if _right(path, s, 0))
    assert not all(_right(path, scale, variant) for variant in range(1, 6))


def _right(path, scale, variant):
    path.write_text(LOST.format(f"if gradients.size == 500 and scale not in (1, {scale}): return 2.0"))
    return trial.run(path, 5, (variant,)).right == 1


def test_students_by_folder_or_name(tmp_path):
    for inside, name in {
        "ada/05_loss_scaling.ipynb": "ada",
        "ada_05_loss_scaling.ipynb": "ada",
        "Ada Lovelace_1234_assignsubmission_file_05_loss_scaling.ipynb": "Ada Lovelace_1234_assignsubmission_file",
        "ada.ipynb": "ada",
        "05_loss_scaling.ipynb": "05_loss_scaling",
    }.items():
        assert grade.student(tmp_path / inside, tmp_path) == name


def test_an_empty_folder(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["course", "grade", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "expected notebooks (*.ipynb) in" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------- a student


def test_start_and_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["course", "check", "5"])
    assert "expected 05_loss_scaling.ipynb here or in course/, which is not there" in capsys.readouterr().err
    assert cli.main(["course", "start"]) == 0
    mine = tmp_path / "course" / "05_loss_scaling.ipynb"
    assert cli.main(["course", "check", "5"]) == 1
    assert "empty: lost\n  not written yet" in capsys.readouterr().out
    mine.write_text(SOLVED)
    assert cli.main(["course", "start"]) == 0
    assert "05_loss_scaling.ipynb is there already" in capsys.readouterr().out and mine.read_text() == SOLVED
    assert cli.main(["course", "check", "5"]) == 0
    assert "5. Loss scaling: 5 of 5" in capsys.readouterr().out
    assert cli.main(["course", "start", "all", "--solutions"]) == 0
    assert json.loads((tmp_path / "all" / "05_loss_scaling_solved.ipynb").read_text()) == json.loads(SOLVED)
    with pytest.raises(SystemExit):
        cli.main(["course", "check", "99"])
    assert "expected the number of a lesson, got '99'; there are" in capsys.readouterr().err


def test_the_list(capsys):
    assert cli.main(["course"]) == 0
    out = capsys.readouterr().out
    assert all(lesson.title in out for lesson in lessons().values())
