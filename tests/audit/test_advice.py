"""Advice: each rule speaks where it should, with the number that was planted, and is silent otherwise."""

import numpy as np
import pytest

import tinymp as mp
from examples import cnn
from tinymp import nn, ops, optim
from tinymp.audit import advice
from tinymp.audit.advice import RULES, SPOILS, Advice
from tinymp.audit.bytes import ByteLedger
from tinymp.audit.found import Found
from tinymp.audit.ledger import Ledger, Rounding, Row
from tinymp.audit.predict import predict
from tinymp.audit.products import Products

INSTRUMENTS = {
    "Exponents": "histograms",
    "LostUpdates": "updates",
    "Scales": "scale",
    "ByteLedger": "bytes",
    "Products": "products",
}


def advise(instruments):
    """The advice from what some instruments found, or an audit."""
    if hasattr(instruments, "advise"):
        return instruments.advise()
    found = {INSTRUMENTS[type(i).__name__]: i.as_dict() for i in instruments if type(i).__name__ != "Ledger"}
    ledgers = [i.rows for i in instruments if type(i).__name__ == "Ledger"]
    return advice.advise(Found(*ledgers, **found))


def stand_in(name, found):
    """An instrument of this class that found this."""
    return type(name, (), {"as_dict": lambda self: found})()


def ledger(*rows):
    made = type("Ledger", (), {"rows": list(rows)})()
    return made


def row(op="relu", phase="forward", kind="POINTWISE", module="net.a", counts=(), **columns):
    one = Row(
        module, op, phase, kind, "train.py:7", "ops/x.py:9", **{"read": "float16", "written": "float16"} | columns
    )
    if counts:
        one.roundings["ops/x.py:10"] = Rounding(*counts)
    return one


def exponents(best, scale, zero=0.0):
    lost = [{"role": "weight gradient", "scale": s, "zero": z} for s, z in ((scale, zero), (best, 0.0))]
    return stand_in("Exponents", {
        "tensors": [{"role": "weight gradient", "scale": scale}], "lost": lost, "best_scale": best, "margin": 1.5,
    })  # fmt: skip


def updates(*lost, n=100, fp32=False, zero=0.0, **more):
    shared = {"updates": n, "fp32": fp32, "unchanged_by_zero": zero, **more}
    return stand_in(
        "LostUpdates", [{"name": f"net.{i}.weight", "lost": share} | shared for i, share in enumerate(lost)]
    )


def scales(history, skipped=(), causes=()):
    return stand_in("Scales", {"history": history, "skipped": list(skipped), "causes": list(causes)})


def sizes(measured):
    return stand_in("ByteLedger", {"measured": measured, "predicted": None})


MASTERS = {"weights": {"float16": 200}, "masters": {"float32": 400}}
NO_MASTERS = {"weights": {"float16": 200}, "masters": {}}
BF16_ALONE = {"weights": {"bfloat16": 200}, "masters": {}}
BF16_ROW = {"read": "bfloat16, float32", "written": "bfloat16"}
GOOD = row(counts=(100, 1, 50, 0, 2.0))


def test_nothing_to_say():
    assert advise([]) == []
    assert advise([ledger()]) == []
    quiet = [ledger(GOOD), exponents(2048.0, 1024.0), updates(0.5), scales([[0, 1024.0], [99, 1024.0]]), sizes(MASTERS)]
    assert advise(quiet) == []


