"""Pickles and checkpoints of an earlier version load, wherever their classes live now, and what they hold goes on."""

import lzma
import pickle
from pathlib import Path

import numpy as np
import pytest

import tinymp as mp
from earlier.earlier import network, steps
from tinymp import nn, optim

pytestmark = pytest.mark.cpu
GONE = ("BahdanauAttention", "LuongAttention", "PositionalEncoding", "RowConv", "SampledSoftmaxLoss", "scaler.Observed")
HELD = pickle.loads(lzma.decompress(Path(__file__).with_name("earlier.xz").read_bytes()))
CLOSE = {"rtol": 2.0**-8}  # the same steps elsewhere: FP16 numbers of 11 bits, in sums of up to 8


@pytest.mark.parametrize("name", [name for name in HELD["pickles"] if not name.endswith(GONE)])
def test_a_pickle_loads(name):
    found, (kind, _, which) = pickle.loads(HELD["pickles"][name]), name.partition(".")
    if kind == "policy":
        assert found == getattr(mp, which)
    elif kind == "nn":
        assert type(found) is getattr(nn, which)
        state, expected = found.state_dict(), HELD["states"][name]
        assert state.keys() == expected.keys()
        assert all(np.array_equal(state[key], expected[key]) for key in expected)
    elif kind == "training":
        assert type(found[1]) is getattr(optim, which)
        losses = steps(*found, 3)
        assert np.isfinite(losses).all()
        assert which != "Adam" or np.allclose(losses, HELD["losses"], **CLOSE)
    elif kind in ("scaler", "schedule"):
        assert type(found) is getattr(
            optim, which if kind == "schedule" else f"{which.replace('None', 'No')}LossScaler"
        )
    else:
        assert type(found).__module__.startswith("tinymp")


def test_what_is_held_is_as_it_was():
    tensor, rows, data, part, result = (
        pickle.loads(HELD["pickles"][name])
        for name in ("tensor", "SparseRows", "data.TensorDataset", "data.Subset", "StepResult")
    )
    assert (tensor.numpy().tolist(), tensor.requires_grad) == ([1, 2], True)
    assert (rows.shape, np.asarray(rows.values).tolist()) == ((3, 2), [[1, 1]])
    assert [*map(int, data[2])] == [*map(int, part[1])] == [2, 2]
    assert result is optim.StepResult.APPLIED


def test_a_checkpoint_goes_on(tmp_path):
    (tmp_path / "checkpoint").write_bytes(HELD["checkpoint"])
    model = mp.MIXED.cast(network())
    optimizer, scaler = optim.Adam(model.parameters(), lr=0.1), optim.DynamicLossScaler()
    schedule = optim.CosineAnnealingLR(optimizer, 9)
    mp.load(tmp_path / "checkpoint", model=model, optimizer=optimizer, scaler=scaler, schedule=schedule)
    assert np.allclose(steps(model, optimizer, scaler, 3), HELD["losses"], **CLOSE)


@pytest.mark.parametrize(
    ("layer", "place"),
    [
        (nn.RNN(2, 3), b"rnn"),
        (nn.EmbeddingBag(3, 2), b"embedding_bag"),
        (nn.TransformerEncoderLayer(4, 2, 8), b"transformer"),
        (nn.PixelShuffle(2), b"functions"),
        (nn.KLDivLoss(), b"loss"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_layer_that_has_moved_is_loaded_from_its_old_place(layer, place):
    new = pickle.dumps(layer, 2)
    here = type(layer).__module__.encode()
    old = new.replace(here, b"tinymp.nn." + place).replace(b"tinymp.nn.more.", b"tinymp.nn.")
    assert old != new and repr(pickle.loads(old)) == repr(layer)


OLD = {"_name": "", "_scale": 8.0, "_iteration": 3, "_history": [(1, 8.0, "why")], "_skips": 1, "_bad_losses": 2}


def test_a_pickle_from_before_there_was_a_state():
    new = optim.DynamicLossScaler(16.0)
    options = {name: value for name, value in new.__getstate__().items() if name not in ("_side", "_now")}
    old = object.__new__(type(new))
    old.__setstate__({**options, **OLD, "growth_tracker": 4, "_stuck": 0, "_said": 0, "_least": 0.0, "_most": 1e9})
    assert old.state == (8.0, 4, 1, 2) and (old.iteration, old.history) == (3, [(1, 8.0, "why")])
    assert old.rule == new.rule and old.state_dict().keys() == new.state_dict().keys()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("cycle", "OneCycleLR"),
        ("cycle", "ReduceLROnPlateau"),
        ("schedule", "LinearLR"),
    ],
)
def test_old_pickles_find_what_has_moved(module, name):
    now = getattr(optim, name)  # of optim/more: not there on the core alone
    assert pickle.loads(f"ctinymp.optim.{module}\n{name}\n.".encode()) is now
