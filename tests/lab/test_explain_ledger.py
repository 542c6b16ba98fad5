"""What `explain` says of roundings and precisions, held against the ledger of runs."""

import doctest
import inspect
import io
import re
from contextlib import redirect_stdout
from functools import cache

import numpy as np
import pytest

import tinymp as mp
from calls import CALLS, LAYERS, half
from tinymp import nn, ops, optim
from tinymp.autograd import Op, joined
from tinymp.fast.cuda import may_fuse
from tinymp.lab import topics
from tinymp.lab.explain import explain, names, ops_of
from tinymp.precision import LOSS, MOVEMENT
from watching import watch

pytestmark = pytest.mark.cpu

MAKES = (  # new tensors
    *("arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "log_uniform_sample", "ones"),
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


def test_every_op_is_run():
    assert set(CALLS) == set(names()["op"]) - {*MAKES, "setitem"}


# What each place rounds in the calls of CALLS, in the order of the claim; backward, of the gradients nothing.
PLACES = {
    "lstm_layer": ([10 * 16, 10 * 4, 10 * 4, 10 * 16], [10 * 16]),
    "gru_layer": ([10 * 12, 10 * 4, 10 * 4, 10 * 12], [10 * 12, 10 * 4]),
    "scaled_dot_product_attention": ([2 * 9, 2 * 12], [2 * 9, 2 * 9]),
    "max_pool2d": ([2 * 3 * 4], []),
}
START = inspect.getsourcelines(joined)[1]
JOINED = {f"autograd.py:{START + i}" for i in range(len(inspect.getsourcelines(joined)[0]))}


@pytest.mark.parametrize("name", [*CALLS, *LAYERS])
def test_it_rounds_where_and_as_often_as_is_said(name):
    ledger, ran, y = run(name)
    found, e = ops_of(getattr(ops, name, None) or getattr(nn, name)), explain(name)
    said = {op.name for op in found} | set(re.findall(r"\w+", e.note[0]))
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
            if len(row.roundings) > 1:
                assert sorted(r.elements for r in row.roundings.values()) == sorted(sizes[0])
        elif sizes[1]:
            assert sum(sizes[1]) < row.rounded <= sum(sizes[1]) + row.elements
            assert {*sizes[1]} <= {r.elements for r in row.roundings.values()}
        else:
            assert row.rounded <= row.elements * bool(sizes[0])


def test_a_projection_is_one_place_more():
    counts = []
    for options in ({}, {"proj_size": 2}):
        with mp.audit() as a:
            mp.MIXED.cast(nn.LSTM(3, 4, **options))(half(5, 2, 3))[0].backward(
                np.ones((5, 2, 2 if options else 4), "float16")
            )
        counts.append([len(row.roundings) for row in a.ledger.filter(op="lstm")])
    assert explain("LSTM").note == explain("lstm_layer").note and "one place more" in explain("LSTM").note[0]
    (forward, backward), (projected, back) = counts
    assert projected == forward + 1
    assert back == backward + 2  # and the gradient of W_hr


def test_the_claims_about_places_are_of_ops_that_there_are():
    def classes(base=Op):
        for cls in base.__subclasses__():
            yield cls
            yield from classes(cls)

    assert set(topics.ROUNDED) <= {cls.name for cls in classes() if hasattr(cls, "name")}
    assert {name.removesuffix("_layer") for name in PLACES} == {
        n for n, claim in topics.ROUNDED.items() if claim.forward
    }


@pytest.mark.parametrize("name", CALLS)
def test_it_reads_computes_sums_and_writes_as_is_said(name):
    ledger, ran, _ = run(name)
    e = explain(name)
    for row in ledger:
        assert row.computed in ("float32", "-")
        assert set(row.accumulated.split(", ")) <= {"float32", "-", "bool"}, row  # a number of hits
    for row in ledger.filter(phase="forward"):
        if row.op == "cast" or ran[row.op] is not (ops_of(getattr(ops, name)) or [None])[0]:
            continue
        kind = e.kind
        assert row.kind == kind.name
        assert row.computed == ("float32" if "FP32" in kind.computes or kind.name == "DOT" else "-")
        assert row.accumulated == {"FP32": "float32", "-": "-"}[kind.accumulates] or row.accumulated == "-"
        assert (row.accumulated == "float32") >= (kind.name == "DOT")
        assert row.written in ("float32" if "FP32" in kind.writes.split(";")[0] else row.read, "float16", "-")


ONCE = [name for name in CALLS if re.search(r"(rounded|stored) once|sum is rounded once", explain(name).formula)]


def test_docstrings_that_count_roundings():
    assert {"softmax", "log_softmax", "prod", "cumsum", "embedding", "embedding_bag"} <= set(ONCE)
    for name in ONCE:
        ledger, _, y = run(name)
        if "stored once" in explain(name).formula:  # the gradient of a table
            (row,) = ledger.filter(op="embedding", phase="backward")
            assert row.rounded == row.elements
        else:
            assert sum(row.rounded for row in ledger.filter(phase="forward")) == y.numel(), name


# ------------------------------------------------------------------- the sentences of topics and notes, one by one

NAMES_PRECISION = re.compile(r"FP16|FP32|FP64|TF32|BF16|FP8|\bonce\b|\bround|twice")


def sentences(text):
    return [s for s in re.split(r"(?<=\.) (?=[A-Z0-9])", text) if NAMES_PRECISION.search(s)]


@cache
def training():
    """An audited training that has something of every kind."""
    table, lstm = nn.Embedding(5, 8), nn.LSTM(8, 8)
    head = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(), nn.Softmax(1))
    model = mp.MIXED.cast(nn.ModuleList([table, lstm, head]))
    sgd, adam = optim.SGD([*table.parameters(), *lstm.parameters()], 0.1, 0.9), optim.Adam(head.parameters())
    scaler = optim.StaticLossScaler(2.0**6)
    with mp.audit(shadow=True) as a:
        for _ in range(2):
            y, _ = lstm(table(mp.tensor(np.zeros((3, 4), int))))
            loss = ops.cross_entropy(head(y.reshape(-1, 8)), mp.tensor(np.arange(12) % 8))
            scaler.scale(loss).backward()
            scaler.unscale_(sgd)
            clipped = [p.grad.dtype for p in table.parameters()], optim.clip_grad_norm_(table.parameters(), 1e-3)
            for optimizer in (sgd, adam):
                scaler.step(optimizer)
            scaler.update()
            for optimizer in (sgd, adam):
                optimizer.zero_grad()
    return a, model, (sgd, adam), clipped


@cache
def example(name, policy=mp.MIXED):
    """The ledger of a topic's or note's example."""
    text = topics.TOPICS[name].example if name in topics.TOPICS else topics.NOTES[name][1]
    names = {"mp": mp, "np": np, "ops": ops, "nn": nn, "optim": optim}
    with mp.audit() as a, mp.use(policy), redirect_stdout(io.StringIO()):
        for one in doctest.DocTestParser().get_examples(text):
            exec(one.source, names)
    return a.ledger


def rows(**columns):
    """Rows of the training; there are some."""
    found = training()[0].ledger.filter(**columns)
    assert found, columns
    return found


def holds(column, *values, of):
    return all(getattr(row, column) in values for row in of) and len(of) > 0


def each_once(**columns):
    """Whether no result is rounded more than once, but where `explain` names the places."""
    return all(r.rounded <= r.elements for r in rows(phase="forward", **columns) if r.op not in topics.ROUNDED)


def sums_in(dtype, name, op):
    """Whether this op has an accumulator of this precision in the example."""
    return any(dtype in row.accumulated for row in example(name).filter(op=op))


def nearest(x):
    return np.float32(mp.tensor(x).half().item())


def bf16(x):
    bits = np.float32(x).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)


