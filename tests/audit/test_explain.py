"""explain: everything public is explained, every number in the text comes out, every line that it cites exists."""

import doctest
import inspect
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim, precision
from tinymp.audit import topics
from tinymp.audit.ablate import DECISIONS
from tinymp.audit.explain import explain, names, ops_of, overview
from tinymp.tensor import Op, watch

pytestmark = pytest.mark.cpu  # the examples show NumPy's numbers

ROOT = Path(mp.__file__).parent.parent
EVERYTHING = [(what, name) for what, found in names().items() for name in found]
EXAMPLES = {
    **{name: topic.example for name, topic in topics.TOPICS.items()},
    **{f"note on {name}": example for name, (_, example) in topics.NOTES.items() if example},
}


def op_classes(base=Op):
    for cls in base.__subclasses__():
        yield cls
        yield from op_classes(cls)


@pytest.mark.parametrize(("what", "name"), EVERYTHING, ids=str)
def test_everything_is_explained_and_its_lines_exist(what, name):
    e = explain(name)
    assert e.rule
    assert e.read
    for line, called in e.read.items():
        path, number = line.rsplit(":", 1)
        text = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        assert any(text.lstrip().startswith(f"{word} {called.split('.')[-1]}") for word in ("def", "class")), text
    shown = str(e)
    assert all(line in shown for line in e.read)
    assert max(map(len, shown.splitlines())) <= 120
    if what in ("op", "layer", "optimizer", "policy"):
        assert e.formula
    if what == "optimizer":
        assert e.kind is precision.UPDATE
    if what in ("op", "layer", "topic", "gate", "kind", "policy") and (e.kind or what not in ("op", "layer")):
        assert e.without
        assert e.example.startswith(">>>")
        assert e.source


def test_names_are_all_that_is_public():
    listed = names()
    assert set(listed["layer"]) == {name for name in nn.__all__ if isinstance(getattr(nn, name), type)}
    assert {*listed["optimizer"], *listed["tool"]} == set(optim.__all__)
    assert set(listed["policy"]) == set(mp.POLICIES)
    assert {f.__name__ for f in ops.METHODS} <= set(listed["op"])
    text = " ".join(overview().split())
    assert all(f" {name}" in text for name in topics.TOPICS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_numbers_come_out(name):
    globs = {"mp": mp, "np": np, "ops": ops, "nn": nn, "optim": optim}
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], globs, name, None, None)
    assert test.examples and all(e.want for e in test.examples[-1:])
    report = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize(
    ("name", "kind", "formula", "line"),
    [
        ("softmax", "REDUCTION", "y_i = exp(x_i - max x)", ops.softmax),
        ("conv2d", "DOT", "cross-correlation", ops.conv2d),
        ("BatchNorm2d", "REDUCTION", "y = (x - mean) rstd w + b", nn.BatchNorm2d),
        ("lstm", "DOT", "i, f, g, o", nn.LSTM.forward),
        ("adam", "UPDATE", "w <- w - lr m", optim.Adam.update),
        ("store", None, "Gate 2", precision.store),
        ("FP16_ACCUMULATE", None, "accumulate = float16", precision.Policy),
        ("eq", "POINTWISE", "as bool", ops.eq),
    ],
)
def test_some_by_hand(name, kind, formula, line):
    e = explain(name)
    assert (e.kind and e.kind.name) == kind
    assert formula in e.formula
    first, called = next(iter(e.read.items()))
    assert called == line.__qualname__
    number = inspect.getsourcelines(line)[1] + (line is precision.Policy)  # which has a decorator
    assert first == f"{Path(inspect.getsourcefile(line)).relative_to(ROOT)}:{number}"


def test_names_are_found_however_they_are_written():
    for spelling in ("batch_norm", "batch norm", "Batch-Norm", "BATCHNORM"):
        assert explain(spelling).name == "batch_norm"
    assert explain("batch norm").rule == topics.TOPICS["batch norm"].rule
    assert explain("master copy").name == "master weights"
    assert explain("fp16 accumulate").what == "policy"
    for alias, topic in topics.ALIASES.items():
        assert explain(alias).rule == topics.TOPICS[topic].rule, alias


@pytest.mark.parametrize(("name", "near"), [("sofmax", "softmax"), ("los scaling", "loss scaling"), ("adm", "Adam")])
def test_unknown_names_are_answered_with_what_is_like_them(name, near):
    with pytest.raises(ValueError, match=f"'{name}' is no op.*{near}"):
        explain(name)
    with pytest.raises(ValueError, match="topics: storage"):
        explain("zzzzzz")


def test_text_refers_to_what_there_is():
    known = topics.TOPICS
    for topic in known.values():
        assert set(topic.see) <= set(known)
        if topic.ablation:
            example, _, decision = topic.ablation.split()
            assert example in ("mnist", "dcgan", "language_model")
            assert decision in {d.name for d in DECISIONS}
    used = [topics.OF_KIND, topics.OF_FIELD, topics.OF_GATE, topics.OF_OP, topics.OF_NAME, topics.ALIASES]
    assert {target for table in used for target in table.values()} <= set(known)
    assert set(topics.OF_KIND) == {kind.name for kind in precision.KINDS}
    assert set(topics.OF_FIELD) == {f.name for f in fields(mp.Policy)} - {"name"}
    assert set(topics.OF_OP) <= {cls.__name__ for cls in op_classes()}
    assert set(topics.OF_NAME) <= {*optim.__all__, *nn.__all__}
    assert set(topics.NOTES) <= set(names()["op"])


# What ops_of reads from the code is what runs.

X = np.linspace(-1, 1, 96, dtype=np.float32).reshape(2, 3, 4, 4)
RUNS = {
    "softmax": lambda x: ops.softmax(x, 1),
    "batch_norm": lambda x: ops.batch_norm(x, None, None, training=True),
    "conv1d": lambda x: ops.conv1d(x[0], ops.ones(2, 4, 3)),
    "getitem": lambda x: x[:, mp.tensor([0, 1])],
    "logical_not": lambda x: ops.logical_not(x),
    "std": lambda x: ops.std(x),
    "max": lambda x: ops.max(x, 1),
    "bmm": lambda x: ops.bmm(x[0], x[1]),
    "pixel_shuffle": lambda x: ops.pixel_shuffle(ops.cat([x, x[:, :1]], 1), 2),
    "smooth_l1_loss": lambda x: ops.smooth_l1_loss(x, x),
    "interpolate": lambda x: ops.interpolate(x, scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("name", RUNS)
def test_ops_that_run_are_those_found(name):
    ran = []
    with watch(lambda phase, op, inputs, outputs: ran.append(type(op))):
        RUNS[name](mp.tensor(X))
    found = ops_of(getattr(ops, name))
    assert set(found) & set(ran), (ran, found)
    assert {op for op in ran if op.kind is not precision.MOVEMENT} <= set(found)


def test_layers_find_their_ops():
    x = {"Linear": ops.ones(2, 4), "LSTM": ops.ones(3, 2, 4), "GRUCell": ops.ones(2, 4), "Softplus": ops.ones(2)}
    arguments = {"Linear": (4, 3), "LSTM": (4, 3), "GRUCell": (4, 3), "Softplus": ()}
    for name, given in x.items():
        ran = []
        with watch(lambda phase, op, inputs, outputs, ran=ran: ran.append(type(op))):
            getattr(nn, name)(*arguments[name])(given)
        assert ops_of(getattr(nn, name))[0] in ran, name
