"""An audit that listens to a part of a long run: one step in so many."""

import json

import pytest

import tinymp as mp
from job import Job, same
from tinymp import nn, ops, optim
from tinymp.events import here

pytestmark = pytest.mark.cpu


def test_one_step_in_so_many():
    plain, job = Job("cpu", scale=2.0**8), Job("cpu", scale=2.0**8)
    heard = []
    with mp.audit(every=4) as a:
        for i in range(10):
            heard.append(bool(here.inside))
            job.step(*job.batch(i))
    for i in range(10):
        plain.step(*plain.batch(i))
    same(job.state(), plain.state())
    assert heard == [i % 4 == 0 for i in range(10)]
    assert not here.observers and not here.inside
    assert {row.calls for row in a.ledger.filter(op="conv2d")} == {3}
    content = a.as_dict()
    assert content["summary"]["iterations"] == 10  # all are counted
    assert "Only one step in 4 was looked at" in str(a)
    assert {u["updates"] for u in content["updates"]} == {3}
    json.dumps(content)


@pytest.mark.parametrize("every", [1, 10])
def test_two_optimizers_are_heard_alike(every):
    models = [mp.MIXED.cast(nn.Linear(4, 1)) for _ in range(2)]
    optimizers = [optim.SGD(m.parameters(), lr=0.1) for m in models]
    x, heard = mp.MIXED.cast(mp.ones(3, 4)), []
    with mp.audit(every=every) as a:
        [model(x) for model in models]
        for _ in range(15):
            for model, optimizer in zip(models, optimizers):
                heard.append(bool(here.inside))
                ops.mse_loss(model(x).float(), mp.zeros(3, 1)).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert [i for i, on in enumerate(heard) if on] == ([0, 10, 11, 20, 21] if every > 1 else list(range(30)))
    assert a.as_dict()["summary"]["iterations"] == 15
