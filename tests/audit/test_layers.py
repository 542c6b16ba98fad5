"""summary: shapes, parameters and multiply-adds by hand, bytes as predicted, and a model that is left as it is."""

import numpy as np
import pytest

import tinymp as mp
from audit.biglstm import BigLSTM
from tinymp import nn, ops
from tinymp.audit import predict

pytestmark = pytest.mark.cpu


def convolutional():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


def test_layers_by_hand():
    model = convolutional()
    found = mp.summary(model, (4, 3, 8, 8))
    assert [(x.path, x.kind, x.output) for x in found.layers] == [
        ("", "Sequential", [(4, 10)]),
        ("0", "Conv2d", [(4, 8, 8, 8)]),
        ("1", "BatchNorm2d", [(4, 8, 8, 8)]),
        ("2", "ReLU", [(4, 8, 8, 8)]),
        ("3", "Flatten", [(4, 512)]),
        ("4", "Linear", [(4, 10)]),
    ]
    assert [x.parameters for x in found.layers] == [0, 3 * 8 * 9 + 8, 16, 0, 0, 5130]
    assert [x.multiply_adds for x in found.layers] == [0, 4 * 64 * 8 * 27, 0, 0, 0, 4 * 512 * 10]
    assert found.parameters == 5370 and found.multiply_adds == 4 * 64 * 8 * 27 + 4 * 512 * 10
    assert all(x.calls == 1 for x in found.layers)
    shown = str(found)
    assert "Conv2d" in shown and "(4, 8, 8, 8)" in shown and "5,370" in shown and "under MIXED keeps" in shown
    assert not any(vars(m).get("_hooks") for m in model.modules())


@pytest.mark.parametrize("policy", mp.POLICIES.values(), ids=str)
def test_bytes_are_the_predicted_ones(policy):
    model = convolutional()
    before = {name: value.copy() for name, value in model.state_dict().items()}
    found = mp.summary(model, (4, 3, 8, 8), policy=policy, optimizer="sgd")
    assert found.bytes == predict(model, (4, 3, 8, 8), policy=policy, optimizer="sgd").predicted
    assert all(p.dtype == np.float32 for p in model.parameters())
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())


def test_recurrent_shared_and_uncalled_parts():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.spare = nn.Linear(4, 4), nn.Linear(2, 2)
            self.rnn = nn.LSTM(4, 4)

        def forward(self, x):
            y, state = self.rnn(self.first(self.first(x)))
            return {"y": y, "state": state}

    found = {x.path: x for x in mp.summary(Twice(), (5, 3, 4)).layers}
    assert (found["first"].calls, found["first"].multiply_adds) == (2, 2 * 15 * 16)
    assert found["rnn"].multiply_adds == 2 * 15 * 4 * 16 and found["rnn"].output == [(5, 3, 4), (1, 3, 4), (1, 3, 4)]
    assert found["spare"].calls == 0 and found[""].output == found["rnn"].output
    assert "not called" in str(mp.summary(Twice(), (5, 3, 4)))
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert mp.summary(tied, (1, 4)).parameters == 16 + 8


def test_a_model_of_any_size():
    with mp.device("meta"):
        model = BigLSTM()
    words = np.broadcast_to(0, (20, 1024))
    found = mp.summary(model, words, loss=lambda m, x: m(x), optimizer="adagrad")
    assert found.parameters == sum(p.numel() for p in model.parameters()) > 1.7e9
    assert found.multiply_adds > 1e12


def test_without_parameters_or_gradients():
    found = mp.summary(nn.Sequential(nn.ReLU(), nn.Flatten()), (2, 3, 4))
    assert found.layers[-1].output == [(2, 12)] and found.bytes == {}
    frozen = nn.Linear(3, 2).requires_grad_(False)
    assert mp.summary(frozen, (5, 3)).multiply_adds == 30
    assert "keeps" not in str(mp.summary(frozen, (5, 3)))


def test_refused():
    with pytest.raises(TypeError, match="summary: expected a Module, got function"):
        mp.summary(ops.relu, (1, 2))
    with pytest.raises(ValueError, match="summary: expected input"):
        mp.summary(nn.Linear(3, 2), (5, 4))
