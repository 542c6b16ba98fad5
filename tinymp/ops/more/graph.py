"""Looks at a graph without running it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...autograd import Op, Variable


def behind(root: Op | None) -> set[Op]:
    """All ops that a backward pass from this one reaches, with itself; none behind a leaf (None)."""
    found: set[Any] = set() if root is None else {root}
    waiting = list(found)
    while waiting:
        new = {edge[0] for edge in waiting.pop().edges if isinstance(edge, tuple)} - found
        found |= new
        waiting += new
    return found


def uses(root: Op) -> dict[int, tuple[Variable, int]]:
    """By their id, the leaves that a backward pass from this op reaches, and how many gradients each will get."""
    edges = [edge for op in behind(root) for edge in op.edges if isinstance(edge, Variable)]
    counts = Counter(map(id, edges))
    return {id(leaf): (leaf, counts[id(leaf)]) for leaf in edges}