def several():
    """The dtypes of a gradient after one backward call and after two."""
    w, dtypes = mp.MIXED.cast(nn.Parameter([1.0])), []
    with mp.audit() as a:
        for _ in range(2):
            ops.sum(ops.mul(w, w)).backward()
            dtypes.append(w.grad.dtype)
    (row,) = a.ledger.filter(op="sum of gradients")
    assert (row.rounded, row.written) == (2, "float16")  # each call's own, and not what they leave together
    return dtypes


def of_optimizer(i):
    return [a for state in training()[2][i].state.values() for a in state.values() if isinstance(a, np.ndarray)]


HALF = np.finfo(np.float16)
TINY, ENDS = float(HALF.smallest_subnormal), float(HALF.max)
CHECKS = {  # the beginning of each sentence, and what of a run shows it
    "Weights, activations and gradients are stored in FP16": lambda: (
        holds("written", "float16", of=rows(kind="DOT"))
        and all(holds("computed", "float32", of=rows(kind=k)) for k in ("DOT", "REDUCTION", "POINTWISE"))
    ),
    "With FP32 storage nothing breaks": lambda: mp.MIXED.cast(ops.zeros(9)).nbytes * 2 == ops.zeros(9).nbytes,
    "policy.cast(model, keep=": lambda: (
        [(r.read, r.written) for r in example("kept modules").filter(op="linear")]
        == [("float16",) * 2, ("float32",) * 2]
        and [r.rounded for r in example("kept modules").filter(op="cast", module="m.1")] == [2]
    ),
    "A layer whose numbers leave FP16's range": lambda: nearest(ENDS + 16) == np.inf,
    "FP16 has 11 significant bits and 40": lambda: (
        HALF.nmant + 1 == 11 and HALF.maxexp - np.log2(float(HALF.smallest_subnormal)) == 40
    ),
    "A format divides its bits": lambda: (
        (HALF.nexp, HALF.nmant) == (5, 10) and all(1 + e + m == n for e, m, n in [(8, 7, 16), (4, 3, 8), (5, 2, 8)])
    ),
    "FP16 lies between 2^-24 and 65,504": lambda: (TINY, ENDS) == (2.0**-24, 65504) and nearest(2.0**-25) == 0,
    "BF16 has FP32's range and needs none": lambda: (
        np.finfo(np.float32).nexp == 8 and bf16(1 + 2.0**-8 - 2.0**-20) == 1 < bf16(1 + 2.0**-8 + 2.0**-20)
    ),
    "E4M3 ends at 448": lambda: (2 - 2 * 2.0**-3) * 2.0**8 == 448 and (2 - 2.0**-2) * 2.0**15 == 57344,
    "Weight decay reads the FP32 master.": lambda: holds("read", "float32", of=rows(op="sgd")),
    "SGD, Adam, Adagrad and RMSprop add": lambda: holds("computed", "float32", of=rows(phase="update")),
    "A step takes lr times weight_decay": lambda: example("weight decay").filter(op="sub", written="float16"),
    "Each backward call leaves a gradient": lambda: several() == [np.float16, np.float32],
    "Summed in FP16, the gradient of a small": lambda: nearest(2048 + 1) == 2048,
    "On a GPU an op runs as a CUDA kernel": lambda: (
        may_fuse(np.dtype("float16"))
        and each_once(kind="POINTWISE")
        and holds("computed", "float32", of=rows(op="linear"))
    ),
    "Sums may be in another order there": lambda: np.finfo(np.float32).smallest_normal == 2.0**-126,
    "In FP32, too, a sum in another order": lambda: holds(
        "computed", "float32", of=example("determinism").filter(op="add")
    ),
    "mp.save keeps the FP32 masters": lambda: (
        {str(x.dtype) for x in training()[1].state_dict().values()} == {"float32", "int64"}
    ),
    "A checkpoint of FP16 copies has": lambda: rows(op="sgd", written="float32 master, float16 copy"),
    "Scores, exponentials and their sums": lambda: (
        {row.accumulated for row in run("scaled_dot_product_attention")[0]} == {"float32"}
    ),
    "The softmax weights are rounded": lambda: topics.ROUNDED["scaled_dot_product_attention"].backward[0] == "p again",
    "With FP16 sums the weights": lambda: sums_in("float16", "attention", "scaled_dot_product_attention"),
    "With sparse=True the gradient": lambda: (
        holds("accumulated", "float32", of=example("sparse gradients").filter(op="embedding", phase="backward"))
        and [r.rounded for r in example("sparse gradients").filter(op="embedding", phase="backward")] == [2 * 4]
    ),
    "A value is computed in FP32 and rounded once": lambda: (
        each_once() and [row.rounded for row in example("rounding").filter(op="add")] == [1]
    ),
    "Every rounding of a normal number": lambda: HALF.eps / 2 == 1 / 2048,
    "Values are rounded to nearest.": lambda: nearest(1 + 0.4 * 2.0**-10) == 1,
    "A policy for study rounds up or down": lambda: "1.0002" in topics.TOPICS["stochastic rounding"].example,
    "In tinymp the policy rounds every store so.": lambda: example("stochastic rounding").filter(
        op="cast", policy="STOCHASTIC_ROUNDING"
    ),
    "A constant that does not fit FP16 raises": lambda: raises(lambda: ops.add(half(1), 1e5)),
    "Between 2^-24 and 2^-14 FP16 has numbers": lambda: (
        TINY == 2.0**-24 and HALF.smallest_normal == 2.0**-14 and sum(r.subnormal for r in example("subnormals")) == 1
    ),
    "The optimizer updates an FP32 master": lambda: (
        holds("written", "float32 master, float16 copy", of=rows(op="sgd"))
        and all(row.rounded == row.elements for row in rows(op="sgd"))
    ),
    "An update below 1/2048 of its weight": lambda: example("master weights").filter(op="add", written="float16"),
    "The loss is multiplied by S before": lambda: training()[3][0] == [np.float32],
    "A dot product multiplies FP16 operands": lambda: (
        holds("accumulated", "float32", of=rows(kind="DOT")) and each_once(op="linear")
    ),
    "An FP16 sum stalls as soon as": lambda: sums_in("float16", "accumulation", "matmul"),
    "On a GPU, FP16 products run on": lambda: holds("accumulated", "float32", of=rows(kind="DOT", written="float16")),
    "Their products are exact": lambda: HALF.nmant + 1 == 11 and np.finfo(np.float32).nmant + 1 == 24,
    "FP32 operands are never rounded": lambda: (
        [row.accumulated for row in example("tf32").filter(op="matmul")] == ["float32", "tf32"]
    ),
    "The FP32 baseline would silently": lambda: example("tf32").filter(accumulated="tf32", policy="TF32"),
    "Sums and means over FP16 tensors": lambda: (
        holds("accumulated", "float32", "-", of=rows(kind="REDUCTION")) and sums_in("float32", "reductions", "sum")
    ),
    "10,000 values of 0.1 summed in FP16": lambda: sums_in("float16", "reductions", "sum"),
    "FP16 in and out; mean, variance": lambda: (
        holds("written", "float16", of=rows(op="batch_norm", phase="forward"))
        and holds("read", "float16, float32", of=rows(op="batch_norm", phase="forward"))
        and holds("accumulated", "float32", of=rows(op="batch_norm", phase="forward"))
    ),
    "The statistics are sums over batch": lambda: sums_in("float16", "batch norm", "batch_norm"),
    "FP16 in and out; the sums over a row": lambda: (
        holds("written", "float16", of=rows(op="layer_norm", phase="forward"))
        and holds("read", "float16, float32", of=rows(op="layer_norm", phase="forward"))
        and holds("accumulated", "float32", of=rows(op="layer_norm", phase="forward"))
    ),
    "The squares leave FP16 long before": lambda: sums_in("float16", "layer norm", "layer_norm"),
    "FP16 in and out; the largest x": lambda: (
        holds("read", "float16", of=rows(op="softmax", phase="forward"))
        and holds("accumulated", "float32", of=rows(op="softmax", phase="forward"))
        and each_once(op="softmax")
    ),
    "Losses read FP16, compute and sum": lambda: (
        holds("read", "float16", of=rows(op="cross_entropy", phase="forward"))
        and holds("accumulated", "float32", of=rows(op="cross_entropy", phase="forward"))
        and holds("written", "float32", of=rows(op="cross_entropy", phase="forward"))
        and holds("written", "float32", of=example("losses", mp.PURE_FP16).filter(kind="LOSS"))
    ),
    "A scaled loss overflows FP16 at once": lambda: sum(row.infinite for row in example("losses")) == 1,
    "Element by element in FP32; only": lambda: (
        holds("computed", "float32", of=rows(kind="POINTWISE", phase="forward")) and each_once(kind="POINTWISE")
    ),
    "Little: the paper allows FP16 here.": lambda: nearest(1.5) + nearest(0.25) == nearest(1.75),
    "But squares leave FP16's range early": lambda: sum(row.infinite for row in example("pointwise")) == 1,
    "Where gradients meet again each is stored": lambda: meeting(),
    "A gradient to which many places add": lambda: sums_in("float16", "movement", "embedding"),
    "Momentum and Adam's averages are FP32.": lambda: (
        {str(a.dtype) for i in (0, 1) for a in of_optimizer(i)} == {"float32"}
    ),
    "Adam's v is a mean of squares": lambda: example("optimizer state").filter(lambda row: row.zero == 1),
    "Small constants (Adam's eps": lambda: holds("computed", "float32", of=rows(phase="update")),
    "Adam's 1e-8 is 0 in FP16": lambda: example("epsilon").filter(lambda row: row.zero == 1) and TINY < 6e-8,
    "Gradients are unscaled first and clipped": lambda: training()[3][0] == [np.float32],
    "And the norm sums squares": lambda: example("gradient clipping").filter(lambda row: row.infinite > 0),
    "A cast elsewhere would round": lambda: example("rounding").filter(op="cast", phase="forward")[0].rounded == 1,
    "In each step the products with h stay": lambda: (
        holds("accumulated", "float32", of=rows(op="lstm")) and holds("computed", "float32", of=rows(op="lstm"))
    ),
    "The weight gradients of all steps": lambda: holds("accumulated", "float32", of=rows(op="lstm", phase="backward")),
    "A state is rounded in every step": lambda: len(rows(op="lstm", phase="forward")[0].roundings) == 4,
    # notes
    "Powers leave FP16's range early": lambda: sum(row.infinite for row in example("pow")) == 1,
    "A small divisor makes the quotient": lambda: example("div").filter(lambda row: row.zero == 1),
    "An eps added in FP16 storage": lambda: example("rsqrt").filter(lambda row: row.zero == 1),
    "The product of two FP16 numbers": lambda: (
        [(row.rounded, row.infinite, row.zero) for row in example("mul").filter(op="mul")] == [(2, 1, 1)]
    ),
    "The sum itself must fit FP16": lambda: sum(row.infinite for row in example("sum")) == 1,
    "A bias gradient is a sum": lambda: holds("accumulated", "float32", of=rows(op="linear", phase="backward")),
    "The factor 1 / (1 - p) is applied in FP32": lambda: (
        holds("computed", "float32", of=rows(op="dropout")) and each_once(op="dropout")
    ),
    "Its input is a probability that was": lambda: HALF.epsneg == 2.0**-11,
    "Sums and products between the gates": lambda: (
        {"add", "mul"} <= {row.op for name in ("lstm_cell", "gru_cell") for row in run(name)[0] if row.rounded}
    ),
    "But numbers that were rounded before": lambda: example("eq").filter(op="cast", phase="forward")[0].rounded == 2,
}
CITED = ("In the paper's experiment",)  # numbers of the papers


