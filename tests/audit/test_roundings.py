"""Where ops round, and how often: what their kinds say, and a few that round in further places."""

import inspect
from functools import cache

import numpy as np
import pytest

import tinymp as mp
from calls import CALLS, LAYERS
from tinymp.autograd import Op
from tinymp.gradients import joined
from tinymp.lab.explain import names
from tinymp.precision import LOSS, MOVEMENT
from watching import watch

pytestmark = pytest.mark.cpu

MAKES = (  # new tensors
    *("arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones"),
    *("ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "zeros", "zeros_like"),
)


@cache
def run(name):
    """The ledger, the Ops that ran by their names, and the results, of a call with its backward."""
    ran = {}
    with mp.audit() as a, watch(lambda phase, op, inputs, outputs: ran.setdefault(op.name, type(op))):
        y = (CALLS.get(name) or LAYERS[name])()
        for part in y if isinstance(y, (list, tuple)) else [y]:
            part = part[0] if isinstance(part, tuple) else part
            if part.requires_grad:
                part.backward(None if part.ndim == 0 else np.ones(part.shape, part.dtype))
                break
    return a.ledger, ran, y


# Functions that are made of other ops, in FP32 where these are several steps; each of those is run
MADE_OF_OTHERS = """
        addcdiv addcmul addmm allclose bernoulli bincount broadcast_tensors broadcast_to bucketize cdist
        gumbel_softmax index_fill scatter_add
    cosine_embedding_loss cosine_similarity     count_nonzero cumprod diag diff dot dropout1d dropout2d equal
    gaussian_nll_loss hinge_embedding_loss hstack     isclose lerp logical_xor margin_ranking_loss masked_select
    meshgrid movedim multinomial mv narrow nonzero normal     one_hot outer pairwise_distance repeat_interleave roll
    searchsorted soft_margin_loss swapaxes take_along_dim tile     triplet_margin_loss unflatten unique vstack
"""


def test_every_op_is_run():
    assert set(CALLS) == set(names()["op"]) - {*MAKES, "setitem"} - set(MADE_OF_OTHERS.split())


# Further roundings than those of each result forward and each gradient backward, at most once: the elements of each
# place in the calls of CALLS, forward and backward; among the latter the gradients are not named.
PLACES = {
    "lstm_layer": ([10 * 16, 10 * 4, 10 * 4, 10 * 16], [10 * 16]),
    "gru_layer": ([10 * 12, 10 * 4, 10 * 4, 10 * 12], [2 * 10 * 12]),
    "scaled_dot_product_attention": ([2 * 9, 2 * 12], [2 * 9, 2 * 9]),
    "max_pool2d": ([2 * 3 * 4], []),  # the largest of each window: exactly
}
SEVERAL = {"lstm", "gru", "scaled_dot_product_attention", "max_pool2d"}  # the names of their Ops
NEVER = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not"}
NEVER |= {"argmax", "argsort", "all", "relu"}
# Where a sum of several gradients is rounded once: before an op's backward reads it, or at a leaf
SOURCES = {"gradients": inspect.getsourcelines(joined), "autograd": inspect.getsourcelines(Op._compute)}
JOINED = {f"{name}.py:{start + i}" for name, (lines, start) in SOURCES.items() for i in range(len(lines))}


@pytest.mark.parametrize("name", [*CALLS, *LAYERS])
def test_it_rounds_where_and_as_often_as_is_said(name):
    ledger, ran, y = run(name)
    converted = sum(row.rounded for row in ledger.filter(op="cast", phase="forward"))
    assert not converted or converted == y.numel()
    for row in ledger:
        own = row.rounded - sum(r.elements for line, r in row.roundings.items() if line in JOINED)
        if not own or row.op in ("cast", "sum of gradients"):
            continue
        op = ran[row.op]
        if op.name in SEVERAL:
            continue  # below
        kept = {"forward": op.kind in (MOVEMENT, LOSS), "backward": op.kind is MOVEMENT and not op.gradient}
        assert own <= (0 if kept[row.phase] or op.name in NEVER else row.elements), row


@pytest.mark.parametrize("name", PLACES)
def test_places_that_are_named_are_all_that_there_are(name):
    ledger, ran, _ = run(name)
    (forward, backward), seen = PLACES[name], [row for row in ledger if row.op in ran and ran[row.op].name in SEVERAL]
    assert {row.phase for row in seen} == {"forward", "backward"}
    for row in seen:
        if row.phase == "forward":
            assert row.rounded == sum(forward)
            if len(row.roundings) == len(forward) > 1:  # a line may have several
                assert sorted(r.elements for r in row.roundings.values()) == sorted(forward)
        elif backward:
            assert sum(backward) < row.rounded <= sum(backward) + row.elements
            assert {*backward} <= {r.elements for r in row.roundings.values()}
        else:
            assert row.rounded <= row.elements
