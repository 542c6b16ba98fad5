"""Parameter: the master and the working copy agree, whoever writes."""

import pickle

import numpy as np
import pytest

import tinymp as mp
from oracle import host
from tinymp import nn

FINE = 1 + 2.0**-20  # exact in FP32, 1 in FP16


def mixed(*shape):
    return mp.MIXED.cast(nn.Parameter(np.zeros(shape, "float32")))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.write(mp.tensor(np.full(3, FINE, "float32")).array),
        lambda p: p.copy_(np.full(3, FINE, "float32")),
        lambda p: p.__setitem__(slice(None), FINE),
        lambda p: nn.init.constant_(p, FINE),
    ],
    ids=["write", "copy_", "setitem", "init"],
)
def test_every_way_to_write_keeps_master_and_copy_together(change):
    p = mixed(3)
    with mp.no_grad():
        change(p)
        assert (p.master == np.float32(FINE)).all()
        assert (p.array == 1).all()
        assert p.dtype == "float16" and mp.backend.writeable(p.array) == (p.device != "cpu")
        p.zero_()
    assert not p.master.any()
    assert not p.array.any()


@pytest.mark.cpu  # CuPy has no read-only arrays
def test_the_copy_alone_cannot_be_changed():
    """A change that missed the master would be lost at the next step: it raises instead, or reaches both."""
    p = mp.MIXED.cast(nn.Parameter(np.ones((2, 2), "float32")))
    for write in (
        lambda: p.array.fill(3),
        lambda: p.numpy().fill(3),
        lambda: p.array.__isub__(1),
        lambda: np.asarray(p).__setitem__(0, 3),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    np.testing.assert_array_equal(p.numpy(), 1)
    p.array = p.array * 1.0004883  # rounds to a neighbour in FP16, and lies between two in FP32
    assert p.master.dtype == np.float32
    np.testing.assert_array_equal(p.array, host(p.master).astype("float16"))
    with pytest.raises(ValueError, match=r"expected shape \(2, 2\), got \(3,\)"):
        p.array = np.ones(3, "float32")
    with pytest.raises(ValueError, match="does not fit FP16"):
        p.array = np.full((2, 2), 1e6, "float32")
    p = mp.FP32.cast(p)
    p.array.fill(5)  # now it is all there is
    assert p.master[0, 0] == 5


@pytest.mark.parametrize("policy", [mp.MIXED, mp.NO_MASTER, mp.FP32], ids=str)
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (lambda p: np.zeros((2, 1), p.dtype), ValueError, r"Parameter.data: expected shape \(2, 3\), got \(2, 1\)"),
        (lambda p: 1.0, ValueError, r"Parameter.data: expected shape \(2, 3\), got \(\)"),
        (lambda p: [[0.0], [1.0, 2.0]], ValueError, "Parameter.data: expected numbers in rows of equal length"),
        (lambda p: np.zeros((2, 3), complex), TypeError, "Parameter.data: expected real numbers"),
    ],
)
def test_data_of_another_kind_is_refused(policy, value, error, message):
    p = policy.cast(nn.Parameter(np.ones((2, 3), "float32")))
    before = p.array
    with pytest.raises(error, match=message):
        p.array = value(p)
    assert p.array is before
    assert (host(p.array) == 1).all()
    p.array = mp.tensor(np.full((2, 3), 2, str(p.dtype)))  # a Tensor's array will do
    assert (host(p.array) == 2).all()
    assert (host(p.master) == 2).all()


