"""Eight programs whose loss looks healthy and whose gradients do not: the audit names op, line and cause."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim

pytestmark = pytest.mark.cpu

# The loss of h (16, 32), whose first three rows are 0, and of a recurrent layer; "#" marks the line to name. The op
# whose backward breaks, the cause; and the line mended
FAULTS = {
    "root of a sum of squares": (
        "ops.sqrt((h * h).sum(1)).float().mean()  #",
        "sqrt",
        "its slope at 0 is infinite",
        "ops.sqrt((h * h).sum(1) + 1e-4).float().mean()",
    ),
    "root of a magnitude": (
        "ops.sqrt(h.abs()).float().mean()  #",
        "sqrt",
        "its slope at 0 is infinite",
        "ops.sqrt(h.abs() + 1e-4).float().mean()",
    ),
    "power": (
        "(h.abs() ** 0.5).float().mean()  #",
        "pow",
        "its slope at 0 is infinite",
        "((h.abs() + 1e-4) ** 0.5).float().mean()",
    ),
    "tiny norm": (
        "(h / (h.norm(dim=1, keepdim=True) + 1e-7)).float().sum()  #",
        "div",
        "its divisor is nearly 0",
        "(h / (h.norm(dim=1, keepdim=True) + 1e-3)).float().sum()",
    ),
    "rows of zeros": (
        "ops.normalize(h, dim=1).float().sum()  #",
        "cast",
        "a row of zeros is divided by eps",
        "ops.normalize(h, dim=1, eps=1e-3).float().sum()",
    ),
    "branch not taken": (
        "r = ops.sqrt(h)  #\nops.where(h > 0.1, r, ops.zeros_like(r)).float().mean()",
        "sqrt",
        "it is given a negative number",
        "r = ops.sqrt(ops.where(h > 0.1, h, ops.ones_like(h)))\nr.float().mean()",
    ),
    "log near 0": (
        "ops.log(h.abs() * 0.1 + 6e-8).float().sum()  #",
        "log",
        "its argument is 0, or nearly",
        "ops.log(h.abs() * 0.1 + 1e-3).float().sum()",
    ),
    "exploding recurrence": (
        "z = h\nfor _ in range(40):\n    z = ops.tanh(rec(z * 6.0))  #\nz.float().square().mean()",
        "linear",
        "from call to call of this line gradients grow, ",
        "z = h\nfor _ in range(3):\n    z = ops.tanh(rec(z))\nz.float().square().sum()",
    ),
}


def audited(code, scaler=None):
    """Two steps; without a scaler, of optimizer.step alone."""
    mp.manual_seed(0)
    net, rec = mp.MIXED.cast(nn.Linear(16, 32)), mp.MIXED.cast(nn.Linear(32, 32))
    x, keep = np.random.default_rng(0).standard_normal((16, 16)), np.arange(16.0)[:, None] > 2
    x, keep = mp.tensor(x).half(), mp.tensor(keep.astype("f4")).half()
    optimizer = optim.SGD([*net.parameters(), *rec.parameters()], lr=1e-4)
    *lines, last = code.splitlines()
    code = compile("\n".join([*lines, f"loss = {last}"]), "program.py", "exec")
    with mp.audit() as a:
        for _ in range(2):
            exec(code, names := {"ops": ops, "rec": rec, "h": net(x) * keep})
            if scaler is None:
                names["loss"].backward()
                optimizer.step(allow_missing=True)
            else:
                scaler.scale(names["loss"]).backward()
                scaler.step(optimizer, allow_missing=True)
                scaler.update()
            optimizer.zero_grad()
    return a


@pytest.mark.parametrize(("code", "op", "cause", "mended"), FAULTS.values(), ids=FAULTS)
def test_op_line_and_cause_are_named_and_the_line_mended_is_silent(code, op, cause, mended):
    at = f"program.py:{next(i for i, line in enumerate(code.splitlines(), 1) if line.endswith('#'))}"
    scaled = audited(code, optim.StaticLossScaler(64.0))
    (one,) = [x for x in scaled.advise() if x.rule in ("steps_that_no_scale_mends", "loss_scale_too_large")]
    assert one.why.startswith("2 of 2 steps were skipped for this: ")
    assert f" {op} (" in one.why and at in one.why and cause in one.why
    alone = audited(code)
    assert ", the weight " in str(alone.crash) and op in str(alone.crash)
    assert at in str(alone.crash) and (cause in str(alone.crash) or op == "linear")
    assert not [x for x in alone.advise() if x.rule.startswith("loss_scale")]  # no loss scale is at fault
    sound = audited(mended, optim.StaticLossScaler(64.0))
    assert not sound.scale.skipped and not audited(mended).crash.found


def test_infinities_that_a_relu_stops_are_no_fault():
    a = audited("ops.sqrt(ops.relu(h)).float().mean()", optim.StaticLossScaler(64.0))
    assert not a.scale.skipped and a.advise() == [] and a.histograms.best_scale() > 64
