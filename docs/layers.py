"""The layers of the package, read from its imports: `python -m docs.layers` draws docs/architecture.svg.

A part is a module of tinymp/ or one of its folders. A part stands one layer above the highest part that it imports. An
arrow is drawn unless a longer path of arrows implies it. tests/guards/test_layers.py checks the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from tinymp.checkpoint.writing import write

PACKAGE = Path(__file__).parent.parent / "tinymp"
PICTURE = Path(__file__).parent / "architecture.svg"
SAYS = {
    "backend": "NumPy, CuPy, cuBLAS, kernels",
    "events": "who listens, what runs",
    "precision": "primitives, kinds, policies",
    "sparse": "rows of a gradient",
    "autograd": "Op, the graph, backward",
    "tensor": "what users hold",
    "arguments": "checks",
    "dtypes": "what each can hold",
    "gradients": "sums of gradients",
    "fast_path": "finds faster ways",
    "fast": "faster ways on a CPU",
    "gpu": "kernels, captured steps",
    "study": "other accumulators",
    "torch": "for programs of PyTorch",
    "statistics": "what a skipped step undoes",
    "parameter": "master and copy",
    "ops": "one family per file",
    "nn": "modules and layers",
    "optim": "rules, scalers, clipping",
    "data": "datasets, a loader",
    "parallel": "processes, by MPI",
    "checkpoint": "a run on disk",
    "audit": "what the events tell",
    "course": "course/grader",
    "lab": "what runs programs",
    "tinymp": "import tinymp as mp",
}


class Import(NamedTuple):
    """`line` of file `source` imports `target`: paths below the package, without ".py" ("ops/softmax")."""

    source: str
    line: int
    target: str


def files() -> dict[str, Path]:
    """The modules by their path ("ops/softmax"); a folder's __init__ is "ops", that of the package "tinymp"."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        found[name.removesuffix("/__init__").replace("__init__", "tinymp")] = path
    return found


def imports() -> Iterator[Import]:
    """Every import of one module by another, also within functions; not those that only a type checker sees."""
    known = files()
    for name, path in known.items():
        inside = path.name == "__init__.py"
        package = [] if name == "tinymp" else name.split("/") if inside else name.split("/")[:-1]
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        blocks = [n for n in nodes if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
        for_types = {id(inner) for block in blocks for inner in ast.walk(block)}
        for node in nodes:
            if not isinstance(node, ast.ImportFrom) or not node.level or id(node) in for_types:
                continue
            base = [*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                target = "/".join([*base, alias.name])
                target = target if target in known else "/".join(base) or "tinymp"
                if target != name:
                    yield Import(name, node.lineno, target)


def part(name: str) -> str:
    """The part to which a module belongs."""
    return "tinymp" if name in ("tinymp", "__main__") else name.split("/")[0]


def parts() -> dict[str, set[str]]:
    """Each part, and the parts that it imports."""
    found: dict[str, set[str]] = {part(name): set() for name in files()}
    for one in imports():
        if part(one.source) != part(one.target):
            found[part(one.source)].add(part(one.target))
    return found


def levels(graph: dict[str, set[str]]) -> list[list[str]]:
    """The parts of a graph without circles, the lowest level first."""
    height: dict[str, int] = {}

    def of(node: str) -> int:
        if node not in height:
            height[node] = 1 + max((of(target) for target in graph[node]), default=-1)
        return height[node]

    top = max(of(node) for node in graph)
    return [sorted(node for node in graph if of(node) == level) for level in range(top + 1)]


def arrows(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that no way through other parts implies."""

    def below(node: str) -> set[str]:
        return graph[node].union(*(below(target) for target in graph[node]))

    pairs = [(node, target) for node in sorted(graph) for target in sorted(graph[node])]
    return [(node, target) for node, target in pairs if not any(target in below(other) for other in graph[node])]


def draw() -> str:
    """The picture, as SVG. Small parts that import the backend at most are named below it."""
    graph = parts()
    small = sorted(name for name in graph if graph[name] <= {"backend"} and name not in ("backend", "events"))
    graph = {name: graph[name] - set(small) for name in graph if name not in small}
    stack = levels(graph)
    width, wide, high, step = 960, 178, 44, 84
    place: dict[str, tuple[float, float]] = {}
    for level, names in reversed(list(enumerate(stack))):

        def above(name: str) -> float:
            return mean([place[other][0] for other in place if name in graph[other]] or [0])

        for i, name in enumerate(sorted(names, key=above)):
            place[name] = ((i + 0.5) * width / len(names), (len(stack) - 1 - level) * step + 40)
    bottom = len(stack) * step
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 60}" '
        'font-family="sans-serif" font-size="12" text-anchor="middle">',
        "<style>path{fill:none;stroke:#8a94a6;stroke-width:1.2}rect{fill:#eef3fb;stroke:#3b6fb5}"
        "text{fill:#1b2a41}.says{fill:#566;font-size:10px}</style>",
        '<rect width="100%" height="100%" style="fill:#fff;stroke:none"/>',
    ]
    for source, target in arrows(graph):
        (x1, y1), (x2, y2) = place[source], place[target]
        y1, y2 = y1 + high / 2, y2 - high / 2
        bend = (y2 - y1) / 2
        lines.append(
            f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"/>'
        )
    for name, (x, y) in place.items():
        title = f"{name}/" if (PACKAGE / name).is_dir() else "tinymp" if name == "tinymp" else f"{name}.py"
        lines += [
            f'<rect x="{x - wide / 2:.0f}" y="{y - high / 2:.0f}" width="{wide}" height="{high}" rx="6"/>',
            f'<text x="{x:.0f}" y="{y - 3:.0f}" font-weight="bold">{escape(title)}</text>',
            f'<text x="{x:.0f}" y="{y + 13:.0f}" class="says">{escape(SAYS[name])}</text>',
        ]
    for i, name in enumerate(small):
        x, y = (i % 4 + 0.5) * width / 4, bottom + 20 * (1 + i // 4)
        lines.append(f'<text x="{x:.0f}" y="{y}" class="says">{escape(f"{name}.py: {SAYS[name]}")}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    write(PICTURE, draw())
    print(f"wrote {PICTURE.name}")
