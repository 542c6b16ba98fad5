"""Further rules, schedules and samplers: rules and schedules against PyTorch, over 20 steps and more."""

import numpy as np
import pytest

from oracle import host
from tinymp import data, nn, optim

RULES = [
    ("Adadelta", {"weight_decay": 0.1}), ("Adamax", {"weight_decay": 0.1}), ("NAdam", {}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}), ("RAdam", {"weight_decay": 0.1}),
    ("RAdam", {"betas": (0.9, 0.6)}),
]  # fmt: skip
SCHEDULES = [
    ("ExponentialLR", (0.9,)), ("ConstantLR", ()), ("PolynomialLR", (7, 2.0)),
    ("MultiplicativeLR", (lambda t: 1 - 1 / (t + 2),)), ("CosineAnnealingWarmRestarts", (3, 2, 0.01)),
    ("CosineAnnealingWarmRestarts", (4,)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "options"), RULES)
def test_rules_are_those_of_pytorch(rule, options):
    torch, rng = pytest.importorskip("torch"), np.random.default_rng(0)
    p = nn.Parameter(start := rng.standard_normal(50))
    q = torch.nn.Parameter(torch.tensor(start))
    ours, theirs = getattr(optim, rule)([p], **options), getattr(torch.optim, rule)([q], **options)
    for _ in range(20):
        g = rng.standard_normal(50)
        p.grad, q.grad = g, torch.tensor(g)
        ours.step()
        theirs.step()
    # PyTorch keeps NAdam's product of momenta in FP32: 20 roundings of it
    tolerance = 20 * 2.0**-24 * 20 * 2e-3 if rule == "NAdam" else 1e-12
    assert np.abs(host(p.master) - q.detach().numpy()).max() < tolerance
    state, expected = ours.state_dict()["state"][0], theirs.state_dict()["state"][0]
    assert state.keys() == expected.keys() - {"mu_product"}
    assert all(np.allclose(state[name], expected[name], rtol=1e-12) for name in state)


@pytest.mark.parametrize(("schedule", "args"), SCHEDULES)
def test_schedules_are_those_of_pytorch(schedule, args):
    torch = pytest.importorskip("torch")
    a, b = optim.SGD([nn.Parameter([1.0])], lr=0.3), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.3)
    ours, theirs = getattr(optim, schedule)(a, *args), getattr(torch.optim.lr_scheduler, schedule)(b, *args)
    for _ in range(30):
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-12)
        b.step()
        ours.step()
        theirs.step()


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
        loop = data.DataLoader(
            items, batch_sampler=data.BatchSampler(data.RandomSampler(items, replacement, 10**10), 4, True)
        )
        assert [len(batch) for batch, _ in zip(loop, range(3))] == [4, 4, 4]
    assert sorted(data.SubsetRandomSampler([1, 5, 7])) == [1, 5, 7]
    drawn = list(data.WeightedRandomSampler([0, 1, 3], 4000, generator=np.random.default_rng(0)))
    assert 0 not in drawn and abs(drawn.count(2) - 3000) < 5 * (4000 * 3 / 16) ** 0.5  # five standard deviations
    assert list(data.BatchSampler(data.SequentialSampler(items), 4, True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    joined = data.ConcatDataset([items, [20]])
    assert (len(joined), joined[9], joined[10], joined[-1]) == (11, 9, 20, 20)
