"""Where an event belongs: module, op, phase, the line in tinymp and the line in the user's program."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim, precision
from tinymp.audit import Instrument
from tinymp.events import here
from tinymp.ops.softmax import Softmax

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
    source, first = inspect.getsourcelines(Softmax.forward)
    path, number = place.where.split(":")
    assert path == "ops/softmax.py" and "store(" in source[int(number) - first]
    # backward belongs to where forward was called
    assert {p.caller for p in seen.places(op="softmax", phase="backward")} == {line_of("return ops.softmax(self.head")}
    assert {p.module for p in seen.places(op="linear", phase="backward")} == {"net.head", "net.body.0"}
    # the update belongs to the parameter and to the optimizer
    places = seen.places("rounded", phase="update")
    assert {p.module for p in places} == {f"net.{name}" for name, _ in net.named_parameters()}
    assert {(p.op, p.kind, p.caller) for p in places} == {("sgd", precision.UPDATE, line_of("# updates here"))}
    assert {p.where.split(":")[0] for p in places} == {"parameter.py"}
    assert seen.places("product float32", op="linear", module="net.head", phase="backward")
    assert seen.places("sum float32", op="softmax", phase="forward")
    assert seen.steps == [(0, optim.StepResult.APPLIED)] and seen.listener.iteration == 1


class Iterations(Instrument):
    """Notes of each iteration what happened in it."""

    def __init__(self):
        self.seen = {}

    def note(self, *what):
        self.seen.setdefault(self.listener.iteration, []).append(" ".join(what))

    def ran(self, place, op, inputs, outputs):
        if place.phase == "backward" and op.name == "linear":
            self.note("backward", place.module)

    def deposited(self, leaf, gradient, scale):
        self.note("gradient", self.listener.name_of(leaf))

    def written(self, place, parameter, value):
        self.note("update", place.module)

    def stepped(self, optimizer, result):
        self.note("step", type(optimizer).__name__)


def line(inputs=2, outputs=2):
    return mp.MIXED.cast(nn.Linear(inputs, outputs, bias=False))


def steps(model, optimizer, n, passes=1):
    for _ in range(n):
        for _ in range(passes):
            model(half(3, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("passes", [1, 3])
def test_iterations_of_one_optimizer(passes):
    """Gradients that accumulate belong to the step that uses them."""
    model, seen = line(), Iterations()
    with mp.audit(seen):
        steps(model, optim.SGD(model.parameters(), lr=0.1), 3, passes)
    one = ["backward model", "gradient model.weight"] * passes + ["update model.weight", "step SGD"]
    assert seen.seen == {0: one, 1: one, 2: one}
    assert seen.listener.iterations == 3


@pytest.mark.parametrize("frozen", [True, False])
def test_iterations_of_a_gan(frozen):
    """The second optimizer's events belong to the same iteration: also if its gradients reach the first's weights."""
    generator, discriminator, seen = line(), line(2, 1), Iterations()
    sgd, adam = optim.SGD(discriminator.parameters(), lr=0.1), optim.Adam(generator.parameters())
    with mp.audit(seen):
        for _ in range(3):
            fake = generator(half(3, 2))
            discriminator(fake.detach()).sum().backward()
            sgd.step()
            sgd.zero_grad()
            discriminator.requires_grad_(not frozen)
            discriminator(fake).sum().backward()
            discriminator.requires_grad_(True)
            adam.step()
            adam.zero_grad()
            sgd.zero_grad()
    through = [] if frozen else ["gradient discriminator.weight"]
    one = ["backward discriminator", "gradient discriminator.weight", "update discriminator.weight", "step SGD"]
    one += ["backward discriminator", "backward generator", *through, "gradient generator.weight"]
    assert seen.seen == {i: [*one, "update generator.weight", "step Adam"] for i in range(3)}
    assert seen.listener.iterations == 3


def test_a_model_is_called_what_its_caller_calls_it():
    x, seen, models = half(2, 4), Everything(), [mp.MIXED.cast(nn.Linear(4, 2))]
    pair = SimpleNamespace(generator=mp.MIXED.cast(nn.Linear(4, 2)))
    with mp.audit(seen):
        pair.generator(x)
        models[0](x)
        (lambda layer: layer(x))(mp.MIXED.cast(nn.Linear(4, 2)))
    modules = [p.module for p in seen.places("ran", op="linear")]
    assert modules == ["pair.generator", "linear", "layer"]


CELLS = {
    3: """
class Net(nn.Module):
    def forward(self, x):
        return ops.exp(x)
net = Net()
square = lambda x: x * x
""",
    7: """net(x)
[ops.tanh(y) for y in [x]]
(lambda y:
    ops.sigmoid(y))(x)
square(x)
""",
}


def test_the_cells_of_a_notebook():
    """As "In [7]:3", whatever IPython calls their code; and a model by its name, not as the last result."""
    compiler = pytest.importorskip("IPython.core.compilerop").CachingCompiler()
    seen, shell = Everything(), SimpleNamespace(compile=compiler)
    names = {"nn": nn, "ops": ops, "x": half(3), "get_ipython": lambda: shell}
    with mp.audit(seen):
        for number, source in CELLS.items():
            exec(compile(source, compiler.cache(source, number), "exec"), names)
            names = {"_": names["net"], "__": names["net"], "_5": names["net"], **names}
    assert [(p.module, p.op, p.caller) for p in seen.places("ran")] == [
        ("net", "exp", "In [3]:4"),
        ("<module>", "tanh", "In [7]:2"),
        ("<lambda>()", "sigmoid", "In [7]:4"),
        ("<lambda>()", "mul", "In [3]:6"),
    ]


def test_a_graph_from_before_the_audit():
    x = half(3).requires_grad_()
    y = ops.exp(x)
    z = y * y + y
    seen = Everything()
    with mp.audit(seen):
        z.backward(half(3))
    assert {(p.op, p.caller) for _, p in seen.seen} == {(op, "before the audit") for op in ("add", "mul", "exp")}


def test_several_audits_hear_the_same_and_none_afterwards():
    with mp.audit() as outer:
        ops.exp(half(3))
        with mp.audit() as inner:
            net = mp.MIXED.cast(Net())
            net(half(2, 4)).float().mean().backward()
        ops.exp(half(3))
    assert not here.observers and not here.inside
    assert [row for row in inner.ledger if row.op != "exp"] == list(inner.ledger)
    assert [row.as_dict() for row in outer.ledger if row.op != "exp"] == [row.as_dict() for row in inner.ledger]
    assert [row.calls for row in outer.ledger if row.op == "exp"] == [1, 1]
    with pytest.raises(KeyError), mp.audit():
        raise KeyError
    assert not here.observers and not here.inside
