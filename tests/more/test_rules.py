"""Further rules, schedules and samplers: rules and schedules against PyTorch, over 20 steps and more."""

import numpy as np
import pytest

from tinymp import data, nn, optim
from tinymp.torch.states import from_pytorch

SCHEDULES = [
    ("ExponentialLR", (0.9,)), ("ConstantLR", ()), ("PolynomialLR", (7, 2.0)), ("StepLR", (5, 0.5)), ("LinearLR", ()),
    ("MultiStepLR", ([9, 3, 9],)), ("LinearLR", (0.25, 1.0, 4)), ("LambdaLR", (lambda t: 1 / (1 + t),)),
    ("MultiplicativeLR", (lambda t: 1 - 1 / (t + 2),)), ("CosineAnnealingWarmRestarts", (3, 2, 0.01)),
    ("CosineAnnealingWarmRestarts", (4,)), ("OneCycleLR", (1.0, 30)), ("CosineAnnealingLR", (30,)),
]  # fmt: skip


def test_a_variance_that_rounding_makes_negative_is_0():
    """With equal gradients, after many steps; PyTorch's weights then become NaN."""
    p = nn.Parameter(np.zeros(64, "float32"))
    optimizer, g = optim.RMSprop([p], alpha=0.8, centered=True), np.linspace(0.1, 1, 64, dtype="float32")
    for _ in range(100):
        p.grad = g
        optimizer.step()
    assert np.isfinite(p.numpy()).all()


# Options that change in the middle of a training: what each rule keeps of the past, PyTorch keeps
CHANGING = {
    "betas": lambda k: (0.5 + 0.04 * k, 0.9 + 0.005 * k),
    "lr": lambda k: 0.1 / (k + 1),
    "momentum": lambda k: 0.9 - 0.05 * k,
    "dampening": lambda k: 0.05 * k,
    "weight_decay": lambda k: 0.1 * (k % 3),
    "rho": lambda k: 0.9 - 0.05 * k,
    "alpha": lambda k: 0.9 - 0.05 * k,
    "momentum_decay": lambda k: 0.01 * k,
    "lr_decay": lambda k: 0.01 * k,
    "eps": lambda k: 10.0 ** -(k % 8 + 1),
    "maximize": lambda k: k % 2 == 1,
}
TRAINED = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2}), ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"amsgrad": True}), ("AdamW", {}), ("RMSprop", {"momentum": 0.9, "centered": True}), ("Adagrad", {}),
    ("Adadelta", {}), ("Adamax", {}), ("NAdam", {}), ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}), ("RAdam", {"betas": (0.9, 0.6)}),
]  # fmt: skip


def _changes(rule, options):
    torch = pytest.importorskip("torch")
    known = getattr(torch.optim, rule)([torch.nn.Parameter(torch.ones(1))], **options).param_groups[0]
    cycled = ["cycle"] if known.keys() & {"momentum", "betas"} else []
    wrong = {"dampening"} if options.get("nesterov") else set()
    return [*[name for name in CHANGING if name in known and name not in wrong], *cycled]