@pytest.mark.parametrize(
    ("instruments", "text", "why", "source"),
    [
        (
            [ledger(row(counts=(1000, 0, 0, 30, 70000.0)))],
            "Keep relu of net.a within FP16",
            "30 of 1,000 results became infinite; the largest was 7e+04",
            "NVG 2.1",
        ),
        (
            [ledger(row(op="softmax", counts=(1000, 20, 0, 0, 1.0)))],
            "See whether softmax of net.a needs its small values",
            "2.0% of 1,000 results were not 0 and became 0",
            "NVG 2.1",
        ),
        (
            [ledger(row(phase="backward", counts=(1000, 250, 0, 0, 1.0)))],
            "Raise the loss scale with optim.DynamicLossScaler",
            "25.0% of the values rounded in backward that are not 0 become 0",
            "MPT 3.2, NVG 2.3.2",
        ),
        (
            [exponents(4096.0, 8.0, 0.2), ledger(row(phase="backward", counts=(1000, 50, 0, 0, 1.0)))],
            "Raise the loss scale from 8 to 4,096",
            "20.0% of the weight gradients that are not 0 become 0; at 4,096 none overflows, by a factor of 1.5",
            "MPT 3.2, NVG 2.3.2",
        ),
        (
            [exponents(256.0, 1024.0), scales([[0, 1024.0], [9, 1024.0]])],
            "Lower the loss scale from 1,024 to 256",
            "256 is the largest power of two",
            "MPT 3.2, NVG 2.3.2",
        ),
        (
            [scales([[0, 8.0], [99, 8.0]], range(10), 7 * [{"cause": "forward overflow", "text": "exp: 7e4"}])],
            "Mend what makes steps overflow",
            "10 of 100 steps were skipped, 7 of them for this: exp: 7e4",
            "NVG 2.3.2",
        ),
        (
            [scales([[0, 8.0], [99, 8.0]], range(17), 7 * [{"cause": "loss scale too high", "text": "9e4"}])],
            "Let the loss scale grow more rarely",
            "17 of 100 steps were skipped, 7 of them for this: 9e4",
            "NVG 2.3.2",
        ),
        (  # a run of eight steps: the scale that it ended with, as a line to write
            [scales([[0, 65536.0], [6, 1024.0], [7, 512.0]], range(7))],
            "Start with a smaller loss scale: optim.DynamicLossScaler(init_scale=512)",
            "7 of 8 steps were skipped",
            "NVG 2.3.2",
        ),
        (
            [ledger(row("linear", "backward", counts=(1000, 0, 0, 30, 70000.0))), scales([[0, 8.0], [9, 8.0]])],
            "Skip the steps whose gradients overflow",
            "30 numbers became infinite in backward, and no step was skipped; the most in linear of net.a",
            "NVG 2.3.2",
        ),
        (
            [updates(0.3, 0.0, 0.02), sizes(NO_MASTERS)],
            "Keep FP32 master weights",
            "30.0% of the updates of net.0.weight leave the FP16 weight as it is; so do more than 1% in 2 of 3",
            "MPT 3.1",
        ),
        (
            [sizes({"optimizer": {"float16": 2**21}})],
            "Keep the optimizer's state in FP32",
            "2.0 MiB of it are FP16",
            "MPT 3.1",
        ),
        (
            [ledger(row("batch_norm"), row("adam", "update", "UPDATE", "net.a.weight"), row("adam", "update", "UPDATE",
             "net.a.bias", written="float32"), row("adam", "update", "UPDATE", "net.b.weight"))],
            "Keep the parameters of normalisation layers in FP32",
            "1 of 2 of them are FP16",
            "NVG 2.3.1",
        ),
        (
            [ledger(row("matmul", counts=(9, 0, 0, 3, 1e39), written="bfloat16"))],
            "Keep matmul of net.a within BF16",
            "3 of 9 results became infinite; the largest was 1e+39, and BF16 ends at 3.39e+38",
            "NVG 2.1",
        ),
        (
            [ledger(row("matmul", counts=(9, 0, 0, 3, 500.0), written="bfloat16"))],  # operands in "e4m3"
            "Keep matmul of net.a within BF16",
            "the largest was 500, and a format of its operands ends below",
            "NVG 2.1",
        ),
        (
            [updates(0.3, storage="bfloat16"), sizes(BF16_ALONE)],
            "Keep FP32 master weights: a policy with master=True, such as tinymp.BF16",
            "30.0% of the updates of net.0.weight leave the BF16 weight as it is",
            "MPT 3.1",
        ),
        (
            [ledger(row("linear", kind="DOT", accumulated="float16"))],
            "Accumulate in FP32: tinymp.study.change(policy, accumulate=float32)",
            "linear add up in FP16, in 1 rows",
            "MPT 3.3, NVG 2.2",
        ),
        (
            [ledger(row("sum", kind="REDUCTION", accumulated="float32, float16"))],
            "Accumulate in FP32: tinymp.study.change(policy, reduce=float32)",
            "sum add up in FP16",
            "MPT 3.3, NVG 2.3.1",
        ),
        (
            [ledger(row("linear", "backward", kind="DOT", read="float32", written="float32")),
             sizes({"weights": {"float32": 2**20}, "activations": {"float32": 2**22}})],
            "Train in mixed precision: tinymp.MIXED.cast(model) and a loss scaler",
            "no matrix product of 1 reads FP16, so Tensor Cores stay idle; 1.0 MiB of weights and 4.0 MiB of activa",
            "MPT 3, NVG 2.2",
        ),
    ],
)  # fmt: skip
def test_each_rule(instruments, text, why, source):
    (one,) = advise(instruments)
    assert isinstance(one, Advice)
    assert one.text.startswith(text)
    assert why in one.why
    assert one.source == source
    assert one.rule in {rule.__name__ for rule, *_ in RULES}
    assert 0 < one.importance < 100


