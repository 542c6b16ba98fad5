"""Advice: each rule speaks where it should, with the number that was planted, and is silent otherwise."""

import numpy as np
import pytest

import tinymp as mp
from audit.sample import rehearse
from tinymp import nn, ops, optim
from tinymp.audit.advice import RULES, SPOILS, advise
from tinymp.audit.found import Found
from tinymp.audit.ledger import Rounding, Row
from tinymp.audit.products import Products


def row(op="relu", phase="forward", kind="POINTWISE", module="net.a", counts=(), **columns):
    columns = {"read": "float16", "written": "float16"} | columns
    one = Row(module, op, phase, "train.py:7", "ops/x.py:9", kind, **columns)
    if counts:
        one.roundings["ops/x.py:10"] = Rounding(*counts)
    return one


def only(*args, **columns):
    return {"ledger": [row(*args, **columns)]}


def exponents(best, scale, zero=0.0, then=0.0, overflow=0.0):
    shared = {"role": "weight gradient", "scale": scale, "values": 1000}
    lost = [{**shared, "zero": zero, "overflow": overflow}, {**shared, "scale": best, "zero": then, "overflow": 0.0}]
    return {"histograms": {"tensors": [shared], "lost": lost, "best_scale": best, "margin": 1.5}}


def updates(*lost, zero=0.0, **more):
    shared = {"elements": 6400, "updates": 100, "fp32": False, "master": True, "storage": "float16", "apart": 16}
    shared |= {"unchanged_by_zero": zero, **more}
    return {"updates": [{"name": f"net.{i}.weight", "lost": share} | shared for i, share in enumerate(lost)]}


def scales(first, last, iterations, skipped=0, causes=()):
    history = [[0, float(first)], [iterations - 1, float(last)]]
    seen = {"history": history, "skipped": list(range(skipped)), "causes": list(causes), "iterations": iterations}
    return {"scale": seen}


def too_high(n, fits, scale=8.0):
    return n * [{"cause": "loss scale too high", "text": "9e4", "largest_scale": fits, "scale": scale}]


def sizes(**measured):
    return {"bytes": {"measured": measured}}


INFINITE = only("linear", "backward", counts=(1000, 0, 0, 30, 70000.0))
IN_FP32 = only("linear", "backward", kind="DOT", read="float32", written="float32")
FLUSHED = exponents(4096.0, 8.0, 0.2, 0.01) | only(phase="backward", counts=(1000, 50, 0, 0, 1.0))
STATE = row("adam", "update", "UPDATE", "net.a.weight")
STATE.roundings |= {"parameter.py:85": Rounding(1000, 1000, 0, 0, 1.0), "optim/optimizer.py:9": Rounding(1000, 20)}
IN_BF16 = {"read": "bfloat16, float32", "written": "bfloat16"}


