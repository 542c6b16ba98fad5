"""Modules that are kept in another policy: the same bits as a version made by hand, forward and backward."""

import numpy as np
import pytest

import tinymp as mp
from job import same
from oracle import host, randn
from tinymp import nn, ops, optim

HALF, SINGLE = np.dtype("float16"), np.dtype("float32")
PAIRS = [
    (mp.MIXED, mp.FP32),
    (mp.MIXED, mp.FP16_ACCUMULATE),
    (mp.STOCHASTIC_ROUNDING, mp.FP32),
    (mp.FP16_ACCUMULATE, mp.MIXED),
    (mp.FP32, mp.NO_MASTER),
]


class Last(nn.Module):
    """The last output of an LSTM, which also takes and returns states in tuples."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 32)

    def forward(self, x):
        y, (h, _) = self.lstm(x.unsqueeze(0).expand(5, *x.shape))
        return y[4] + h.squeeze(0)


BODIES = {
    "linear": lambda: nn.Sequential(nn.Linear(32, 32), nn.Tanh()),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 32, bias=False)),
    "lstm": Last,
}


def three(body):
    mp.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), BODIES[body](), nn.Linear(32, 5))


def leaf(x):
    return mp.Tensor(x.array, requires_grad=True)


X, LABELS = randn(64, 8).astype("float32"), np.arange(64) % 5


def gradients(model):
    return {name: p.grad_array for name, p in model.named_parameters()}


def by_hand(model, policy, own):
    """Loss and gradients with explicit conversions, each part of the backward pass under its own policy."""
    first, body, last = (p.cast(m) for p, m in zip((policy, own, policy), model))
    with mp.use(policy):
        h = first(policy.cast(mp.tensor(X)))
        x = leaf(h)
        into = x.to(own.storage)
        inner = leaf(into)
    with mp.use(own):
        y = body(inner)
    with mp.use(policy):
        outer = leaf(y)
        out = outer.to(policy.storage)
        z = leaf(out)
        loss = ops.cross_entropy(last(z), mp.tensor(LABELS))
        (loss * 1024.0).backward()
        out.backward(z.grad)
    with mp.use(own):
        y.backward(outer.grad)
    with mp.use(policy):
        into.backward(inner.grad)
        h.backward(x.grad)
    return loss.item(), gradients(model)


def kept(model, policy, own):
    policy.cast(model, keep={"1": own})
    with mp.use(policy):
        loss = ops.cross_entropy(model(policy.cast(mp.tensor(X))), mp.tensor(LABELS))
        (loss * 1024.0).backward()
    return loss.item(), gradients(model)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("policy", "own"), PAIRS, ids=lambda p: p.name)
def test_it_is_the_version_by_hand_bit_for_bit(policy, own, body):
    results = []
    for run in (by_hand, kept):
        model = three(body)
        mp.manual_seed(1)
        results.append(run(model, policy, own))
    assert results[0][0] == results[1][0]
    same(*(found for _, found in results))
    for name, p in model.named_parameters():
        chosen = own if name.startswith("1.") else policy
        half = chosen.norm if p.normalisation and chosen.storage == HALF else chosen.storage
        assert p.dtype == p.grad.dtype == half and p.policy is chosen
        assert (p.master_nbytes > 0) == (half == HALF and chosen.master)


def test_it_is_not_the_model_without_it():
    plain = kept(three("linear"), mp.MIXED, mp.MIXED)
    for own in (mp.FP32, mp.FP16_ACCUMULATE, mp.STOCHASTIC_ROUNDING):
        loss, found = kept(three("linear"), mp.MIXED, own)
        assert loss != plain[0] and not np.array_equal(found["1.0.weight"], plain[1]["1.0.weight"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen = []

    def forward(self, x):
        y = self.inner(x)
        self.seen = [x.dtype, y.dtype, mp.current_policy().name]
        return self.outer(y) + x


def test_kept_modules_nest():
    model = nn.Sequential(Block(), Block())
    mp.MIXED.cast(model, keep={"0": mp.FP32, "0.inner": mp.NO_MASTER, "1.outer": mp.FP32})
    dtypes = {name: p.dtype.name for name, p in model.named_parameters() if name.endswith("weight")}
    assert list(dtypes.values()) == ["float16", "float32", "float16", "float32"]
    assert model[0].inner.weight.master_nbytes == 0
    seen = []
    model[0].inner.register_forward_hook(lambda m, args, y: seen.append((args[0].dtype, y.dtype, mp.current_policy())))
    y = model(mp.ones(2, 4, dtype="float16"))
    assert y.dtype == HALF
    assert seen == [(HALF, HALF, mp.NO_MASTER)]
    assert model[0].seen == [SINGLE, SINGLE, "FP32"] and model[1].seen == [HALF, HALF, "MIXED"]
    assert model[0].outer(mp.ones(2, 4, dtype="float16")).dtype == HALF  # a part, called from outside


@pytest.mark.parametrize("grad", [True, False])
def test_losses_stay_fp32(grad):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.loss = nn.Linear(4, 4), nn.CrossEntropyLoss()

        def forward(self, x, labels):
            y = self.layer(x)
            return y, self.loss(y, labels) * 0.5 + 1.0

    model = mp.MIXED.cast(nn.ModuleDict({"both": Both()}), keep={"both": mp.FP32})
    with mp.no_grad() if not grad else mp.use(mp.MIXED):
        y, loss = model["both"](mp.ones(3, 4, dtype="float16"), mp.arange(3))
    assert y.dtype == HALF and loss.dtype == SINGLE and loss.requires_grad == grad


def test_a_cast_without_keep_undoes_it_and_one_that_fails_changes_nothing():
    model = mp.MIXED.cast(three("linear"), keep={"1": mp.FP32})
    with mp.no_grad():
        model[1][0].weight.copy_(np.full((32, 32), 1e6, "float32"))
    seen = []
    model[1].register_forward_pre_hook(lambda m, args: seen.append(args[0].dtype))
    for keep in (None, {"0": mp.FP32}):
        with pytest.raises(ValueError, match=r"MIXED.cast: '1.0.weight' has values beyond the range of float16"):
            mp.MIXED.cast(model, keep=keep)
        assert [m.weight.dtype for m in (model[0], model[1][0])] == [HALF, SINGLE]
        model(mp.ones(2, 8, dtype="float16"))
    with mp.no_grad():
        model[1][0].weight.zero_()
    mp.MIXED.cast(model)
    assert model[1][0].weight.dtype == HALF
    model(mp.ones(2, 8, dtype="float16"))
    assert seen == [SINGLE, SINGLE, HALF]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, i):
        return self.head(self.embedding(i))


def test_what_is_shared_has_one_policy():
    model = Tied()
    with pytest.raises(ValueError, match=r"'embedding.weight' and 'head.weight' are one Parameter.*name both in keep"):
        mp.MIXED.cast(model, keep={"head": mp.FP32})
    assert model.head.weight.dtype == SINGLE
    mp.MIXED.cast(model, keep={"head": mp.FP32, "embedding": mp.FP32})
    assert host(model(mp.arange(3))).dtype == HALF
    for wrong, message in (("heda", "did you mean 'head'"), ("q", "there are embedding, head")):
        with pytest.raises(ValueError, match=message):
            mp.MIXED.cast(Tied(), keep={wrong: mp.FP32})
    relu = nn.ReLU()
    with pytest.raises(ValueError, match="'0' and '2' are one ReLU"):
        mp.MIXED.cast(nn.Sequential(relu, nn.Linear(2, 2), relu), keep={"2": mp.FP32})


@pytest.mark.parametrize("name", ["L1Loss", "SmoothL1Loss", "HuberLoss", "NLLLoss", "KLDivLoss", "BCEWithLogitsLoss"])
def test_a_loss_made_of_small_ops_stays_fp32_behind_a_kept_module(name):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.loss = nn.Linear(4, 4), getattr(nn, name)()

        def forward(self, x, target):
            return self.loss(self.layer(x), target)

    model = mp.MIXED.cast(WithLoss(), keep={"loss": mp.FP32})
    target = mp.tensor(np.arange(5) % 4) if name == "NLLLoss" else mp.MIXED.cast(mp.tensor(np.full((5, 4), 0.5, "f4")))
    with mp.use(mp.MIXED):
        loss = model(mp.MIXED.cast(mp.tensor(np.ones((5, 4), "f4"))), target)
        optim.DynamicLossScaler().scale(loss).backward()
    assert loss.dtype == np.float32 and model.layer.weight.grad.dtype == np.float16
