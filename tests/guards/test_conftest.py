"""The suite starts with nothing but pytest, NumPy and tqdm: what needs more is skipped."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import kept

pytestmark = pytest.mark.cpu

ROOT = pathlib.Path(__file__).parents[2]
LIBRARIES = ("hypothesis", "jinja2", "matplotlib", "numkong", "PIL", "threadpoolctl")


def test_without_plugins_and_libraries():
    """In a process that cannot import them."""
    code = f"import sys; sys.modules.update(dict.fromkeys({LIBRARIES})); import pytest; sys.exit(pytest.main())"
    files = "tests/core/backend/test_long_sums.py", "tests/audit/test_products.py"
    command = [sys.executable, "-c", code, "-rs", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hypothesis is not installed (the extra test)" in done.stdout  # the whole file imports it
    assert "matplotlib is not installed (the extra test)" in done.stdout  # what one test calls imports it
    assert re.search(r"^skipped for want of an extra: test \([2-9]\d*\)$", done.stdout, re.M)
    assert " passed" in done.stdout


def test_a_file_is_kept_until_what_it_depends_on_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "folder", lambda: tmp_path)
    made = [kept.kept("name.txt", on, pathlib.Path.touch) for on in ("ab", "ab", ("ab",), "ac")]
    assert made[0] == made[1] and len(set(made)) == 3 == len(list(tmp_path.iterdir()))
    again = kept.kept("name.txt", "ab", lambda path: path.write_text("made again"))
    assert again.read_text() == ""
