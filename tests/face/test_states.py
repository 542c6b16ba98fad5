"""The state of PyTorch's optimizers: training that began there goes on here, step for step as it does there."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, optim
from tinymp.torch.states import from_pytorch

pytestmark = [pytest.mark.peer, pytest.mark.cpu]
torch = pytest.importorskip("torch")

CASES = [
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 1e-2}),
    ("Adam", {"lr": 1e-2, "amsgrad": True, "weight_decay": 0.01, "betas": (0.5, 0.99)}),
    ("AdamW", {"lr": 1e-2, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 1e-3, "momentum": 0.9, "centered": True}),
    ("Adagrad", {"lr": 1e-2, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("RAdam", {}),
]


def both(rule, options):
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    ours = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    # two groups, with a rate of their own
    optimizers = [
        kind([{"params": m[0].parameters()}, {"params": m[2].parameters(), "lr": 2e-3}], **options)
        for kind, m in ((getattr(torch.optim, rule), theirs), (getattr(optim, rule), ours))
    ]
    return theirs, ours, *optimizers


def step(make, model, optimizer, x, y):
    optimizer.zero_grad()
    ((model(make(x)) - make(y)) ** 2).mean().backward()
    optimizer.step()


@pytest.mark.parametrize(("rule", "options"), CASES)
def test_training_goes_on(rule, options):
    torch.manual_seed(0)
    theirs, ours, their_rule, our_rule = both(rule, options)
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal((6, 5), "float32"), rng.standard_normal((6, 3), "float32")) for _ in range(20)]
    for x, y in batches[:10]:
        step(torch.from_numpy, theirs, their_rule, x, y)
    ours.load_state_dict(theirs.state_dict())
    our_rule.load_state_dict(from_pytorch(our_rule, their_rule.state_dict()))
    assert [g["lr"] for g in our_rule.param_groups] == [options.get("lr", our_rule.defaults["lr"]), 2e-3]
    for x, y in batches[10:]:
        step(torch.from_numpy, theirs, their_rule, x, y)
        step(mp.from_numpy, ours, our_rule, x, y)
    for name, x in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], x.numpy(), rtol=1e-6, atol=1e-6)


def test_a_scalar_and_bfloat16():
    for dtype, shape in ((torch.bfloat16, (3,)), (torch.float32, ())):
        theirs = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
        rule = torch.optim.Adam([theirs])
        theirs.sum().backward()
        rule.step()
        ours = optim.Adam([nn.Parameter(np.ones(shape, "float32"))])
        ours.load_state_dict(from_pytorch(ours, rule.state_dict()))
        found = ours.state_dict()["state"][0]
        assert found["step"] == 1 and found["exp_avg"].shape == shape
        np.testing.assert_array_equal(found["exp_avg"], rule.state_dict()["state"][0]["exp_avg"].float().numpy())


def test_what_does_not_fit():
    theirs, ours, their_rule, our_rule = both("AdamW", {})
    adam = optim.Adam([{"params": m.parameters()} for m in (ours[0], ours[2])])
    with pytest.raises(ValueError, match=r"expected the state of Adam, .* use optim\.AdamW"):
        from_pytorch(adam, their_rule.state_dict())
    one = torch.optim.AdamW(theirs.parameters())
    with pytest.raises(ValueError, match=r"expected groups with \[2, 2\] parameters, got \[4\]"):
        our_rule.load_state_dict(from_pytorch(our_rule, one.state_dict()))