def raises(call):
    with pytest.raises(ValueError, match=r"FP16|float16"):
        call()
    return True


def meeting():
    """A tensor used twice gets two gradients, each stored, and their sum in FP32, which is rounded once."""
    x = half(4, 6)
    with mp.audit() as a:
        (ops.exp(x) + ops.sin(x)).backward(np.ones((4, 6), "float16"))
    parts, total = a.ledger.filter(phase="backward", kind="POINTWISE"), a.ledger.filter(op="sum of gradients")
    return sum(row.rounded for row in parts) == 2 * 24 and [(row.read, row.rounded) for row in total] == [
        ("float32", 24)
    ]


SAID = [
    sentence
    for text in (*[part for t in topics.TOPICS.values() for part in (t.rule, t.without)], *dict(topics.NOTES.values()))
    for sentence in sentences(text)
]


def test_every_sentence_has_its_check():
    for beginning in (*CHECKS, *CITED):
        assert any(s.startswith(beginning) for s in SAID), beginning


@pytest.mark.parametrize("sentence", [s for s in dict.fromkeys(SAID) if not s.startswith(CITED)])
def test_what_a_sentence_says_of_precision_is_what_the_ledger_shows(sentence):
    (check,) = [check for beginning, check in CHECKS.items() if sentence.startswith(beginning)]
    assert check()
