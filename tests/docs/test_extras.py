"""Hints name extras that exist, of a checkout or a wheel: no index has this distribution."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import tinymp

pytestmark = pytest.mark.cpu
ROOT = Path(tinymp.__file__).parent.parent
WHEEL = f"tiny_mixed_precision-{tinymp.__version__}-py3-none-any.whl"
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
    """What a source says of extras that is not so. Only what follows "pip install" is a hint; `hint` calls are, too."""
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