@pytest.mark.parametrize(
    ("found", "text", "why"),
    [
        (
            only(counts=(1000, 0, 0, 30, 7e4)),
            "Keep relu of net.a within FP16",
            "30 of 1,000 results (3.0%) became infinite",
        ),
        (
            only("softmax", counts=(1000, 20, 0, 0, 1.0)),
            "See whether softmax of net.a needs its",
            "20 of 1,000 results (2.0%) were",
        ),
        (
            FLUSHED,
            "Raise the loss scale from 8 to 4,096, or use optim.DynamicLossScaler",
            "200 of 1,000 weight gradients (20.0%) that are not 0 become 0; at 4,096 1.0% do, and the largest is 66.7%",
        ),
        (
            scales(1024, 1024, 10, 3, too_high(2, 512.0) + too_high(1, 256.0)),
            "Lower the loss scale from 1,024 to 256 or less, or use",
            "3 of 10 steps were skipped for this: 9e4; run again at 256, none of the 3 overflows",
        ),
        (
            scales(8, 8, 100, 10, 7 * [{"cause": "forward overflow", "text": "exp: 7e4"}]),
            "Mend what makes steps overflow",
            "10 of 100 steps were skipped, 7 of them for this: exp: 7e4",
        ),
        (  # the scale has fallen by what no scale mends: the least that loses little is named
            {"histograms": exponents(64.0, 2.0**-14, 0.4)["histograms"] | {"best_scale": 2.0**-16}}
            | scales(
                2**16,
                2.0**-14,
                100,
                33,
                30 * [{"cause": "backward overflow", "op": "sqrt", "phase": "backward", "text": "0 / 0"}],
            ),
            "Mend what makes steps overflow: no loss scale of 1 or more does; until then, "
            "optim.DynamicLossScaler(min_scale=64)",
            "30 of them for this: 0 / 0: its slope at 0 is infinite: add a small number to what it is given, "
            "such as 1e-4. Each lowers the scale, which fell from 65,536 to 6.10352e-05 and is slow to grow again: "
            "there 40.0% of the gradients become 0",
        ),
        (
            scales(16, 8, 100, 17, too_high(6, 4.0) + too_high(1, 2.0)),
            "Let the loss scale grow more rarely, or not beyond 2",
            "17 of 100 steps were skipped, 7 of them for this: 9e4; run again at half the scale, 6 of them do not",
        ),
        (
            scales(65536, 512, 8, 7, too_high(7, 256.0)),
            "Start with a smaller loss scale: optim.DynamicLossScaler(init_scale=256)",
            "7 of 8",
        ),
        (INFINITE | scales(8, 8, 10), "Skip the steps whose gradients overflow", "30 numbers became infinite"),
        (
            updates(0.3, 0.0, 0.02, master=False),
            "Keep FP32 master weights",
            "30.0% of the updates of net.0.weight leave the FP16 weight as it is; so do more than 1% in 2 of 3 "
            "parameters; added up in FP32, the same updates move 16 of 64 of its weights (25.0%) to",
        ),
        ({"ledger": [STATE]}, "Keep the optimizer's state in FP32", "20 of 1,000 numbers of it (2.0%) were not 0"),
        (only("matmul", counts=(9, 0, 0, 3, 1e39), **IN_BF16), "Keep matmul of net.a within BF16", "BF16 ends at 3.39"),
        (only("matmul", counts=(9, 0, 0, 3, 500.0), **IN_BF16), "Keep matmul", "a format of its operands ends below"),
        (updates(0.3, storage="bfloat16", master=False), "Keep FP32 master weights", "leave the BF16 weight as it is"),
        (
            only("linear", kind="DOT", sums={"accumulate": [100, 2], "reduce": [100, 1]}),
            "Accumulate in FP32: tinymp.study.change(policy, acc",
            "linear add up in FP16: 2 of 100 sums tried (2.0%) are infinite, or",
        ),
        (
            only("linear", kind="DOT", sums={"reduce": [10, 9]}),
            "Accumulate in FP32: tinymp.study.change(policy, red",
            "9 of 10 sums tried (90.0%)",
        ),
        (
            IN_FP32 | sizes(weights={"float32": 2**20}, activations={"float32": 2**22}),
            "Train in mixed precision: tinymp.MIXED.cast(model) and a loss scaler",
            "no matrix product of 1 reads FP16, so Tensor Cores stay idle; 1.0 MiB of weights and 4.0 MiB of activa",
        ),
    ],
)
def test_each_rule(found, text, why):
    (one,) = advise(Found(**found))
    assert one.text.startswith(text) and why in one.why
    assert (one.rule, one.source) in {(rule.__name__, source) for rule, source, *_ in RULES}


@pytest.mark.parametrize(
    "found",
    [
        {},
        only(counts=(100, 1, 50, 0, 2.0)) | exponents(2048.0, 1024.0) | scales(1024, 1024, 100) | updates(0.5),
        only("linear", "backward", "DOT", counts=(1000, 250, 0, 0, 1.0), **IN_BF16) | exponents(8.0, 1.0, 0.2),
        only(counts=(1000, 9, 900, 0, 60000.0)),  # less than 1 % flushed
        INFINITE,  # was the step skipped? it is not known
        exponents(8.0, 8.0, 0.2),  # no larger S fits
        scales(2048, 1024, 10, 1, too_high(1, 1024.0)),  # dynamic
        exponents(4096.0, 8.0, 0.2, 0.2) | scales(8, 8, 10),  # a larger S saves nothing
        scales(64, 8, 400, 16, too_high(16, 8.0)),  # it comes down
        scales(64, 8, 8, 4, too_high(4, 8.0)),  # half of a short run
        scales(8, 8, 10, 1, [{"cause": "unknown", "text": "its backward pass was not seen"}]),
        INFINITE | scales(8, 8, 10, 1),
        updates(0.3, apart=0, master=False),  # added up in FP32, they move nothing either
        only("linear", kind="DOT", accumulated="float16", sums={"accumulate": [1000, 10]}),
        updates(0.3, fp32=True, master=False),
        updates(0.0, 0.0, zero=1.0, master=False),  # no weight has moved: all gradients are zero
        only("linear", kind="DOT", accumulated="float32"),
        only("linear", kind="DOT", read="float32", written="float32"),  # nothing is trained
        only("softmax", counts=(999, 500, 0, 0, 1.0)),  # too few to judge
        updates(0.5, elements=999, master=False),
    ],
)
def test_silence(found):
    assert advise(Found(**found)) == []


def products_of(make, shape, policy=mp.MIXED):
    return advise(Found(products=rehearse(make, shape, Products(), policy).as_dict()))


