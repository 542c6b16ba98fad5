"""Who asks for a rounding, and who carries it out: the two lists of docs/precision.md.

    python -m tests.rounding    prints the lines of CUDA that may round and have no mark

**Who asks**: the calls of the primitives (ASKS) in ops, layers and optimizers. That nothing else there changes
precision is held at run time (tests/guards/test_run_time.py).

**Who carries out**: backends, fast paths, CUDA kernels and studies. A line of theirs that rounds has a mark with the
reason, `# rounds: ...` (`// rounds: ...` in CUDA), at its end or alone on the line above; one that only looks so may
say `# rounds: never, ...`. No run on a CPU sees the CUDA kernels, so that their marks are held by patterns: `store` and
`round_to_half` (hardware.cuh, common.cuh), the conversions of CUDA and PTX, Tensor Cores, sums over threads and blocks,
and atomic additions must have one. FP32 arithmetic between two of these is not listed.
"""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
ASKS = ("store", "gemm", "reduce", "add_to", "scatter_add")
CARRIES = ("tinymp/precision.py", "tinymp/backend/", "tinymp/fast/", "tinymp/gpu/", "tinymp/study/", "tinymp/audit/")

CUDA = {
    r"(?<!void )\b(store|round_to_half)\(": "a store",
    r"cvt\.r\w+\.\w*f\d+|__(float|double)\w*2(half|bfloat|float)\w*|\b(half|bfloat)\w*_rn\b": "a conversion",
    r"static_cast<(T|E|half|float)>|\((T|E|half|float)\) *[\w(]": "a conversion",
    r"\bmma_\w+\(|\bw?mma\.|\bwmma::": "Tensor Cores",
    r"\bwarp_reduce<(?!Max|class)\w+>|\bInBlocks<[^;]*> \w+;|__shfl_xor": "a sum",
    r"\bcombine_(rows|lanes)\(": "a sum",
    r"\batomicAdd\(": "an atomic addition",
}
HEAD = re.compile(r"^(?:(?:struct|union) (\w+)|(?![ #/}\n])[^;{}]*?\b(?!__)(\w+)\([^;{}]*\{)", re.M)
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
    """The package and its CUDA sources."""
    return sorted(p for p in (root / "tinymp").rglob("*") if p.suffix in (".py", ".cu", ".cuh"))


def all_sites(root: Path = ROOT) -> list[Site]:
    """Every site below a folder like the repository's, in the order of files and lines."""
    return [s for p in files(root) for s in sites(p.read_text(encoding="utf-8"), p.relative_to(root).as_posix())]


def sites(source: str, path: str = "planted.py") -> list[Site]:
    """The sites of one file, whose path says in which language it is."""
    lines, found, heads = source.splitlines(), dict[int, str](), list[tuple[int, str]]()
    if path.endswith(".py"):
        heads = sorted(_scopes(ast.parse(source)).items())
    else:
        heads = [(source.count("\n", 0, m.start()) + 1, m[1] or m[2]) for m in HEAD.finditer(source)]
        for number, line in enumerate(lines, 1):
            code = line.partition("//")[0]
            if why := {why for pattern, why in CUDA.items() if re.search(pattern, code)}:
                found[number] = ", ".join(sorted(why))
    marks = {n + (line[: m.start()].strip() == ""): m[1] for n, line in enumerate(lines, 1) if (m := MARK.search(line))}
    return [
        Site(path, n, next((name for line, name in reversed(heads) if line <= n), ""), found.get(n, ""), marks.get(n),
             lines[n - 1].strip())
        for n in sorted(found.keys() | marks.keys())
    ]  # fmt: skip


def _scopes(node: ast.AST, names: tuple[str, ...] = ()) -> dict[int, str]:
    """The line at which each function begins, or the code around it goes on -> the function's name."""
    starts = {}
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, (ast.FunctionDef, ast.ClassDef))
        if inside:
            starts[child.lineno] = ".".join((*names, child.name))
            starts[child.end_lineno + 1] = ".".join(names)
        starts |= _scopes(child, (*names, child.name) if inside else names)
    return starts


def asking() -> dict[str, dict[str, Counter]]:
    """File -> function -> how often it calls each of ASKS, but for what carries them out."""
    found: dict[str, dict[str, Counter]] = {}
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py" and not name.startswith(CARRIES):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            heads = sorted(_scopes(tree).items())
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
            for node in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
                if (called := getattr(node.func, "id", "")) in ASKS:
                    function = next((function for line, function in reversed(heads) if line <= node.lineno), "")
                    found.setdefault(name, {}).setdefault(function, Counter())[called] += 1
    return found


def unmarked(found: list[Site]) -> list[str]:
    """Sites without a mark, as "file:line: finding: source line"."""
    return [f"{s.path}:{s.line}: {s.found}: {s.code}" for s in found if s.reason is None]


if __name__ == "__main__":
    print("\n".join(unmarked(all_sites())))
