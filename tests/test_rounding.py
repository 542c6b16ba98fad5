"""Precision changes in the precision primitives and nowhere else: the syntax trees are searched for ways around them.

The rule. A name is tinymp's own when the file defines it or imports it relatively; what an own function does, its own
file answers for. Outside precision.py and backend/, forbidden are:

- `.astype`, the operator `@`, and reading dot, vdot, inner, matmul, tensordot, einsum or vecdot from what is not
  tinymp's own (`ops.matmul`, a function of that name);
- calling sum, mean, var, std, prod, cumsum and their like as an attribute of anything but an own module or `math`: the
  syntax does not show whether x in `x.sum()` is an array or a Tensor, so inside the package it is `sum(x)` or
  `ops.sum(x)`. The same for `reduce`, `accumulate` and `reduceat` of a ufunc;
- a dtype by name given to a call: `dtype=float32`, `np.zeros(n, "f4")`, and np.float32 anywhere. Own functions
  and Tensor.to may be given one: they end in `to_dtype`. Comparing dtypes is free.
"""

import ast
from pathlib import Path

import pytest

import tinymp

PACKAGE = Path(tinymp.__file__).parent
# What the audit computes about arrays is no part of the training
OWN = ("audit/estimates.py", "audit/exponents.py", "audit/sketch.py")
# dtypes.py names them; meta is a backend, of arrays without memory
HERE = {PACKAGE / name for name in ("precision.py", "dtypes.py", "audit/meta.py", *OWN)}
CARRY = {"backend", "study"}  # and the fast paths of a device's primitives carry the primitives out
PRIMITIVES = ["devices", "cublas", "kernels", "philox", "reductions", "row_sums", "rows", "tables"]
FILES = [
    p for p in sorted(PACKAGE.rglob("*.py")) if p not in HERE and not CARRY & {*p.parts} and p.stem not in PRIMITIVES
]
ROOT = PACKAGE.parent
NAMES = """alexnet beam_search ctc_decoder dcgan deepspeech2 detection faster_rcnn gpt inception nmt resnet scale ssd
start vgg"""
NETWORKS = [ROOT / "examples" / "paper" / f"{name}.py" for name in NAMES.split()]
FILES += sorted([*NETWORKS, *(ROOT / "course" / "grader").glob("*.py")])

PRODUCTS = {"dot", "vdot", "inner", "matmul", "tensordot", "einsum", "vecdot"}
SUMS = {"sum", "mean", "var", "std", "prod", "cumsum", "cumprod", "average", "nansum", "nanmean", "trace", "convolve"}
LOOPS = {"reduce", "accumulate", "reduceat"}
DTYPES = {"float16", "float32", "float64"}
STRINGS = DTYPES | {"half", "single", "double", "f2", "f4", "f8", "<f2", "<f4", "<f8"}


def violations(source, name="planted.py"):
    """What `source` does around the primitives, as "file:line: reason: the line"."""
    tree, lines = ast.parse(source), source.splitlines()
    nodes = list(ast.walk(tree))
    own = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    own |= {a.asname or a.name for n in nodes if isinstance(n, ast.ImportFrom) and _of_tinymp(n) for a in n.names}
    found = sorted({(n.lineno, why) for n in nodes for why in _reasons(n, own)})
    return [f"{name}:{line}: {why}: {lines[line - 1].strip()}" for line, why in found]


def _of_tinymp(node):
    return node.level > 0 or node.module.partition(".")[0] == "tinymp"


