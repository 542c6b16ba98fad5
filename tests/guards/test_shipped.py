"""The examples and the course are found in a checkout and in a wheel, and an sdist has all that the checkout has."""

import ast
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tinymp.lab import shipped

pytestmark = pytest.mark.cpu
ROOT = Path(shipped.__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def is_program(path):
    return any(isinstance(n, ast.If) and "__main__" in ast.unparse(n.test) for n in ast.parse(path.read_bytes()).body)


def test_every_program_is_listed():
    folder = ROOT / "examples"
    programs = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if is_program(path)]
    there = {".".join(path.parts) for path in programs}
    assert there == {*shipped.EXAMPLES, "paper.espeak"}  # which is a part of speech
    assert all(f"\n{name} " in f"\n{shipped.overview()}" for name in shipped.EXAMPLES)


def built(what, source, out):
    done = subprocess.run([sys.executable, "-c", BUILD, what, str(out)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Built from a copy of the checkout, and unpacked."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("sdist")
    left_out = shutil.ignore_patterns(".*", "runs", "build", "dist", "site", "*.egg-info", "__pycache__")
    copy = shutil.copytree(ROOT, folder / "copy", ignore=left_out)
    with tarfile.open(built("build_sdist", copy, folder)) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = folder.glob("tiny_mixed_precision-*/")
    return unpacked


@pytest.fixture(scope="module")
def site(sdist, tmp_path_factory):
    """A folder in which a wheel, built from the sdist, is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(built("build_wheel", sdist, folder)) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def below(folder, *patterns):
    """The files in a folder that match; none where there is no folder."""
    found = (p.relative_to(folder) for pattern in patterns for p in folder.rglob(pattern) if p.is_file())
    return {p.as_posix() for p in found if "__pycache__" not in p.parts}


def test_an_sdist_has_what_a_packager_and_a_teacher_need(sdist):
    copy = sdist.parent / "copy"
    for folder in ("tinymp", "examples", "course", "tests", "docs", "benchmarks"):
        assert below(sdist / folder, "*") == below(copy / folder, "*"), folder
    assert {path.name for path in copy.iterdir()} - {"tiny_mixed_precision.egg-info"} <= set(os.listdir(sdist))


def test_a_wheel_has_all_that_runs(sdist, site):
    there = below(site, "*")
    assert {name.partition("/")[0] for name in there if ".dist-info/" not in name} == {"tinymp"}
    copy = sdist.parent / "copy"
    package = {f"tinymp/{name}" for name in below(copy / "tinymp", "*.py", "*.cu", "*.cuh", "py.typed")}
    examples = below(copy / "examples", "*.py", "*.mplstyle", "*.npz")  # no executed notebook
    share = {f"examples/{name}" for name in examples}
    share |= {f"course/{name}" for name in below(copy / "course", "*")}
    assert package <= there and below(site / "tinymp" / "share", "*") == share
    course = [path.read_text(encoding="utf-8") for path in (site / "tinymp" / "share" / "course").glob("[0-9]*.py")]
    assert len(course) == 11 and not any("# SOLUTION" in text or "# END" in text for text in course)
    assert all("your turn" in text and "# %% check" in text for text in course)


def test_an_example_of_a_wheel_runs_and_an_audit_names_its_lines(site, tmp_path):
    command = [sys.executable, "-m", "tinymp", "audit", "-m", "examples.cnn", "--steps", "1"]
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "runs" / "cnn" / "report.json").read_text())["runs"].keys() == {"fp32", "mixed"}
    ledger = json.loads((tmp_path / "runs" / "audit" / "examples.cnn" / "audit.json").read_text())["ledger"]
    assert any(row["caller"].startswith("cnn.py:") for row in ledger)
    assert not any("share" in row["caller"] for row in ledger)


def test_the_course_of_a_wheel_checks_answers_and_has_no_solutions(site, tmp_path):
    program = "from tinymp.course import check; check(product_bits=22, surely_lost=2048); from tinymp.lab import cli;"
    program += "cli.main(['course', 'assign', '5', '--seed', '3'])"
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert "right: product_bits" in done.stdout and "wrong: surely_lost" in done.stdout
    assert done.returncode == 2 and "which the repository has; a wheel has none" in done.stderr