@pytest.mark.parametrize(
    "instruments",
    [
        [ledger(row("linear", "backward", "DOT", counts=(1000, 250, 0, 0, 1.0), **BF16_ROW)), exponents(8.0, 1.0, 0.2)],
        [ledger(row(counts=(1000, 9, 900, 0, 60000.0)))],  # less than 1 % flushed
        [ledger(row(phase="backward", counts=(1000, 0, 900, 30, 70000.0)))],  # was the step skipped? it is not known
        [ledger(row(phase="backward", counts=(1000, 250, 0, 0, 1.0))), exponents(8.0, 8.0, 0.2)],  # no larger S fits
        [exponents(256.0, 1024.0), scales([[0, 2048.0], [9, 1024.0]])],  # dynamic
        [scales([[0, 8.0], [99, 8.0]], range(16))],  # it comes down
        [scales([[0, 8.0], [399, 8.0]], range(20))],
        [scales([[0, 64.0], [7, 8.0]], range(4))],  # half of a short run
        [scales([[0, 8.0], [9, 8.0]], [3], [{"cause": "unknown", "text": "its backward pass was not seen"}])],
        [ledger(row(phase="backward", counts=(1000, 0, 0, 30, 70000.0))), scales([[0, 8.0], [9, 8.0]], [3])],
        [updates(0.3), sizes(MASTERS)],
        [updates(0.3)],  # masters or not: unknown
        [updates(0.3, fp32=True), sizes(NO_MASTERS)],
        [updates(0.0, 0.0, zero=1.0), sizes(MASTERS)],  # no weight has moved: all gradients are zero
        [ledger(row("batch_norm"), row("adam", "update", "UPDATE", "net.b.weight"))],
        [ledger(row("linear", kind="DOT", accumulated="float32"))],
        [ledger(row("relu", read="float32", written="float32"))],  # no product
        [ledger(row("linear", kind="DOT", read="float32", written="float32"))],  # nothing is trained
        [ledger(row("softmax", counts=(999, 500, 0, 0, 1.0)))],  # too few to judge
        [ledger(row(phase="backward", counts=(999, 250, 0, 0, 1.0)))],
        [stand_in("LostUpdates", [{"name": "b", "updates": 99, "elements": 999, "lost": 0.5, "master": False}])],
        [updates(0.4), ledger(row("sgd", "update", "UPDATE", written="float32 master, float16 copy"))],
    ],
)
def test_silence(instruments):
    assert advise(instruments) == []


def test_the_place_and_the_order():
    overflow, flush = row("exp", counts=(10, 0, 0, 5, 1e5)), row("softmax", counts=(1000, 500, 0, 0, 1.0))
    found = advise([ledger(flush, overflow), updates(0.5), sizes(NO_MASTERS)])
    assert [a.text.split()[0] + " " + a.text.split()[1] for a in found] == ["Keep exp", "Keep FP32", "See whether"]
    assert found[0].where == "train.py:7, ops/x.py:9"


# ------------------------------------------------------------------------------------------------------------- products


def products_of(make, shape, policy=mp.MIXED):
    products = Products()
    with mp.device("meta"):
        model = make()
    predict(model, shape, policy=policy, instruments=[products])
    return products


def test_padding():
    products = products_of(lambda: nn.Sequential(nn.Linear(1024, 1000), nn.ReLU(), nn.Linear(1000, 100)), (64, 1024))
    (one,) = advise([products])
    assert one.text == "Pad the outputs of model.2 linear from 100 to 104"
    share = 3 * 100 / (3 * 100 + 2 * 1024)  # no gradient of the input is wanted
    assert one.why.startswith(f"100 is no multiple of 8: {share:.1%} of the operations")
    assert "104 takes 4.0% more of them" in one.why
    assert ", ops/dot.py:" in one.where
    assert one.source == "NVG 2.2"


def test_the_batch():
    (one,) = advise([products_of(lambda: nn.Linear(512, 512), (60, 512))])
    assert one.text == "Choose a batch with 64 rows instead of 60"
    assert "100.0% of the operations" in one.why
    assert "64 takes 6.7% more" in one.why


def test_a_batch_of_images_is_no_matter():
    """NVG 2.2 asks for the channels of a convolution, and for all three dimensions of other products."""
    assert advise([products_of(lambda: nn.Conv2d(16, 32, 3), (60, 16, 32, 32))]) == []
    (one,) = advise([products_of(lambda: nn.Conv2d(20, 32, 3), (60, 20, 32, 32))])
    assert one.text == "Pad the inputs of model conv2d from 20 to 24"


def test_what_is_not_worth_padding():
    assert advise([products_of(lambda: nn.Conv2d(3, 64, 3), (8, 3, 32, 32))]) == []  # 3 colours to 8
    assert advise([products_of(lambda: nn.Conv2d(64, 64, 3, groups=64), (8, 64, 32, 32))]) == []  # depthwise
    assert advise([products_of(lambda: cnn.network(1, 28, 28, 10), (64, 1, 28, 28))]) == []  # 10 classes: 0.04 %
    assert advise([products_of(lambda: nn.Linear(63, 64), (60, 63), mp.FP32)]) == []  # the model is FP32


