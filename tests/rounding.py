"""Finds the places where numbers may be rounded: `python -m tests.rounding` prints those without a mark.

A mark says what is rounded there, or why nothing is: `# rounds: never, ...`; in CUDA `// rounds: ...`. It stands at the
end of the line or, alone, on the line above; docs/generate.py makes its table of the marks. The syntax shows no dtypes,
so what looks like rounding has to be marked whether it rounds or not. In Python that is

- `.astype`, the operator `@`, and reading dot, vdot, inner, matmul, tensordot, einsum or vecdot from what is not
  tinymp's own (`ops.matmul`, a function of that name). A name is tinymp's own when the file defines it or imports it
  relatively; what an own function does, its own file answers for;
- calling sum, mean, var, std, prod, cumsum and their like as an attribute of anything but an own module or `math`: the
  syntax does not show whether x in `x.sum()` is an array or a Tensor, so inside the package it is `sum(x)` or
  `ops.sum(x)`. The same for `reduce`, `accumulate`, `reduceat` and `at` of a ufunc;
- a device's own cast, cast_stochastic, gemm and scatter_add_rows, which carry the precision primitives out;
- making an array of another one in a given floating dtype (`np.asarray(x, d)`), writing a result or a value into an
  array that is there (`out=`, unless it is an operand; `copyto`; `y[...] = x`, unless x comes from `store`, `to_dtype`
  or `scalar`), and `casting=`;
- a dtype by name given to a call: `dtype=float32`, `np.zeros(n, "f4")`, and np.float32 anywhere, but in the files that
  carry the primitives out (NAMING), where a call of it counts alone. Own functions and Tensor.to may be given one:
  they end in `to_dtype`. Comparing dtypes is free.

In CUDA it is `store` and `round_to_half` (hardware.cuh, common.cuh), the conversions of CUDA and PTX, Tensor Cores,
sums over threads and blocks, and atomic additions. FP32 arithmetic between two of these is not listed.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
NETWORKS = """alexnet beam_search deepspeech2 detection faster_rcnn gpt inception nmt resnet scale ssd
vgg"""
NAMING = re.compile(
    r"tinymp/((backend|fast|gpu|study)/|(precision|dtypes|audit/(estimates|exponents|meta|sketch))\.py)"
)

PRODUCTS = {"dot", "vdot", "inner", "matmul", "tensordot", "einsum", "vecdot"}
SUMS = {"sum", "mean", "var", "std", "prod", "cumsum", "cumprod", "average", "nansum", "nanmean", "trace", "convolve"}
LOOPS = {"reduce", "accumulate", "reduceat"}
CARRIED = {"cast_stochastic", "gemm", "scatter_add_rows"}
DTYPES = {"float16", "float32", "float64"}
STRINGS = DTYPES | {"half", "single", "double", "f2", "f4", "f8", "<f2", "<f4", "<f8"}
MADE = {"array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "fromiter"}
WHOLE = re.compile(r"'?[<>|]?(np\.|xp\.|cupy\.)?(u?int|bool|intp|[ui]\d)\w*'?")
ROUNDED = {"store", "to_dtype", "scalar"}

CUDA = {
    r"(?<!void )\b(store|round_to_half)\(": "a store",
    r"cvt\.r\w+\.\w*f\d+|__(float|double)\w*2(half|bfloat|float)\w*|\b(half|bfloat)\w*_rn\b": "a conversion",
    r"static_cast<(T|E|half|float)>|\((T|E|half|float)\) *[\w(]": "a conversion",
    r"\bmma_\w+\(|\bw?mma\.|\bwmma::": "Tensor Cores",
    r"\bwarp_reduce<(?!Max|class)\w+>|\bInBlocks<[^;]*> \w+;|__shfl_xor": "a sum",
    r"\bcombine_(rows|lanes)\(": "a sum",
    r"\batomicAdd\(": "an atomic addition",
}
HEAD = re.compile(r"^(?:(?:struct|union) (\w+)|(?![ #/}])[^;{}]*?\b(?!__)(\w+)\([^;{}]*\{)", re.M)
MARK = re.compile(r"(?:#|//) rounds: (.+)$")


class Site(NamedTuple):
    """A line that may round: what was found there ("" where a mark stands alone), and the mark's reason or None."""

    path: str
    line: int
    function: str
    found: str
    reason: str | None
    code: str


def files(root: Path = ROOT) -> list[Path]:
    """The package, its CUDA sources, and the networks and checks outside it that promise the same."""
    found = [p for p in (root / "tinymp").rglob("*") if p.suffix in (".py", ".cu", ".cuh")]
    found += [root / "examples" / "paper" / f"{name}.py" for name in NETWORKS.split()]
    return sorted([*found, *(root / "course" / "grader").glob("*.py")])


