"""Bytes: measured by counting, with and without memory, and both against what is known."""

import numpy as np
import pytest

import tinymp as mp
from examples import cnn, lstm
from gpu.both_ways import fast_only
from tinymp import nn, ops, optim
from tinymp.audit.bytes import ROLES, ByteLedger, saved_nbytes, total
from tinymp.events import Setting, in_pass

pytestmark = pytest.mark.cpu  # exact numbers are those of the CPU's definitions; fast paths on a GPU keep other arrays

WORDS = np.random.default_rng(0).integers(0, 4000, (6, 20))
RULES = {
    "sgd": optim.SGD,
    "momentum": lambda parameters: optim.SGD(parameters, momentum=0.9),
    "adam": optim.Adam,
}


def of_mnist():
    return cnn.network(1, 28, 28, 10)


def images(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# name -> (the model, its loss, its inputs)
CASES = {
    "mnist": (of_mnist, lambda m, x, y: ops.cross_entropy(m(x), y), images(16, 1, 28, 28), np.arange(16) % 10),
    "language model": (
        lambda: lstm.LanguageModel(4000),
        lambda m, x: ops.cross_entropy(m(x)[0].flatten(0, 1), x.flatten()),
        WORDS,
    ),
}


def measure(model, loss, inputs, policy, rule):
    with mp.audit(ledger := ByteLedger()):
        train(model, loss, inputs, policy, rule)
    return ledger


def train(model, loss, inputs, policy, rule, steps=1):
    """Returns what the graph of the last step kept."""
    optimizer, scaler = rule(list(model.parameters())), optim.StaticLossScaler(8)
    with mp.use(policy):
        for _ in range(steps):
            arguments = [policy.cast(mp.tensor(x)) for x in inputs]
            y = scaler.scale(loss(model, *arguments))
            kept = saved_nbytes(y)
            y.backward()
            assert scaler.step(optimizer).applied
            scaler.update()
            optimizer.zero_grad()
    return kept


def build(make, policy):
    mp.manual_seed(0)
    return policy.cast(make())


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, mp.PURE_FP16], ids=lambda p: p.name)
def test_known_numbers(policy):
    """Linear(8, 4) on 3 rows: every byte by hand."""
    model = build(lambda: nn.Linear(8, 4), policy)
    ledger = measure(model, lambda m, x: ops.mse_loss(m(x), ops.zeros(3, 4)), [images(3, 8)], policy, optim.Adam)
    size, half = policy.storage.itemsize, policy.storage.name
    measured = ledger.measured
    assert measured["weights"] == {half: 36 * size}
    assert measured["masters"] == ({"float32": 36 * 4} if policy is mp.MIXED else {})
    assert measured["gradients"] == {half: 36 * size}
    state = policy.state if policy.storage == np.float16 else policy.storage
    assert measured["optimizer"] == {state.name: 2 * 36 * state.itemsize}
    # x (3, 8) and y (3, 4) in storage, the target (3, 4) in FP32
    expected = {"float16": 36 * 2, "float32": 12 * 4} if half == "float16" else {"float32": 48 * 4}
    assert measured["activations"] == expected


def test_activations_are_what_the_graph_keeps():
    model = build(of_mnist, mp.MIXED)
    x, y = mp.MIXED.cast(mp.tensor(images(16, 1, 28, 28))), mp.tensor(np.arange(16) % 10)
    ledger = ByteLedger()
    with mp.audit(ledger):
        loss = ops.cross_entropy(model(x), y)
        kept = saved_nbytes(loss)
        loss.backward()
    assert sum(ledger.measured["activations"].values()) == kept > 0
    assert saved_nbytes(loss) == 0  # freed


def test_an_array_over_memory_that_is_no_array():
    x, w = mp.from_numpy(np.frombuffer(bytes(16), "f4")), mp.tensor(np.ones(4, "f4"), requires_grad=True)
    assert saved_nbytes(x * w) == 16