@pytest.mark.parametrize(("rule", "options"), TRAINED)
def test_options_that_change_are_as_in_pytorch(rule, options):
    """With OneCycleLR, which changes beta1 or the momentum, too; and after the state went through a state_dict."""
    torch = pytest.importorskip("torch")
    for change in _changes(rule, options):
        rng = np.random.default_rng(0)
        p = nn.Parameter(start := rng.standard_normal(7))
        q = torch.nn.Parameter(torch.tensor(start))
        ours, theirs = getattr(optim, rule)([p], **options), getattr(torch.optim, rule)([q], **options)
        cycles = []
        if change == "cycle":
            schedules = (optim, ours), (torch.optim.lr_scheduler, theirs)
            cycles = [module.OneCycleLR(optimizer, 0.1, total_steps=20) for module, optimizer in schedules]
        for k in range(14):
            g = rng.standard_normal(7)
            p.grad, q.grad = g, torch.tensor(g)
            ours.step()
            theirs.step()
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=0, atol=1e-6, err_msg=f"{change}, step {k}")
            for one in cycles:
                one.step()
            if change != "cycle":
                for optimizer in (ours, theirs):
                    optimizer.param_groups[0][change] = CHANGING[change](k)
            if k == 7:
                state, ours = ours.state_dict(), getattr(optim, rule)([p], **options)
                ours.load_state_dict(state)
                cycles[:1] = [_on(cycles[0], ours)] if cycles else []
            if k == 10:  # a training that began in PyTorch goes on here
                ours.load_state_dict(from_pytorch(ours, theirs.state_dict()))
        state, expected = ours.state_dict()["state"][0], theirs.state_dict()["state"][0]
        assert all(np.allclose(state[name], expected[name], rtol=1e-5, atol=1e-6) for name in expected)


def _on(schedule, optimizer):
    """The same schedule of another optimizer."""
    state, group = schedule.state_dict(), dict(optimizer.param_groups[0])
    made = optim.OneCycleLR(optimizer, 0.1, total_steps=20)
    made.load_state_dict(state)
    optimizer.param_groups[0].update(group)
    return made


@pytest.mark.parametrize(("schedule", "args"), SCHEDULES)
def test_schedules_are_those_of_pytorch(schedule, args):
    """A skipped step leaves no trace; half way another one goes on from the state, whose optimizer had another rate."""
    torch = pytest.importorskip("torch")
    a, b = optim.SGD([nn.Parameter([1.0])], lr=0.3), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.3)
    ours, theirs = getattr(optim, schedule)(a, *args), getattr(torch.optim.lr_scheduler, schedule)(b, *args)
    for k in range(29):
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-12) and ours.last_epoch == k
        b.step()
        ours.step(optim.StepResult.SKIPPED)
        ours.step(optim.StepResult.APPLIED)
        theirs.step()
        if k == 9:
            a, state = optim.SGD([nn.Parameter([1.0])], lr=7.0), ours.state_dict()
            ours = getattr(optim, schedule)(a, *args)
            ours.load_state_dict(state)
            assert a.param_groups[0]["lr"] == ours.get_last_lr()[0]


def test_samplers():
    items = list(range(10))
    assert list(data.SequentialSampler(items)) == items == sorted(data.RandomSampler(items))
    for n in (1, 31, 32, 70):  # with each part of 32 drawn when it is read
        drawn, whole = np.random.default_rng(n), np.random.default_rng(n)
        assert list(data.RandomSampler(items, True, n, drawn)) == whole.integers(len(items), size=n).tolist()
        rounds = [whole.permutation(len(items)) for _ in range(-(-n // len(items)))]
        assert list(data.RandomSampler(items, False, n, drawn)) == np.concatenate(rounds)[:n].tolist()
        assert drawn.bit_generator.state == whole.bit_generator.state
    for replacement in (True, False):  # of a number that stands for no end
        sampler = data.BatchSampler(data.RandomSampler(items, replacement, 10**10), 4, True)
        loop = data.DataLoader(items, batch_sampler=sampler)
        assert [len(batch) for batch, _ in zip(loop, range(3))] == [4, 4, 4]
    assert sorted(data.SubsetRandomSampler([1, 5, 7])) == [1, 5, 7]
    drawn = list(data.WeightedRandomSampler([0, 1, 3], 4000, generator=np.random.default_rng(0)))
    assert 0 not in drawn and abs(drawn.count(2) - 3000) < 5 * (4000 * 3 / 16) ** 0.5  # five standard deviations
    assert list(data.BatchSampler(data.SequentialSampler(items), 4, True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    joined = data.ConcatDataset([items, [20]])
    assert (len(joined), joined[9], joined[10], joined[-1]) == (11, 9, 20, 20)
