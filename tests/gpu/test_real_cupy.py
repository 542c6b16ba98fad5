"""The real CuPy, where it is installed (no GPU is needed): it has every name that tinymp uses, and takes its keywords.

The stand-in for CuPy (tests/cuda_on_cpu) is held to a record of CuPy's names and parameters; this holds the source
itself to the module. Names are read from the syntax trees, however the array module is called there: `cupy`, `xp`,
`self.xp`, `backend.of(x).xp`, or a variable bound to a part of it (`runtime = xp.cuda.runtime`).
"""

from __future__ import annotations

import ast
import inspect
import json
import pathlib
import re
import subprocess
import sys

import pytest

import tinymp
from cuda_on_cpu import cublas
from tinymp.ops.more import compare

PACKAGE = pathlib.Path(tinymp.__file__).parent
FOLDERS = (PACKAGE, PACKAGE.parent / "benchmarks")
HOST = {"cpu.py"}  # its `xp` is NumPy
# Names that the source puts together: getattr(xp, name)
COMPUTED = {op.ufunc for op in compare.OPS.values()} | {"all", "any", "argmax", "argmin", "max", "min", "sum"}

PYTHON = [sys.executable, "-I", "-W", "ignore", "-c"]
# Run with the real CuPy: which of the names does it not have, and which keywords do its functions not take?
ASK = """
import importlib, inspect, json, sys
try:
    import cupy
    import cupy_backends
    import cupyx
except ImportError as error:
    print(json.dumps(str(error)))
    raise SystemExit
missing = []
for name, keywords in json.load(sys.stdin).items():
    root, *parts = name.split(".")
    found = {"cupy": cupy, "cupyx": cupyx, "cupy_backends": cupy_backends}[root]
    try:
        for i, part in enumerate(parts):
            if not hasattr(found, part):  # a module that nobody has imported yet
                importlib.import_module(".".join([root, *parts[: i + 1]]))
            found = getattr(found, part)
    except (AttributeError, ImportError):
        missing.append(name)
        continue
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):  # compiled, or a class
        continue
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        missing += [f"{name}({keyword}=...)" for keyword in keywords if keyword not in parameters]
print(json.dumps(missing))
"""


def dotted(node: ast.expr) -> str | None:
    """ "a.b.c" of such an expression. A call or an index at its start becomes nothing: `of(x).xp` is ".xp"."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value) or ''}.{node.attr}"
    return None


def real(name: str | None, bound: dict[str, str]) -> str | None:
    """CuPy's name for a dotted name: "cupy.cuda.Stream" for "self.xp.cuda.Stream". None for other modules' names."""
    parts = (name or "").split(".")
    if parts[0] in bound:
        return ".".join([bound[parts[0]], *parts[1:]])
    if "xp" in parts:
        parts = ["cupy", *parts[parts.index("xp") + 1 :]]
    return ".".join(parts) if parts[0] in ("cupy", "cupy_backends") else None


def used(tree: ast.AST) -> dict[str, set[str]]:
    """The names of CuPy in a file, each with the keywords that it is called with."""
    bound: dict[str, str] = {}  # variable -> what it is in CuPy
    names: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("cupy", "cupyx", "cupy_backends"):
            bound |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            names |= {f"{node.module}.{a.name}": set() for a in node.names}
        for target in node.targets if isinstance(node, ast.Assign) else ():
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            for to, value in zip(target.elts, node.value.elts) if several else [(target, node.value)]:
                if isinstance(to, ast.Name) and to.id != "xp" and (name := real(dotted(value), bound)):
                    bound[to.id] = name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := real(dotted(node), bound)):
            names.setdefault(name, set())
        if isinstance(node, ast.Call) and (name := real(dotted(node.func), bound)):
            names.setdefault(name, set()).update(k.arg for k in node.keywords if k.arg)
    return names


def of_all_files() -> dict[str, set[str]]:
    """`used` of the whole package and of the benchmarks."""
    names: dict[str, set[str]] = {f"cupy.{name}": set() for name in COMPUTED}
    for path in (path for folder in FOLDERS for path in folder.rglob("*.py") if path.name not in HOST):
        for name, keywords in used(ast.parse(path.read_text(encoding="utf-8"))).items():
            names.setdefault(name, set()).update(keywords)
    return names


def ask(names: dict[str, set[str]]) -> list[str]:
    """Names that the real CuPy lacks. Skips without CuPy."""
    request = json.dumps({name: sorted(keywords) for name, keywords in names.items()})
    done = subprocess.run([*PYTHON, ASK], input=request, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    missing = json.loads(done.stdout.splitlines()[-1])
    if isinstance(missing, str):
        pytest.skip(f"CuPy cannot be imported: {missing}")
    return missing


def test_cupy_has_what_tinymp_uses():
    names = of_all_files()
    assert names["cupy_backends.cuda.libs.cublas.gemmStridedBatchedEx"] == set()
    some = {"RawModule", "cuda.MemoryPool", "cuda.runtime.memcpyAsync", "put_along_axis", "isnan", "where"}
    assert {f"cupy.{name}" for name in some} <= names.keys()
    assert ask(names) == []


def test_the_product_of_cupys_bindings_takes_what_the_stand_in_takes():
    """It is called with 23 arguments in order, which no other test of a machine without a GPU can check."""
    code = "from cupy_backends.cuda.libs import cublas; print(cublas.gemmStridedBatchedEx.__doc__)"
    done = subprocess.run([*PYTHON, code], capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"CuPy or cuBLAS cannot be imported: {done.stderr.splitlines()[-1]}")
    names = re.findall(r"(\w+)[,)]", done.stdout)
    ours = list(inspect.signature(cublas.Library.cublasGemmStridedBatchedEx).parameters)[1:]
    assert [name.lower() for name in names] == [
        {"batch": "batchcount", "compute": "computetype"}.get(n, n.lower()) for n in ours
    ]