def test_padding():
    (one,) = products_of(lambda: nn.Sequential(nn.Linear(1024, 1000), nn.ReLU(), nn.Linear(1000, 100)), (64, 1024))
    assert one.text == "Pad outputs from 100 to 104 (model.2)" and ", ops/dot.py:" in one.where
    share = 3 * 100 / (3 * 100 + 2 * 1024)  # no gradient of the input is wanted
    assert one.why.startswith(f"then 3 of 5 matrix products, with {share:.1%} of all operations, have multiples of 8")
    assert one.why.endswith("they take 4.0% more operations")
    (one,) = products_of(lambda: nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 500)), (60, 500))
    said = [f"{of} to {to} (in 2 modules)" for of, to in (("inputs from 500", 504), ("outputs from 500", 504))]
    assert one.text == f"Pad {', '.join(said)}, rows from 60 to 64 (in 2 modules)"
    more = 64 * 504 * 504 / (60 * 500 * 500) - 1
    assert one.why.startswith("then 5 of 5 matrix products, with 100.0%") and f"{more:.1%} more operations" in one.why
    (one,) = products_of(lambda: nn.Conv2d(20, 32, 3), (60, 20, 32, 32))  # of images the batch does not matter
    assert one.text == "Pad inputs from 20 to 24 (model)"
    colours = lambda: nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 60, 3))  # noqa: E731
    (one,) = products_of(colours, (8, 3, 32, 32))
    assert one.text == "Pad outputs from 60 to 64 (model.1)"


def beside(baseline=None, evaluate=0, hidden=1024, outputs=1000, batch=64, policy=mp.MIXED, rate=1e-3, **given):
    """An audit of a training; beside it an FP32 baseline, before or behind it, and an evaluation."""
    rng = np.random.default_rng(0)
    x, labels = mp.tensor(rng.standard_normal((batch, 32))), mp.tensor(rng.integers(0, 5, batch))
    scale, rule = given.get("scale", 1024.0), given.get("rule", optim.SGD)

    def run(policy):
        mp.manual_seed(0)
        layers = nn.Linear(32, hidden), given.get("norm", nn.ReLU()), nn.Linear(hidden, outputs)
        model = policy.cast(nn.Sequential(*layers))
        with mp.no_grad():
            model[0].weight.copy_(given.get("weights", 1.0) * model[0].weight.master)
        optimizer, scaler = rule(model.parameters(), rate), optim.StaticLossScaler(scale)
        with mp.use(policy):
            for _ in range(2):
                scaler.scale(ops.cross_entropy(model(policy.cast(x)), labels)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            if evaluate:
                with mp.no_grad():
                    model(policy.cast(ops.ones(evaluate, 32)))

    with mp.audit() as a:
        for each in {None: [policy], "before": [mp.FP32, policy], "behind": [policy, mp.FP32]}[baseline]:
            run(each)
    return a


@pytest.mark.parametrize("baseline", ["before", "behind"])
def test_a_baseline_and_an_evaluation_beside_it_change_nothing(baseline):
    """Outputs of 100 are worth padding; a batch of 250 that only an evaluation had, and FP32's products, are not."""
    alone = beside(outputs=100, hidden=2048).advise()
    assert [one.text for one in alone] == ["Pad outputs from 100 to 104 (model.2)"]
    found = beside(baseline, evaluate=250, outputs=100, hidden=2048).advise()
    assert [one._replace(where="") for one in found] == [one._replace(where="") for one in alone]
    a = beside(baseline, hidden=64, outputs=8, policy=mp.NO_MASTER, rate=1e-4)
    (one,) = a.advise()
    assert one.rule == "masters_missing" and one.importance >= SPOILS
    assert "and are lost: it has no FP32 master.\n" in str(a)


def test_real_trainings():
    toy = {"hidden": 60, "outputs": 5, "batch": 60}
    assert beside(**toy).advise() == beside(**toy, policy=mp.FP32).advise() == []
    for name in {"BF16", "FP8"} & mp.POLICIES.keys():
        assert beside(policy=mp.POLICIES[name], scale=1.0, hidden=256, outputs=64).advise() == []
    (one,) = beside(policy=mp.FP32).advise()
    assert one.text.startswith("Train in mixed precision")
    pure = beside(policy=mp.PURE_FP16, rule=optim.Adam, norm=nn.LayerNorm(64), hidden=64, outputs=8)
    found = {one.rule for one in pure.advise()}
    assert found >= {"fp16_products", "fp16_reductions", "fp16_state"}
    assert "loss_scale_too_small" in {one.rule for one in beside(scale=2.0**-13, hidden=64, outputs=8).advise()}
    found = beside(weights=2e5, hidden=16, outputs=8).advise()
    assert found[0].text.startswith("Keep linear of model.0 within FP16") and "test_advice.py:" in found[0].where
