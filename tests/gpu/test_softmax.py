"""Softmax and log-softmax along rows."""

import numpy as np
import pytest

from gpu.both_ways import check_both_ways
from oracle import randn
from tinymp import ops

pytestmark = pytest.mark.usefixtures("gpu")
INF, NAN = np.inf, np.nan
ROWS = [(7,), (1, 1), (3, 5), (33, 9), (2, 3, 64), (2, 255), (2, 1025), (1, 8200)]


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax])
def test_rows(op, shape):
    n, kernels = shape[-1], {f"{op.__name__}_{phase}" for phase in ("forward", "backward")}
    sizes = {"length": 30 + n, "grad_length": 60 + 4 * n, "inherited": 8}
    sizes["magnitude"] = 12 if op is ops.log_softmax else None
    check_both_ways(lambda x: op(x, -1), 3 * randn(*shape), kernels=kernels, **sizes)


@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax])
def test_other_axes_views_and_nothing(op):
    """Where rows are no runs of memory the definition works on CuPy's arrays; views are copied."""
    sizes = {"length": 60, "grad_length": 200, "inherited": 8, "magnitude": 12}
    for dim, view in ((0, lambda x: x), (-1, lambda x: x[:, 1:]), (-1, lambda x: x.T)):
        check_both_ways(lambda x, dim=dim, view=view: op(view(x), dim), randn(5, 18), mixed=False, **sizes)
    check_both_ways(lambda x: op(x, 0), np.array(2.0), mixed=False, **sizes)
    check_both_ways(lambda x: op(x, 1), randn(0, 3), mixed=False)


@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax])
def test_infinities_and_nan(op):
    rows = [[6, 0, -6], [-INF, 0, 0], [-INF, -INF, -INF], [INF, 0, 0], [-INF, INF, 0], [0, NAN, -INF]]
    x = np.array(rows).repeat([1, 40, 1], axis=1)
    check_both_ways(lambda x: op(x, -1), x, length=60, grad_length=200, inherited=8, magnitude=12)
