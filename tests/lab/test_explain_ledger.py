"""The roundings and precisions that `explain` gives, compared with the ledger of runs."""

import inspect
from functools import cache

import numpy as np
import pytest

import tinymp as mp
from calls import CALLS, LAYERS
from tinymp import nn, ops
from tinymp.autograd import Op
from tinymp.gradients import joined
from tinymp.lab import topics
from tinymp.lab.explain import names, ops_of
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
    cosine_embedding_loss cosine_similarity     count_nonzero cumprod diag diff dot dropout1d dropout2d equal
    gaussian_nll_loss hinge_embedding_loss hstack     isclose lerp logical_xor margin_ranking_loss masked_select
    meshgrid movedim multinomial mv narrow nonzero normal     one_hot outer pairwise_distance repeat_interleave roll
    searchsorted soft_margin_loss swapaxes take_along_dim tile     triplet_margin_loss unflatten unique vstack
"""


def test_every_op_is_run():
    assert set(CALLS) == set(names()["op"]) - {*MAKES, "setitem"} - set(MADE_OF_OTHERS.split())


# What each place rounds in the calls of CALLS, in the order of the claim; backward, of the gradients nothing.
PLACES = {
    "lstm_layer": ([10 * 16, 10 * 4, 10 * 4, 10 * 16], [10 * 16]),
    "gru_layer": ([10 * 12, 10 * 4, 10 * 4, 10 * 12], [2 * 10 * 12]),
    "scaled_dot_product_attention": ([2 * 9, 2 * 12], [2 * 9, 2 * 9]),
    "max_pool2d": ([2 * 3 * 4], []),
}
# Where a sum of several gradients is rounded once: before an op's backward reads it, or at a leaf
SOURCES = {"gradients": inspect.getsourcelines(joined), "autograd": inspect.getsourcelines(Op._compute)}
JOINED = {f"{name}.py:{start + i}" for name, (lines, start) in SOURCES.items() for i in range(len(lines))}


@pytest.mark.parametrize("name", [*CALLS, *LAYERS])
def test_it_rounds_where_and_as_often_as_is_said(name):
    ledger, ran, y = run(name)
    found = ops_of(getattr(ops, name, None) or getattr(nn, name))
    between = {"add", "sub", "mul"} if "cell" in name.lower() else set()  # the gates of a cell are ops of their own
    said = {op.name for op in found} | between
    converted = sum(row.rounded for row in ledger.filter(op="cast", phase="forward"))
    assert not converted or converted == y.numel()
    for row in ledger:
        own = row.rounded - sum(r.elements for line, r in row.roundings.items() if line in JOINED)
        if not own or row.op in ("cast", "sum of gradients"):
            continue
        op = ran[row.op]
        assert op in found or row.op in said, (row.op, said)
        if op.name in topics.ROUNDED:
            continue  # below
        kept = {"forward": op.kind in (MOVEMENT, LOSS), "backward": op.kind is MOVEMENT and not op.gradient}
        assert own <= (0 if kept[row.phase] else row.elements), row


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("max_pool1d", "adaptive_max_pool2d")])
def test_places_that_are_named_are_all_that_there_are(name):
    ledger, ran, _ = run(name)
    for row in ledger.filter(lambda row: row.op in ran and ran[row.op].name in topics.ROUNDED):
        claim, sizes = topics.ROUNDED[ran[row.op].name], PLACES.get(name, ([], []))
        assert [len(part) for part in claim] == [len(part) for part in sizes]
        if row.phase == "forward":
            assert row.rounded == sum(sizes[0])
            if len(row.roundings) == len(sizes[0]) > 1:  # a line may have several
                assert sorted(r.elements for r in row.roundings.values()) == sorted(sizes[0])
        elif sizes[1]:
            assert sum(sizes[1]) < row.rounded <= sum(sizes[1]) + row.elements
            assert {*sizes[1]} <= {r.elements for r in row.roundings.values()}
        else:
            assert row.rounded <= row.elements * bool(sizes[0])
