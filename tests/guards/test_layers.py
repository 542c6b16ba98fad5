"""The house is built in layers: imports point down, none run in a circle, and private names stay in their module."""

import ast
import graphlib
from pathlib import Path

import pytest

from docs import layers

ROOT = Path(layers.__file__).parent.parent

# From the bottom up; those of one line may not import each other. docs/architecture.md explains each.
LEVELS = [
    {"fast_path", "events"},
    {"backend"},
    {"dtypes"},
    {"precision"},
    {"study", "gradients"},
    {"autograd"},
    {"tensor"},
    {"arguments", "statistics"},
    {"parameter"},
    {"ops"},
    {"nn", "optim", "data", "checkpoint"},
    {"fast", "gpu", "sparse"},
    {"audit", "parallel"},
    {"lab", "torch"},
    {"course"},
    {"tinymp"},
]

# Private names that another module may use, and why.
ALLOWED = {
    "_getframe": "sys has no other way to look at the caller",
    "_asdict": "named tuples begin their methods so",
    "_replace": "named tuples begin their methods so",
    "_core": "CuPy has no other way to turn CUB off while it runs",
    "_exit": "os has no other way for a thread to end its process",
    "_fields": "named tuples begin their methods so",
}


def test_imports_point_down():
    level = {name: i for i, names in enumerate(LEVELS) for name in names}
    up = [
        f"{i.source}.py:{i.line} imports {i.target}"
        for i in layers.imports()
        if layers.part(i.source) != layers.part(i.target)
        and level[layers.part(i.source)] <= level[layers.part(i.target)]
    ]
    assert not up, "\n".join(up)
    assert level.keys() == layers.parts().keys()


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: set() for name in layers.files()}
    for one in layers.imports():
        graph[one.source].add(one.target)
    graphlib.TopologicalSorter(graph).prepare()  # CycleError, with the circle


def private(name):
    return name.startswith("_") and not name.startswith("__")


def foreign(source):
    """The private names of other modules that a module uses, as (line, text)."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    own = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    own |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    own |= {
        s.value
        for n in nodes
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__slots__" for t in n.targets)
        for s in ast.walk(n.value)
        if isinstance(s, ast.Constant)
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            names = [*(node.module or "").split("."), *[a.name for a in node.names]]
            yield from ((node.lineno, name) for name in names if private(name))
        elif isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in own:
            inherited = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not inherited and node.attr not in ALLOWED:
                yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("name", layers.files())
def test_private_names_stay_in_their_module(name):
    found = [f"{name}.py:{line}: {text}" for line, text in foreign(layers.files()[name].read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_the_picture_shows_the_imports_of_today():
    assert layers.PICTURE.read_text(encoding="utf-8") == layers.draw(), "run: python -m docs.layers"
