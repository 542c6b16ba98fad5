"""Where an event belongs: module, op, phase, the line in tinymp and the line in the user's program."""

import inspect
import threading
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim, precision
from tinymp.audit import Instrument

HERE = "test_listener.py"


class Everything(Instrument):
    """Notes every event with its place."""

    def __init__(self):
        self.seen, self.steps = [], []

    def rounded(self, place, x, y):
        self.seen.append(("rounded", place))

    def product(self, place, a, b, accumulate):
        self.seen.append((f"product {accumulate}", place))

    def reduced(self, place, x, axis, how, accumulate):
        self.seen.append((f"{how} {accumulate}", place))

    def ran(self, place, op, inputs, outputs):
        self.seen.append(("ran", place))

    def written(self, place, parameter, value):
        self.seen.append(("written", place))

    def stepped(self, optimizer, result):
        self.steps.append((self.listener.iteration, result))

    def places(self, what=None, **wanted):
        return [p for w, p in self.seen if what in (None, w) and all(getattr(p, k) == v for k, v in wanted.items())]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return ops.softmax(self.head(self.body(x)), -1)


def line_of(text):
    """HERE and the line of this file that contains the text."""
    lines = inspect.getsource(inspect.getmodule(Net)).splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line and "line_of" not in line]
    return f"{HERE}:{number}"


def half(*shape, seed=0):
    return mp.tensor(np.random.default_rng(seed).standard_normal(shape).astype("float16"))


def test_where_a_training_step_rounds():
    net = mp.MIXED.cast(Net())
    optimizer, scaler = optim.SGD(net.parameters(), lr=0.1), optim.StaticLossScaler(8.0)
    seen = Everything()
    with mp.audit(seen):
        y = net(half(2, 4))
        loss = y.float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # updates here
        scaler.update()
    (place,) = seen.places("rounded", op="linear", phase="forward", module="net.head")
    assert place.where.startswith("ops/dot.py:") and place.kind is precision.DOT
    assert place.caller == line_of("return ops.softmax(self.head")
    (place,) = seen.places("rounded", op="linear", phase="forward", module="net.body.0")
    assert place.caller == line_of("return ops.softmax(self.head")
    assert {p.module for p in seen.places(op="softmax")} == {"net"}
    (place,) = seen.places("rounded", op="softmax", phase="forward")
    source, first = inspect.getsourcelines(ops.softmax.__globals__["Softmax"].forward)
    path, number = place.where.split(":")
    assert path == "ops/softmax.py" and "store(" in source[int(number) - first]
    # backward belongs to where forward was called
    assert {p.caller for p in seen.places(op="softmax", phase="backward")} == {line_of("return ops.softmax(self.head")}
    assert {p.module for p in seen.places(op="linear", phase="backward")} == {"net.head", "net.body.0"}
    # the update belongs to the parameter and to the optimizer
    places = seen.places("rounded", phase="update")
    assert {p.module for p in places} == {f"net.{name}" for name, _ in net.named_parameters()}
    assert {(p.op, p.kind, p.caller) for p in places} == {("sgd", precision.UPDATE, line_of("# updates here"))}
    assert {p.where.split(":")[0] for p in places} == {"nn/parameter.py"}
    assert seen.places("product float32", op="linear", module="net.head", phase="backward")
    assert seen.places("sum float32", op="softmax", phase="forward")
    assert seen.steps == [(0, optim.StepResult.APPLIED)] and seen.listener.iteration == 1


def test_a_conversion_by_the_user():
    seen = Everything()
    with mp.audit(seen):
        mp.MIXED.cast(np.ones(3, "float32"))  # by hand
        mp.tensor(np.ones(1, "float32")).half()
    first, second = seen.places("rounded")
    assert (first.op, first.phase, first.kind, first.caller) == ("cast", "cast", None, line_of("# by hand"))
    assert (second.op, second.phase) == ("cast", "forward")  # an op of its own


def test_sums_of_gradients_belong_to_the_op_that_gets_them():
    x = half(3).requires_grad_()
    seen = Everything()
    with mp.audit(seen):
        y = ops.exp(x)
        (y * y + y).backward(half(3))
    (place,) = [p for p in seen.places("rounded", op="exp", phase="backward") if p.where.startswith("tensor.py")]
    assert place.caller.startswith(HERE)
    (place,) = seen.places("rounded", op="exp", phase="forward")
    seen = Everything()
    with mp.audit(seen):
        (ops.sum(x * x)).backward()
    (place,) = [p for p in seen.places("rounded") if p.op == "sum of gradients"]
    assert (place.phase, place.kind) == ("backward", None)


