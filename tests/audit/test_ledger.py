"""The ledger counts exactly: planted underflows, subnormals and overflows are found, no more and no fewer."""

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.audit.ledger import COLUMNS, Rounding, Rows, jsonable

TINY, SMALL, LARGE = 2.0**-26, 2.0**-20, 70000.0  # become 0, subnormal, infinite


def planted(zero=0, subnormal=0, infinite=0, exact=5, seed=0):
    """FP32 values of which so many suffer that when they become FP16, in random order and with random signs."""
    values = [TINY] * zero + [SMALL] * subnormal + [LARGE] * infinite + [1.0] * exact + [0.0, -0.0]
    random = np.random.default_rng(seed)
    return random.permutation(np.float32(values)) * random.choice([-1, 1], len(values)).astype("float32")


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_rounding(zero, subnormal, infinite, odd, transposed):
    x = np.concatenate([planted(zero, subnormal, infinite), [np.inf] * odd, [np.nan] * odd]).astype("float32")
    x = np.stack([x, x]).T if transposed else np.stack([x, x])
    with np.errstate(over="ignore"):
        y = x.astype("float16")
    r = Rounding()
    r.add(x, y)
    assert (r.elements, r.zero, r.subnormal, r.infinite) == (x.size, 2 * zero, 2 * subnormal, 2 * infinite)
    assert r.largest == (LARGE if infinite else 1.0)


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (2.0**-25, (1, 0, 0)),  # half of the smallest subnormal: to even, which is 0
        (np.nextafter(np.float32(2.0**-25), np.float32(1)), (0, 1, 0)),
        (np.nextafter(np.float32(2.0**-14), np.float32(0)), (0, 0, 0)),  # rounds up to the smallest normal number
        (2.0**-14 - 2.0**-25, (0, 0, 0)),  # a tie, to even
        (2.0**-14 - 2.0**-24, (0, 1, 0)),
        (65519.99609375, (0, 0, 0)),
        (65520.0, (0, 0, 1)),
        (np.inf, (0, 0, 0)),
        (np.nan, (0, 0, 0)),
    ],
)
def test_at_the_limits(x, found):
    with mp.audit() as a:
        mp.tensor(np.float32([x])).half()
    (row,) = a.ledger
    assert (row.zero, row.subnormal, row.infinite) == found


def train(steps=3):
    mp.manual_seed(0)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
    optimizer, scaler = optim.Adam(model.parameters()), optim.StaticLossScaler(8.0)
    x = mp.tensor(np.random.default_rng(0).standard_normal((5, 4)).astype("float16"))
    for _ in range(steps):
        scaler.scale(ops.cross_entropy(model(x), mp.tensor([0, 1, 2, 0, 1]))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_a_row_per_op_and_call_site():
    with mp.audit() as a:
        train()
    rows = {(r.module, r.op, r.phase): r for r in a.ledger}
    assert len(rows) == len(a.ledger)
    linear = rows["model.0", "linear", "forward"]
    assert (linear.kind, linear.source) == ("DOT", "MPT 3.3, NVG 2.2")
    dtypes = linear.read, linear.computed, linear.accumulated, linear.written
    assert dtypes == ("float16", "float32", "float32", "float16")
    assert (linear.calls, linear.elements, linear.rounded) == (3, 3 * 5 * 8, 3 * 5 * 8)
    norm = rows["model.1", "batch_norm", "forward"]
    assert (norm.kind, norm.read, norm.accumulated) == ("REDUCTION", "float16, float32", "float32")
    assert rows["model.2", "relu", "forward"].rounded == 0
    loss = rows["train()", "cross_entropy", "forward"]
    assert (loss.kind, loss.written, loss.elements) == ("LOSS", "float32", 3)
    back = rows["model.3", "linear", "backward"]
    assert back.rounded == 3 * (5 * 8 + 8 * 3 + 3)  # dx, dW, db
    assert len(back.roundings) >= 1 and sum(r.elements for r in back.roundings.values()) == back.rounded
    update = rows["model.0.weight", "adam", "update"]
    assert (update.kind, update.written) == ("UPDATE", "float32 master, float16 copy")
    assert (update.calls, update.rounded) == (3, 3 * 32)
    assert rows["model.1.weight", "adam", "update"].written == "float32"
    assert rows["model.1.weight", "adam", "update"].rounded == 0


def test_sort_filter_json_csv_and_text():
    with mp.audit() as a:
        train()
        mp.tensor(np.float32([np.inf])).half()
    ledger = a.ledger
    counts = [row.rounded for row in ledger.sorted_by("rounded")]
    assert counts == sorted(counts, reverse=True) and len(set(counts)) > 3
    names = [(row.op, row.calls) for row in ledger.sorted_by("op", "calls", descending=False)]
    assert names == sorted(names)
    assert len(ledger.filter(op="linear", phase="backward")) == 2
    found = ledger.filter(lambda row: row.kind == "UPDATE", module="model.0")
    assert {row.module for row in found} == {"model.0.weight", "model.0.bias"}
    assert isinstance(found.sorted_by("op")[:1], Rows)
    with pytest.raises(AttributeError, match="no attribute 'opp'"):
        ledger.filter(opp="linear")
    loaded = json.loads(json.dumps(a.as_dict()["ledger"], allow_nan=False))
    assert [row["op"] for row in loaded] == [row.op for row in ledger]
    assert (
        loaded[-1]["largest"] == 0
        and jsonable(np.inf) == "inf"
        and loaded[0]["roundings"].keys() == ledger[0].roundings.keys()
    )
    lines = list(csv.DictReader(io.StringIO(ledger.to_csv())))
    assert [int(line["rounded"]) for line in lines] == [row.rounded for row in ledger] and tuple(lines[0]) == COLUMNS
    text = str(ledger).splitlines()
    assert len(text) == len(ledger) + 2 and text[0].split()[:3] == ["module", "op", "phase"]


def test_a_row_per_policy():
    model = nn.Linear(4, 2)
    with mp.audit() as a:
        for policy in (mp.FP32, mp.MIXED, mp.FP32):
            with mp.use(policy):
                policy.cast(model)(policy.cast(mp.tensor(np.ones((3, 4), "float32"))))
    rows = a.ledger.filter(op="linear")
    assert [(row.policy, row.calls, row.read) for row in rows] == [("FP32", 2, "float32"), ("MIXED", 1, "float16")]
    assert "policy" in str(rows).splitlines()[0] and "policy" not in str(rows.filter(policy="MIXED")).splitlines()[0]