@pytest.mark.parametrize("policy", [mp.MIXED, mp.NO_MASTER, mp.FP32], ids=str)
@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.data.copy_(np.full(3, FINE, "float32")),
        lambda p: p.data.__setitem__(slice(None), FINE),
        lambda p: p.data.zero_().add_(FINE),
        lambda p: p.data.add_(1).mul_(FINE / 4),
        lambda p: p.data.clamp_(max=FINE),
        lambda p: nn.init.constant_(p.data, FINE),
    ],
    ids=["copy_", "setitem", "zero_", "add_", "clamp_", "init"],
)
def test_what_is_written_into_data_reaches_master_and_copy(policy, change):
    p = policy.cast(nn.Parameter(np.full(3, 3, "float32")))
    before, version = p.array, p.version
    change(p)
    exact = np.float32(FINE) if p.master.dtype == np.float32 else 1
    assert (p.master == exact).all() and (host(p.array) == (1 if p.dtype == "float16" else exact)).all()
    assert p.array is before and p.version == p.data.version > version
    y = p * p
    p.data.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward(mp.ones_like(y))


@pytest.mark.parametrize("policy", [mp.MIXED, mp.NO_MASTER, mp.FP32], ids=str)
def test_weights_can_be_set_aside_and_given_back(policy):
    """backup = p.data; p.data = average; ...; p.data = backup, as averages of weights are evaluated with PyTorch."""
    p = policy.cast(nn.Parameter(np.full(3, FINE, "float32")))
    backup = p.data
    p.data = p.data * 2
    assert (host(p.master) == 2 * np.float32(FINE)).all() == (policy is not mp.NO_MASTER)
    assert (host(p.array) == 2).all() == (p.dtype == "float16")
    p.data = backup
    assert (host(p.master) == (1 if policy is mp.NO_MASTER else np.float32(FINE))).all()
    with pytest.raises(AttributeError):
        p.data.data = backup  # of nobody


def test_the_update_that_programs_write_on_data():
    p, rate = nn.Parameter(np.arange(3, dtype="float32")), 0.5
    (p * p).sum().backward()
    p.data -= rate * p.grad
    np.testing.assert_array_equal(p.numpy(), [0, 0, 0])
    assert p.requires_grad and p.is_leaf and not p.data.requires_grad and type(p.data) is not nn.Parameter
    m = nn.Module()
    m.kept = p.data
    assert not list(m.parameters())


@pytest.mark.cpu
def test_data_is_copied():
    p, other = nn.Parameter(np.ones(3, "float32")), np.zeros(3, "float32")
    other.flags.writeable = False
    for policy in (mp.FP32, mp.MIXED):
        p = policy.cast(p)
        p.data = other
        assert not p.master.any() and not np.shares_memory(p.array, other)
        p.write(np.ones(3, "float32"))
    assert not other.any()


def test_new_data_starts_a_new_count_of_changes():
    p = nn.Parameter(np.ones(3, "float32"))
    y = p * p
    p.array = p.array * 2
    with mp.no_grad():
        p.zero_()
    y.backward(np.ones(3, "float32"))  # it has saved the old array, which nobody changed
    assert p.grad.tolist() == [2, 2, 2]


@pytest.mark.cpu
def test_a_parameter_owns_its_memory():
    array = np.ones(3, "float32")
    p = nn.Parameter(array)
    p.write(np.zeros(3, "float32"))
    assert array.sum() == 3
    assert nn.Parameter(np.broadcast_to(np.float32(1), (3,))).array.flags.writeable


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_it_lies_where_layers_lie(gpu, device):
    with mp.device(device):
        assert nn.Parameter(np.ones(2)).device == nn.Linear(1, 1).weight.device == device
    there = mp.tensor([1.0], device=device)
    assert nn.Parameter(there).device == mp.tensor(there).device == device  # a Tensor stays where it is
    with mp.device("cpu" if device == "gpu" else "gpu"):
        assert nn.Parameter(there).device == mp.tensor(there).device == device


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_more_than_a_thousand_bytes(protocol):
    """NumPy reads such an array where its bytes are, and lets nobody set its flag again."""
    p = nn.Parameter(np.ones((100, 10), "float32"))
    q = pickle.loads(pickle.dumps(p, protocol=protocol))
    with mp.no_grad():
        q.copy_(p * 2)
    np.testing.assert_array_equal(q.numpy(), 2 * p.numpy())
