"""Modules that are kept in another policy: the same bits as a version made by hand, forward and backward."""

import copy
import pickle

import numpy as np
import pytest

import tinymp as mp
from job import Job, same
from oracle import host, randn
from tinymp import nn, ops, optim

HALF, SINGLE = np.dtype("float16"), np.dtype("float32")
PAIRS = [
    (mp.MIXED, mp.FP32),
    (mp.MIXED, mp.FP16_ACCUMULATE),
    (mp.MIXED, mp.FP16_REDUCTIONS),
    (mp.MIXED, mp.PURE_FP16),
    (mp.MIXED, mp.STOCHASTIC_ROUNDING),
    (mp.STOCHASTIC_ROUNDING, mp.FP32),
    (mp.FP16_ACCUMULATE, mp.MIXED),
    (mp.FP32, mp.MIXED),
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
    "layer norm": lambda: nn.LayerNorm(32),
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


@pytest.mark.parametrize("field", ["accumulate", "reduce"])
def test_backward_follows_the_policy_of_its_forward(field):
    """Ones times ones in FP16 stop at 2048: dw for accumulate, db for reduce, in the kept layer and in no other."""
    own = mp.study.change(mp.MIXED, name="OWN", **{field: HALF}, chunk=1)
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    with mp.no_grad():
        for p in model.parameters():
            p.copy_(np.ones(p.shape, "float32") if p.ndim == 2 else np.zeros(p.shape, "float32"))
    mp.MIXED.cast(model, keep={"1": own})
    model(mp.ones(5000, 1, dtype="float16")).sum().backward()
    name = "weight" if field == "accumulate" else "bias"
    assert [float(getattr(layer, name).grad.item()) for layer in model] == [5000.0, 2048.0]


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
    assert dtypes == {
        "0.inner.weight": "float16",
        "0.outer.weight": "float32",
        "1.inner.weight": "float16",
        "1.outer.weight": "float32",
    }
    assert model[0].inner.weight.master_nbytes == 0
    seen = []
    model[0].inner.register_forward_hook(lambda m, args, y: seen.append((args[0].dtype, y.dtype, mp.current_policy())))
    y = model(mp.ones(2, 4, dtype="float16"))
    assert y.dtype == HALF
    assert seen == [(HALF, HALF, mp.NO_MASTER)]
    assert model[0].seen == [SINGLE, SINGLE, "FP32"] and model[1].seen == [HALF, HALF, "MIXED"]
    assert model[0].outer(mp.ones(2, 4, dtype="float16")).dtype == HALF  # a part, called from outside
    assert model[0].inner(mp.ones(2, 4, dtype="float16")).dtype == HALF
    assert mp.current_policy() is mp.MIXED


def test_the_whole_model_can_be_kept_and_parts_of_it_not():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    mp.MIXED.cast(model, keep={"": mp.FP32, "1": mp.MIXED})
    assert [layer.weight.dtype for layer in model] == [SINGLE, HALF]
    assert model(mp.ones(2, 4, dtype="float16")).dtype == HALF
    assert model(mp.ones(2, 4)).dtype == HALF  # FP32 is the model's own storage
    assert mp.FP16_ACCUMULATE.cast(model, keep={})[0].weight.dtype == HALF


def test_inputs_and_outputs_in_collections():
    class Parts(nn.Module):
        def forward(self, pair, *, named, boxes, n):
            assert pair[0].dtype == named["a"][0].dtype == SINGLE and boxes.dtype == np.float64 and n == 3
            return {"y": (pair[0] * 2.0, [pair[1]]), "boxes": boxes, "state": State(pair[0], "name")}

    from typing import Any, NamedTuple

    class State(NamedTuple):
        h: Any
        name: str

    model = mp.MIXED.cast(nn.Sequential(Parts()), keep={"0": mp.FP32})
    x, index = mp.ones(2, dtype="float16"), mp.arange(2)
    found = model[0]((x, index), named={"a": [x]}, boxes=mp.ones(2, dtype="float64"), n=3)
    assert found["y"][0].dtype == found["state"].h.dtype == HALF and found["state"].name == "name"
    assert found["y"][1][0] is index and found["boxes"].dtype == np.float64


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("grad", [True, False])
def test_losses_stay_fp32(reduction, grad):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.loss = nn.Linear(4, 4), nn.CrossEntropyLoss(reduction=reduction)

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


def test_hooks_run_inside():
    model, seen = mp.MIXED.cast(three("linear"), keep={"1": mp.FP32}), []
    model[1].register_forward_pre_hook(lambda m, args: seen.append(args[0].dtype))
    model[1].register_forward_hook(lambda m, args, y: seen.append(y.dtype))
    model[1].register_full_backward_hook(
        lambda m, dx, dy: seen.extend([dx[0].dtype, dy[0].dtype, mp.current_policy().name])
    )
    (model(mp.tensor(X).half()).sum()).backward()
    assert seen == [SINGLE, SINGLE, SINGLE, SINGLE, "FP32"]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_kept_too(how):
    model = mp.MIXED.cast(three("lstm"), keep={"1": mp.FP16_ACCUMULATE})
    x = mp.tensor(X).half()
    results = []
    for m in (model, how(model)):
        (m(x).sum() * 8.0).backward()
        results.append(gradients(m))
    same(*results)
    mp.MIXED.cast(model)(x)


def test_state_dicts_do_not_depend_on_it(tmp_path):
    model = mp.MIXED.cast(three("batch norm"), keep={"1": mp.FP32})
    same(model.state_dict(), mp.MIXED.cast(three("batch norm")).state_dict())
    other = mp.MIXED.cast(three("batch norm"))
    other.load_state_dict(model.state_dict())
    mp.save(tmp_path / "kept.safetensors", model=model)
    with mp.no_grad():
        model[1][1].weight.zero_()
    mp.load(tmp_path / "kept.safetensors", model=model)
    same(model.state_dict(), other.state_dict())
    assert model[1][1].weight.dtype == SINGLE


def train(model, scaler, steps=6):
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    norms = []
    with mp.use(mp.MIXED):
        for _ in range(steps):
            loss = ops.cross_entropy(model(mp.tensor(X).half()), mp.tensor(LABELS))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms.append(optim.clip_grad_norm_(model.parameters(), 1.0).item())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return norms


def test_gradients_of_both_dtypes_are_unscaled_and_clipped_together():
    """The norm of the first step does not depend on S; and an overflow in the FP16 part skips the FP32 part, too."""
    norms = [
        train(mp.MIXED.cast(three("linear"), keep={"1": mp.FP32}), optim.StaticLossScaler(scale))[0]
        for scale in (1024.0, 4096.0)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3) and norms[0] > 0
    model = mp.MIXED.cast(three("linear"), keep={"1": mp.FP32})
    before = model.state_dict()
    scaler = optim.DynamicLossScaler(2.0**24)
    train(model, scaler, 1)
    assert scaler.get_scale() < 2.0**24
    same(model.state_dict(), before)
    train(model, scaler, 20)
    assert not np.array_equal(model.state_dict()["1.0.weight"], before["1.0.weight"])


@pytest.mark.cpu
def test_the_ledger_shows_the_casts_and_the_policy():
    model = mp.MIXED.cast(three("linear"), keep={"1": mp.FP32, "1.1": mp.FP16_ACCUMULATE})
    with mp.audit(shadow=True, formats=["bf16"]) as a, mp.use(mp.MIXED):
        loss = ops.cross_entropy(model(mp.tensor(X).half()), mp.tensor(LABELS))
        loss.backward()
    found = {(r.module, r.op, r.phase, r.policy, r.read, r.written) for r in a.ledger if r.module.startswith("model.1")}
    assert found == {
        ("model.1", "cast", "forward", "MIXED", "float16, float32", "float32, float16"),
        ("model.1", "cast", "backward", "MIXED", "float16, float32", "float32, float16"),
        ("model.1.0", "linear", "forward", "FP32", "float32", "float32"),
        ("model.1.0", "linear", "backward", "FP32", "float32", "float32"),
        ("model.1.1", "cast", "forward", "FP32", "float32, float16", "float16, float32"),
        ("model.1.1", "cast", "backward", "FP32", "float32, float16", "float16, float32"),
        ("model.1.1", "tanh", "forward", "FP16_ACCUMULATE", "float16", "float16"),
        ("model.1.1", "tanh", "backward", "FP16_ACCUMULATE", "float16", "float16"),
    }
    casts = [r for r in a.ledger if r.op == "cast" and r.module]
    assert all(r.caller.startswith("test_keep.py:") and r.kind == "POINTWISE" for r in casts)
    assert sum(r.rounded for r in casts) > 0
    assert "FP16_ACCUMULATE" in str(a.as_dict()["policy"])


def test_a_captured_step_is_the_step(gpu):
    plain, captured = Job(), Job()
    for job in (plain, captured):
        mp.MIXED.cast(job.model, keep={"0": mp.FP32, "6": mp.FP32})
    step = mp.capture(captured.step, warmup=1)
    for seed in range(4):
        batch = plain.batch(seed)
        assert plain.step(*batch)[0].item() == step(*batch)[0].item()
    same(plain.state(), captured.state())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, i):
        return self.head(self.embedding(i))


