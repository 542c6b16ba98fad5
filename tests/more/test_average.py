"""Averages of weights: PyTorch's swa_utils, by masters in mixed precision."""

import copy

import numpy as np
import pytest

import tinymp as mp
from oracle import host
from tinymp import nn, optim

torch = pytest.importorskip("torch")
swa = torch.optim.swa_utils


def pair(*layers):
    """The same layers here and in PyTorch."""
    ours, theirs = (
        space.Sequential(*[getattr(space, name)(*given) for name, *given in layers]) for space in (nn, torch.nn)
    )
    theirs.load_state_dict({name: torch.tensor(x) for name, x in ours.state_dict().items()})
    return ours, theirs


def moved(ours, theirs, step):
    """Both models with weights as after one more update."""
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        change = 0.01 * np.random.default_rng(step).standard_normal(p.shape).astype("float32")
        with mp.no_grad(), torch.no_grad():
            p.add_(mp.tensor(change))
            q.add_(torch.tensor(change))


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED], ids=str)
@pytest.mark.parametrize(
    ("function", "its"),
    [(None, None), (nn.get_ema_avg_fn(0.9), swa.get_ema_avg_fn(0.9)), (nn.get_swa_avg_fn(), None)],
)
def test_averages_are_pytorchs(policy, function, its):
    ours, theirs = pair(("Linear", 5, 4), ("BatchNorm1d", 4), ("Linear", 4, 2))
    policy.cast(ours)
    mine, other = nn.AveragedModel(ours, avg_fn=function), swa.AveragedModel(theirs, avg_fn=its)
    for step in range(20):
        moved(ours, theirs, step)
        mine.update_parameters(ours)
        other.update_parameters(theirs)
    assert mine.n_averaged.item() == other.n_averaged.item() == 20
    for p, q in zip(mine.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(host(p.master), q.detach().numpy(), rtol=1e-6, atol=1e-8)
        assert (host(p.array) == host(p.master).astype(p.dtype)).all()
    x = mp.tensor(np.ones((3, 5), "float32")).to(policy.storage)
    np.testing.assert_array_equal(mine.eval()(x).numpy(), mine.module(x).numpy())


def test_statistics_of_a_loader():
    ours, theirs = pair(("Linear", 4, 3), ("BatchNorm1d", 3))
    batches = [np.random.default_rng(i).standard_normal((6, 4)).astype("float32") for i in range(5)]
    ours.eval(), theirs.eval()
    nn.update_bn([(mp.tensor(x), 0) for x in batches], ours)
    swa.update_bn([torch.tensor(x) for x in batches], theirs)
    assert not ours.training and ours[1].momentum == theirs[1].momentum == 0.1
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(getattr(ours[1], name).numpy(), getattr(theirs[1], name).numpy(), rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"anneal_epochs": 3, "anneal_strategy": "linear"}])
def test_rates_are_pytorchs(options):
    """Beside another schedule, as programs write it."""
    rates = []
    for kind, space, schedules, average in (
        (nn.Linear(1, 1), optim, optim, optim),
        (torch.nn.Linear(1, 1), torch.optim, torch.optim.lr_scheduler, swa),
    ):
        optimizer = space.SGD(kind.parameters(), lr=0.1)
        first, last = schedules.ExponentialLR(optimizer, 0.9), average.SWALR(optimizer, swa_lr=0.05, **options)
        seen = []
        for epoch in range(12):
            if space is torch.optim:
                optimizer.step()
            (first if epoch < 4 else last).step()
            seen.append(optimizer.param_groups[0]["lr"])
        rates.append(seen)
    np.testing.assert_allclose(*rates, rtol=1e-6)


def test_a_schedule_goes_on_and_another_model_is_refused():
    model = nn.Linear(2, 2)
    average = nn.AveragedModel(model)
    schedule = optim.SWALR(optim.SGD(model.parameters(), lr=1.0), 0.1)
    schedule.step()
    again = optim.SWALR(optim.SGD(model.parameters(), lr=0.7), 0.1)
    again.load_state_dict(copy.deepcopy(schedule.state_dict()))
    assert (again.last_epoch, again.get_last_lr()) == (1, [0.7])
    with pytest.raises(ValueError, match=r"update_parameters: expected the entries weight, bias, got weight$"):
        average.update_parameters(nn.Linear(2, 2, bias=False))