def _reasons(node, own):
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult):
        yield "the operator @"
    elif isinstance(node, ast.ImportFrom) and not _of_tinymp(node) and node.module != "math":
        yield from (f"imports {a.name}" for a in node.names if a.name in PRODUCTS | SUMS | DTYPES)
    elif isinstance(node, ast.Attribute):
        foreign = not (isinstance(node.value, ast.Name) and node.value.id in own)
        if node.attr == "astype" or (node.attr in PRODUCTS | DTYPES and foreign):
            yield f".{node.attr}"
    elif isinstance(node, ast.Call):
        base = node.func.value if isinstance(node.func, ast.Attribute) else None
        called = node.func.attr if base is not None else getattr(node.func, "id", None)
        ours = getattr(node.func if base is None else base, "id", None) in own
        if base is not None and called in SUMS | LOOPS and not ours and getattr(base, "id", None) != "math":
            yield f".{called}()"
        if base is None and called in PRODUCTS and not ours:
            yield f"{called}()"
        given = [k.value for k in node.keywords if k.arg == "dtype"]
        given += [] if ours or called == "to" else node.args
        for value in given:
            if (isinstance(value, ast.Name) and value.id in DTYPES) or (
                isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value in STRINGS
            ):
                yield "a dtype by name"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_precision_changes_only_in_the_primitives(path):
    found = violations(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "x.astype(d)", "f = x.astype", "c = a @ b", "a @= b", "np.dot(a, b)", "a.dot(b)", "self.xp.vdot(a, b)",
        "xp.inner(a, b)", "f = np.matmul", "np.tensordot(a, b)", "np.einsum('ij,jk', a, b)", "einsum('ij,jk', a, b)",
        "vecdot(a, b)", "from numpy import matmul", "from numpy import float32", "np.sum(x)", "x.sum()",
        "self.xp.sum(x)",
        "xp.mean(x)", "(a * b).var()", "x.array.std(0)", "np.prod(x)", "np.cumsum(x)", "np.add.reduce(x)",
        "np.add.accumulate(x)", "np.add.reduceat(x, i)", "np.zeros(3, dtype=np.float16)", "y = self.xp.float64",
        "np.zeros(3, dtype='float32')", "np.zeros(3, 'f2')", "np.asarray(x, float32)", "x.view(float16)",
        "np.empty_like(x, dtype=float64)", "x.view('half')", "store(np.float32(2) * x, like=x)",
        "zeros(3, dtype=float16)",
    ],
)  # fmt: skip
def test_a_way_around_the_primitives_is_found(line):
    source = f"import numpy as np\nfrom ..precision import store, float16\nfrom .create import zeros\n\n{line}\n"
    (found,) = violations(source)
    assert found.startswith("planted.py:5: ")
    assert found.endswith(f": {line}")


def test_it_is_found_inside_an_op_too():
    source = "class Softmax(Op):\n    def forward(self, x):\n        return store(x / x.sum(0), like=x)\n"
    assert violations(source) == ["planted.py:3: .sum(): return store(x / x.sum(0), like=x)"]


@pytest.mark.parametrize(
    "line",
    [
        "y = ops.matmul(a, b)", "y = ops.einsum('ij,jk', a, b)", "def matmul(a, b): ...", "y = matmul(a, b)",
        "n = sum(sizes)",
        "y = ops.sum(x, 0)", "n = math.prod(shape)", "from math import prod", "y = reduce(x, 0, 'sum')",
        "if x.dtype == float16: ...",
        "y = to_dtype(x, float32)", "y = x.to(float16)", "self.mean = mean", "print('float32 stays float32')",
        "y = self.xp.zeros(shape, widen(x).dtype)", "message = 'a.astype(b) @ c'", "y = x.mean_",
        "@decorated\ndef f(): ...",
    ],
)  # fmt: skip
def test_innocent_code_passes(line):
    source = (
        "import math\nfrom . import ops\nfrom .dot import matmul\nfrom .precision import float16, reduce, to_dtype\n"
    )
    assert not violations(source + line)


def test_the_whole_package_is_searched():
    names = {p.relative_to(ROOT).as_posix() for p in FILES}
    assert {"tinymp/autograd.py", "tinymp/ops/pointwise.py", "examples/paper/nmt.py", "course/grader/race.py"} <= names
    assert not any("precision" in name or "backend" in name for name in names)
