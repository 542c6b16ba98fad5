"""Figures of size and distance only fall: sizes.py measures them, sizes.json has those of today."""

import json

import pytest

import sizes

pytestmark = pytest.mark.cpu


def test_no_figure_rises_and_each_fall_is_noted():
    if why := sizes.elsewhere():
        pytest.skip(why)
    figures, last = sizes.measured(), json.loads(sizes.FILE.read_text(encoding="utf-8"))
    assert not sizes.rises(figures, last), "these may only fall"
    assert figures == last, "run: python -m tests.sizes"


def test_lines_of_code_are_those_with_code(tmp_path):
    source = '''"""A module\n\nof two lines."""\n\nx = """a text\nof two lines"""  # 1, 2\n\n# a comment\n\n
def f(\n    a,\n):  # 3, 4, 5\n    """It does."""\n    return a\n\nclass A:\n    "It is."\n    y = (\n        1)\n'''
    (tmp_path / "module.py").write_text(source)
    assert sizes.lines_of_code(tmp_path / "module.py") == 9


def test_both_sides_of_a_conflict_count(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "FILE", tmp_path / "sizes.json")
    lines = ["{", ' "a": 1,', "<<<<<<< HEAD", ' "b": 3,', "=======", ' "b": 2,', ">>>>>>> main", ' "c": 5', "}"]
    sizes.FILE.write_text("\n".join(lines))
    assert sizes.noted() == {"a": 1, "b": 2, "c": 5}
    assert sizes.rises({"a": 1, "b": 3, "c": 4, "new": 9}, sizes.noted()) == ["b: 2 -> 3"]