def all_sites(root: Path = ROOT) -> list[Site]:
    """Every site below a folder like the repository's, in the order of files and lines."""
    return [s for p in files(root) for s in sites(p.read_text(encoding="utf-8"), p.relative_to(root).as_posix())]


def sites(source: str, path: str = "planted.py") -> list[Site]:
    """The sites of one file. Its path says in which language it is, and whether it may name dtypes."""
    lines = source.splitlines()
    look = _python if path.endswith(".py") else _cuda
    found, function = look(source, lines, path)
    marks: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        if mark := MARK.search(line):
            marks[number + (line[: mark.start()].strip() == "")] = mark[1]
    return [
        Site(path, n, function(n), ", ".join(sorted(found.get(n, ()))), marks.get(n), lines[n - 1].strip())
        for n in sorted(found.keys() | marks.keys())
    ]


def _cuda(source, lines, path):
    found = {}
    for number, line in enumerate(lines, 1):
        code = line.partition("//")[0]
        if why := {why for pattern, why in CUDA.items() if re.search(pattern, code)}:
            found[number] = why

    heads = [(source.count("\n", 0, m.start()) + 1, m[1] or m[2]) for m in HEAD.finditer(source)]
    return found, lambda number: next((name for line, name in reversed(heads) if line <= number), "")


def _python(source, lines, path):
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    own = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    own |= {a.asname or a.name for n in nodes if isinstance(n, ast.ImportFrom) and _of_tinymp(n) for a in n.names}
    found: dict[int, set[str]] = {}
    for node in nodes:
        for why in _reasons(node, own, NAMING.match(path) is not None):
            found.setdefault(node.lineno, set()).add(why)
    scopes = dict(_scopes(tree))
    return found, lambda number: scopes.get(number, "")


def _scopes(node, names=()):
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, (ast.FunctionDef, ast.ClassDef))
        below = (*names, child.name) if inside else names
        if inside:
            yield from ((n, ".".join(below)) for n in range(child.lineno, child.end_lineno + 1))
        yield from _scopes(child, below)


def _of_tinymp(node):
    return node.level > 0 or node.module.partition(".")[0] == "tinymp"


def _reasons(node, own, naming):
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult):
        yield "the operator @"
    elif isinstance(node, ast.ImportFrom) and not _of_tinymp(node) and node.module != "math":
        yield from (f"imports {a.name}" for a in node.names if a.name in PRODUCTS | SUMS | DTYPES)
    elif isinstance(node, ast.Attribute):
        foreign = not (isinstance(node.value, ast.Name) and node.value.id in own)
        if node.attr == "astype" or (foreign and node.attr in PRODUCTS | (set() if naming else DTYPES)):
            yield f".{node.attr}"
    elif isinstance(node, ast.Assign):
        value, target = node.value, node.targets[0]
        rounded = isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and _called(value) in ROUNDED)
        if isinstance(target, ast.Subscript) and ast.unparse(target.slice) == "..." and not rounded:
            yield "[...] ="
    elif isinstance(node, ast.Call):
        yield from _reasons_of_call(node, own, naming)


def _called(node):
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def _reasons_of_call(node, own, naming):
    base, called = node.func.value if isinstance(node.func, ast.Attribute) else None, _called(node)
    ours = getattr(node.func if base is None else base, "id", None) in own
    given = {k.arg: k.value for k in node.keywords}
    if base is None:
        if called in PRODUCTS and not ours:
            yield f"{called}()"
    elif called in SUMS | LOOPS or (called == "at" and isinstance(base, ast.Attribute)):
        if not ours and getattr(base, "id", None) != "math":
            yield f".{called}()"
    elif called in CARRIED or (called == "cast" and len(node.args) == 2):
        yield f".{called}()"
    elif called in MADE and (len(node.args) > 1 or "dtype" in given):
        dtype = given.get("dtype") or node.args[1]
        if not isinstance(node.args[0], ast.Constant) and not WHOLE.fullmatch(ast.unparse(dtype)):
            yield f".{called}() with a dtype"
    elif called == "copyto" or (called in DTYPES and naming and not isinstance(node.args[0], ast.Constant)):
        yield f".{called}()"
    if "casting" in given:
        yield "casting="
    if "out" in given and ast.unparse(given["out"]) not in map(ast.unparse, node.args):
        yield "out="
    values = [given["dtype"]] if "dtype" in given else []
    values += [] if ours or called == "to" else node.args
    for value in () if naming else values:
        if (isinstance(value, ast.Name) and value.id in DTYPES) or (
            isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value in STRINGS
        ):
            yield "a dtype by name"


def unmarked(found: list[Site]) -> list[str]:
    """Those without a mark, as "file:line: what was found: the line"."""
    return [f"{s.path}:{s.line}: {s.found}: {s.code}" for s in found if s.reason is None]


if __name__ == "__main__":
    print("\n".join(unmarked(all_sites())))
