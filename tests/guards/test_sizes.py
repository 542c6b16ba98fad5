"""Figures of size and distance only fall: sizes.py measures them, sizes.json has those of today."""

import json
import re

import pytest

import sizes
from core_alone import SUBPACKAGES

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


def test_readme_says_how_large_the_parts_are():
    """Within a tenth: the table is written by hand."""
    rows = re.findall(r"^\| (core:.*?|`.*?) \| ([\d,]+)", (sizes.ROOT / "README.md").read_text("utf-8"), re.M)
    said = {row: int(number.replace(",", "")) for row, number in rows}
    found = sizes.sizes()
    more = found["core with more/: lines of code"] - found["core: lines of code"]
    for row, number in said.items():
        parts = [part.strip("`") for part in row.split(", ")]
        lines = [sizes.lines_of_code(p) for part in parts for p in (sizes.PACKAGE / part).rglob("*.py")]
        expected = found["core: lines of code"] if row.startswith("core") else more if "more" in row else sum(lines)
        if not row.startswith("`fast"):  # two numbers in one cell
            assert abs(number - expected) < 0.1 * expected, f"{row}: {expected}"
    assert {part for row in said for part in re.findall(r"`([\w/]+)`", row)} >= {
        name for name in SUBPACKAGES if not name.endswith("/more") and name != "course"
    }
