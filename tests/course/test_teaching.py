"""Assignments: what students get has no solutions; Otter, where it is installed, grades notebooks with them."""

import json
import subprocess
import sys
import zipfile

import pytest
from tinymp.course.lesson import lessons

from tinymp.lab import cli

pytestmark = pytest.mark.cpu
LESSON = lessons()[5]


def test_start(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["course", "start"]) == 0
    mine = tmp_path / "course" / "05_loss_scaling.ipynb"
    assert mine.read_text() == LESSON.path.with_suffix(".ipynb").read_text()
    mine.write_text("mine")
    assert cli.main(["course", "start"]) == 0
    assert "05_loss_scaling.ipynb is there already" in capsys.readouterr().out and mine.read_text() == "mine"
    assert cli.main(["course"]) == 0
    out = capsys.readouterr().out
    assert all(lesson.title in out for lesson in lessons().values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["99", "--seed", "3"], "argument N: expected numbers of lessons, 1, 2, 3,"),
        (["5", "--seed", "0"], "expected 1 or more (0 draws what students see), got 0"),
        (["5"], "the following arguments are required: --seed"),
        (["5", "--seed", "3", "--wheel", "no.whl"], "expected a file, found none at no.whl"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["course", "assign", *arguments])
    assert says in capsys.readouterr().err


def test_without_otter_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "otter.generate", None)
    with pytest.raises(ModuleNotFoundError, match=r"assign: expected Otter-Grader: pip install .*\[teaching\]"):
        cli.main(["course", "assign", "5", "--seed", "3", "--out", str(tmp_path)])


def test_otter_grades_an_assignment(tmp_path):
    """Solutions have all points; an answer that is fitted to the public cases has none, an empty notebook neither."""
    pytest.importorskip("otter.generate")
    wheel = tmp_path / "tinymp.whl"
    wheel.write_text("a wheel")
    arguments = ["course", "assign", "5", "--seed", "77", "--wheel", str(wheel), "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    archive = tmp_path / "otter" / "05_loss_scaling.zip"
    with zipfile.ZipFile(archive) as made:
        names = set(made.namelist())
        assert b"[course] @ file:///autograder/source/files/tinymp.whl" in made.read("environment.yml")
    assert names >= {"files/tinymp.whl", *(f"tests/{name}.py" for name in LESSON.exercises)}
    solved, given = (tmp_path / kind / "05_loss_scaling.ipynb" for kind in ("solved", "students"))
    assert "alive = gradients" in solved.read_text() and "alive = gradients" not in given.read_text()
    fitted = tmp_path / "fitted.ipynb"
    text = solved.read_text().replace(
        "alive = gradients[gradients != 0]", 'alive = gradients[gradients != 0]\\n",\n"    if FITTED: return 2.0'
    )
    seen = "gradients.size == 500 and scale not in (1, 64)"
    fitted.write_text(text.replace("FITTED", seen))
    for path, points in ((solved, 5), (given, 0), (fitted, 4)):
        command = [
            sys.executable,
            "-m",
            "otter",
            "run",
            "--no-logo",
            "-a",
            str(archive),
            "-o",
            str(tmp_path),
            str(path),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        results = json.loads((tmp_path / "results.json").read_text())
        found = {test["name"]: test["score"] for test in results["tests"] if "score" in test}
        assert set(found) == set(LESSON.exercises) and sum(found.values()) == points, results