def test_sparse_gradients():
    model = build(lambda: nn.Embedding(1000, 8, sparse=True), mp.MIXED)
    ledger = measure(model, lambda m, i: ops.mse_loss(m(i), ops.zeros(5, 8)), [np.array([1, 2, 2, 9, 7])], mp.MIXED,
                     optim.SGD)  # fmt: skip
    assert ledger.measured["gradients"] == {"int64": 4 * 8, "float16": 4 * 8 * 2}


def test_two_trainings_in_one_audit_are_kept_apart():
    make, loss, *inputs = CASES["mnist"]
    policies, rule = (mp.FP32, mp.MIXED), RULES["momentum"]
    apart = [measure(build(make, p), loss, inputs, p, rule) for p in policies]
    both, models = ByteLedger(), [build(make, p) for p in policies]
    with mp.audit(both):
        for model, policy in zip(models, policies):
            train(model, loss, inputs, policy, rule)
    fp32, mixed = (ledger.measured for ledger in apart)
    assert both.measured == mixed
    assert both.by_policy == both.as_dict()["by_policy"] == {"FP32": fp32, "MIXED": mixed}
    assert both.ratio == apart[1].ratio


@pytest.mark.parametrize(("policy", "size"), [(mp.FP32, 4), (mp.MIXED, 2)])
@Setting(in_pass, True)  # x is read as its copy
def test_what_ops_and_updates_move_by_hand(policy, size):
    x = policy.cast(nn.Parameter(images(3, 5)))
    optimizer = optim.SGD([x], lr=0.1, momentum=0.9)
    ledger = ByteLedger()
    with mp.audit(ledger), mp.use(policy):
        y = ops.exp(x)  # reads x, writes y
        z = ops.reshape(y, 15)  # a view
        assert ledger.moved == 2 * 15 * size
        z.backward(policy.cast(mp.tensor(images(15))))  # reads dy and the saved y, writes dx
        assert ledger.moved == 5 * 15 * size
        optimizer.step()
    # reads the gradient; reads and writes momentum and master, both FP32; writes the FP16 copy, if there is one
    update = 15 * size + 2 * 15 * 4 + (2 * 15 * 4 + 15 * 2 if policy is mp.MIXED else 2 * 15 * 4)
    assert ledger.moved == 5 * 15 * size + update == ledger.as_dict()["moved"]
    assert "ops and updates read and wrote" in str(ledger)


TRAININGS = [("mnist", "FP32", "adam"), ("mnist", "MIXED", "momentum"), ("language model", "MIXED", "sgd")]
TRAININGS += [("language model", "BF16", "adam")] if "BF16" in mp.POLICIES else []


@pytest.mark.parametrize(("name", "policy", "rule"), TRAININGS)
def test_a_step_without_memory_takes_the_same_bytes(name, policy, rule):
    """Role by role: of this policy, and of FP32 instead."""
    (make, loss, *inputs), policy = CASES[name], mp.POLICIES[policy]
    model = build(make, policy)
    with mp.audit(ledger := ByteLedger()):
        kept = train(model, loss, inputs, policy, RULES[rule], steps=2)
    with mp.device("meta"):
        predicted = measure(build(make, policy), loss, inputs, policy, RULES[rule])
    assert predicted.measured == ledger.measured and predicted.ratio == ledger.ratio
    with fast_only(forward=False, backward=False):
        assert measure(build(make, policy), loss, inputs, policy, RULES[rule]).measured == ledger.measured
    whole = measure(build(make, mp.FP32), loss, inputs, mp.FP32, RULES[rule])
    assert ledger.fp32 == whole.fp32 == whole.measured
    assert ledger.ratio == total(whole.measured) / total(ledger.measured)
    parameters = list(model.parameters())  # now without the ledger
    n, weights = sum(p.array.size for p in parameters), sum(p.nbytes for p in parameters)
    assert {role: sum(ledger.measured[role].values()) for role in ROLES} == {
        "weights": weights,
        "masters": sum(p.master_nbytes for p in parameters),
        "gradients": weights,
        "activations": kept,
        "optimizer": {"sgd": 0, "momentum": 4, "adam": 8}[rule] * n,
    }