def test_what_is_shared_has_one_policy():
    message = (
        "Policy.cast: 'embedding.weight' and 'head.weight' are one Parameter, which cannot have two policies, MIXED "
        "and FP32: name both in keep"
    )
    model = Tied()
    with pytest.raises(ValueError, match=f"^{message}$"):
        mp.MIXED.cast(model, keep={"head": mp.FP32})
    assert model.head.weight.dtype == SINGLE
    mp.MIXED.cast(model, keep={"head": mp.FP32, "embedding": mp.FP32})
    assert host(model(mp.arange(3))).dtype == HALF
    mp.MIXED.cast(model, keep={"": mp.FP32})
    relu = nn.ReLU()
    with pytest.raises(ValueError, match="'0' and '2' are one ReLU"):
        mp.MIXED.cast(nn.Sequential(relu, nn.Linear(2, 2), relu), keep={"2": mp.FP32})
    mp.MIXED.cast(nn.Sequential(relu, nn.Linear(2, 2), relu), keep={"1": mp.FP32})


@pytest.mark.parametrize(
    ("keep", "error", "message"),
    [
        ({"heda": mp.FP32}, ValueError, "got 'heda'; did you mean 'head'?"),
        ({"q": mp.FP32}, ValueError, "got 'q'; there are embedding, head"),
        ({"head.weight": mp.FP32}, ValueError, "got 'head.weight'"),
        ({0: mp.FP32}, ValueError, "got 0"),
        ({"head": "FP32"}, TypeError, "expected keep to be a dict of paths of modules and policies"),
        (["head"], TypeError, "expected keep to be a dict of paths of modules and policies, got ['head']"),
    ],
)
def test_wrong_keeps(keep, error, message):
    with pytest.raises(error) as raised:
        mp.MIXED.cast(Tied(), keep=keep)
    assert str(raised.value).startswith("Policy.cast: ") and message in str(raised.value)


@pytest.mark.parametrize("target", [mp.ones(2), np.ones(2, "f4"), [nn.Linear(1, 1)]])
def test_only_modules_have_parts_to_keep(target):
    with pytest.raises(TypeError, match=r"Policy.cast: expected a Module, parts of which to keep, got <class"):
        mp.MIXED.cast(target, keep={})
