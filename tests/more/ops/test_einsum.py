"""einsum: products, sums and diagonals, each product rounded once."""

import numpy as np
import pytest

from oracle import check, randn
from tinymp import ops


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("ijk,jil->kl", [(3, 4, 5), (4, 3, 2)]),
        ("ab,cd->acbd", [(2, 3), (4, 5)]),
        ("ba,b", [(3, 2), (3,)]),
        ("...ij,...jk->...ik", [(2, 7, 3, 4), (2, 7, 4, 5)]),
        ("...i->...", [(2, 3, 4)]),
        ("ii", [(3, 3)]),
        ("iij,jk->ik", [(3, 3, 2), (2, 4)]),
        ("ij,jk->ik", [(2, 4), (1, 3)]),  # axes of length 1 broadcast
        ("...i,ij->...j", [(2, 1, 4), (4, 3)]),
        ("i,i,i->i", [(1,), (3,), (1,)]),
    ],
)
def test_einsum(equation, shapes):
    def oracle(*x):
        return np.einsum(equation, *x)

    inputs = [randn(*s, seed=i) for i, s in enumerate(shapes)]
    longest = {"length": 16, "roundings": 2, "inherited": 2, "magnitude": lambda *x: oracle(*x).max(initial=0)}
    check(lambda *x: ops.einsum(equation, *x), oracle, *inputs, **longest)