def beside(evaluate=0, baseline=None, hidden=1024, outputs=1000, batch=64, steps=20, policy=mp.MIXED, rate=1e-3):
    """An audit of a training; beside it an FP32 baseline, before or behind it, and an evaluation."""
    rng = np.random.default_rng(0)
    x, labels = mp.tensor(rng.standard_normal((batch, 32))), mp.tensor(rng.integers(0, 5, batch))

    def run(policy):
        mp.manual_seed(0)
        model = policy.cast(nn.Sequential(nn.Linear(32, hidden), nn.ReLU(), nn.Linear(hidden, outputs)))
        optimizer, scaler = optim.SGD(model.parameters(), rate), optim.StaticLossScaler(1024.0)
        with mp.use(policy):
            for _ in range(steps):
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


@pytest.mark.parametrize("baseline", [None, "before", "behind"])
def test_a_baseline_and_an_evaluation_beside_it_change_nothing(baseline):
    """Outputs of 100 are worth padding; a batch of 250 that only an evaluation had, and FP32's products, are not."""
    alone = advise(beside(outputs=100, hidden=2048, steps=2))
    assert [one.text for one in alone] == ["Pad the outputs of model.2 linear from 100 to 104"]
    found = advise(beside(evaluate=250, baseline=baseline, outputs=100, hidden=2048, steps=2))
    assert [one._replace(where="") for one in found] == [one._replace(where="") for one in alone]


def test_a_toy_is_left_in_peace():
    assert advise(beside(hidden=60, outputs=5, batch=60, steps=2)) == []
    assert advise(beside(hidden=60, outputs=5, batch=60, steps=2, policy=mp.FP32)) == []


@pytest.mark.parametrize("baseline", [None, "before", "behind"])
def test_updates_lost_without_a_master_spoil_a_run_whatever_runs_beside_it(baseline):
    a = beside(baseline=baseline, hidden=64, outputs=8, policy=mp.NO_MASTER, rate=1e-4)
    (one,) = advise(a)
    assert one.rule == "masters_missing" and one.importance >= SPOILS
    assert str(a).partition("\n")[0].endswith("and are lost: it has no FP32 master.")


# -------------------------------------------------------------------------------------------------------- the real ones


def train(policy, scaler, steps=2, rule=optim.SGD, factor=1.0, weights=1.0, hidden=16):
    mp.manual_seed(0)
    model = policy.cast(nn.Sequential(nn.Linear(16, hidden), nn.LayerNorm(hidden), nn.Linear(hidden, 8)))
    with mp.no_grad():
        model[0].weight.copy_(weights * model[0].weight.master)
    optimizer = rule(model.parameters())
    x = policy.cast(mp.tensor(factor * np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)))
    instruments = Ledger(), ByteLedger(), Products()
    with mp.use(policy), mp.audit(*instruments) as a:
        for _ in range(steps):
            scaler.scale(ops.mse_loss(model(x), ops.zeros(8, 8))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return a


def texts(audit):
    return [a.text for a in advise(audit)]


def test_a_healthy_run():
    assert texts(train(mp.MIXED, optim.StaticLossScaler(1024))) == []
    for name in {"BF16", "FP8"} & mp.POLICIES.keys():
        assert texts(train(mp.POLICIES[name], optim.NoLossScaler(), hidden=2**12)) == []


def test_a_model_in_fp32():
    (one,) = texts(train(mp.FP32, optim.NoLossScaler(), hidden=2**16))
    assert one.startswith("Train in mixed precision")
    assert texts(train(mp.FP32, optim.NoLossScaler())) == []  # a toy would gain nothing


def test_pure_fp16():
    found = texts(train(mp.PURE_FP16, optim.StaticLossScaler(1024), rule=optim.Adam))
    for start in (
        "Accumulate in FP32: tinymp.study.change(policy, accumulate=float32)",
        "Accumulate in FP32: tinymp.study.change(policy, reduce=float32)",
        "Keep the optimizer's state in FP32",
        "Keep the parameters of normalisation layers in FP32",
    ):
        assert sum(text.startswith(start) for text in found) == 1, start


def test_without_loss_scaling():
    found = texts(train(mp.MIXED, optim.StaticLossScaler(2.0**-13), factor=1e-2))
    assert any(text.startswith("Raise the loss scale") for text in found)


def test_an_overflow():
    found = advise(train(mp.MIXED, optim.StaticLossScaler(1.0), factor=1000.0, weights=1000.0))
    assert found[0].text.startswith("Keep linear of model.0 within FP16")
    assert "test_advice.py:" in found[0].where