class Pair(NamedTuple):
    generator: nn.Module
    other: nn.Module


class Holder:
    def __init__(self, net):
        self.net = net

    def run(self, x):
        return self.net(x)


def test_a_model_is_called_what_its_caller_calls_it():
    x, pair, seen = half(2, 4), Pair(mp.MIXED.cast(nn.Linear(4, 2)), mp.MIXED.cast(nn.Linear(4, 2))), Everything()
    models = [mp.MIXED.cast(nn.Linear(4, 2))]
    with mp.audit(seen):
        pair.generator(x)
        pair.other(x)
        Holder(mp.MIXED.cast(Net())).run(x)
        models[0](x)
        (lambda layer: layer(x))(mp.MIXED.cast(nn.Linear(4, 2)))
    modules = [p.module for p in seen.places("ran", op="linear")]
    assert modules == ["pair.generator", "pair.other", "net.body.0", "net.head", "linear", "layer"]


def test_the_cells_of_a_notebook():
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={"/somewhere/5.py": 7}))
    cell = compile("\nops.exp(x)\n", "/somewhere/5.py", "exec")
    seen = Everything()
    with mp.audit(seen):
        exec(cell, {"ops": ops, "x": half(3), "get_ipython": lambda: shell})
    assert {p.caller for p in seen.places(op="exp")} == {"In [7]:2"}


def test_a_graph_from_before_the_audit():
    x = half(3).requires_grad_()
    y = ops.exp(x)
    seen = Everything()
    with mp.audit(seen):
        y.backward(half(3))
    assert {p.caller for p in seen.places(op="exp")} == {"before the audit"}


def test_other_threads_are_not_heard():
    seen = Everything()
    with mp.audit(seen):
        thread = threading.Thread(target=lambda: ops.exp(half(3)))
        thread.start()
        thread.join()
    assert not seen.seen


def test_one_audit_at_a_time_and_none_afterwards():
    with (
        mp.audit(),
        pytest.raises(RuntimeError, match="the gates are observed already; end that audit first"),
        mp.audit(),
    ):
        pass
    assert precision.observer() is None
    with pytest.raises(KeyError), mp.audit():
        raise KeyError
    assert precision.observer() is None


def test_an_instrument_may_pass_the_gates_unheard():
    class Again(Everything):
        def rounded(self, place, x, y):
            super().rounded(place, x, y)
            with precision.unobserved():
                precision.store(x, like=y)

    seen = Again()
    with mp.audit(seen):
        ops.exp(half(3))
    assert len(seen.places("rounded")) == 1
    assert precision.observer() is None


def test_nothing_changes():
    """An audited run gives the same numbers, bit for bit."""

    def run():
        mp.manual_seed(0)
        net = mp.MIXED.cast(Net())
        optimizer, scaler = optim.Adam(net.parameters()), optim.DynamicLossScaler()
        for seed in range(3):
            scaler.scale(net(half(2, 4, seed=seed)).float().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return net.state_dict()

    plain = run()
    with mp.audit():
        audited = run()
    for name, value in plain.items():
        np.testing.assert_array_equal(value, audited[name])


def test_on_a_gpu_the_definitions_run(gpu):
    """A kernel does the work of several gates at once; an audit sees every one of them."""
    net = mp.MIXED.cast(Net()).to("gpu")
    optimizer, scaler = optim.SGD(net.parameters(), lr=0.1), optim.DynamicLossScaler(8.0)
    seen = Everything()
    step = mp.capture(lambda x: scaler.scale(net(x).float().mean()).backward() or scaler.step(optimizer), warmup=1)
    with mp.audit(seen):
        for _ in range(3):  # would be recorded and replayed
            step(half(2, 4).to("gpu"))
            scaler.update()
            optimizer.zero_grad()
    assert len(seen.places("rounded", op="softmax", phase="forward")) == 3
    assert len(seen.places("rounded", op="linear", phase="forward", module="net.head")) == 3
    assert len(seen.places("rounded", op="sgd", module="net.head.weight")) == 3
    assert [r for _, r in seen.steps] == [optim.StepResult.APPLIED] * 3
