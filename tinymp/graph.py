"""Looking at the graph that autograd.py records, without running it."""

from __future__ import annotations

from collections import Counter

from .autograd import Op, Variable


def uses(root: Op) -> dict[int, tuple[Variable, int]]:
    """By their id, the leaves that a backward pass from this op reaches, and how many gradients each will get."""
    leaves: dict[int, Variable] = {}
    counts: Counter[int] = Counter()
    seen, waiting = {root}, [root]
    while waiting:
        for edge in waiting.pop().edges:
            if isinstance(edge, Variable):
                leaves[id(edge)] = edge
                counts[id(edge)] += 1
            elif edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                waiting.append(edge[0])
    return {key: (leaf, counts[key]) for key, leaf in leaves.items()}
