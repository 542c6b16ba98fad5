"""Parameter: the master and the working copy agree, whoever writes."""

import pickle

import numpy as np
import pytest

import tinymp as mp
from oracle import host
from tinymp import nn

FINE = 1 + 2.0**-20  # exact in FP32, 1 in FP16
POLICIES = pytest.mark.parametrize("policy", [mp.MIXED, mp.NO_MASTER, mp.FP32], ids=str)
WRITES = {
    "write": lambda p: p.write(mp.tensor(np.full(3, FINE, str(p.master.dtype))).array),
    "copy_": lambda p: p.copy_(np.full(3, FINE, "float32")),
    "setitem": lambda p: p.__setitem__(slice(None), FINE),
    "init": lambda p: nn.init.constant_(p, FINE),
    "data.copy_": lambda p: p.data.copy_(np.full(3, FINE, "float32")),
    "data.setitem": lambda p: p.data.__setitem__(slice(None), FINE),
    "data.add_": lambda p: p.data.zero_().add_(FINE),
    "data.mul_": lambda p: p.data.add_(1).mul_(FINE / 4),
    "data.clamp_": lambda p: p.data.clamp_(max=FINE),
    "data.init": lambda p: nn.init.constant_(p.data, FINE),
}


def filled(policy, value=3, shape=3):
    return policy.cast(nn.Parameter(np.full(shape, value, "float32")))


@POLICIES
@pytest.mark.parametrize("way", WRITES)
def test_every_way_to_write_keeps_master_and_copy_together_and_is_noticed(way, policy):
    p = filled(policy)
    before, version = p.array, p.version
    with mp.no_grad():
        WRITES[way](p)
    exact = np.float32(FINE) if p.master.dtype == np.float32 else 1
    assert (p.master == exact).all() and (host(p.array) == (1 if p.dtype == "float16" else exact)).all()
    assert p.version == p.data.version > version and (p.array is before or not way.startswith("data"))
    assert mp.backend.writeable(p.array) == (p.device != "cpu" or policy is not mp.MIXED)
    y = p * p
    p.data.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward(mp.ones_like(y))


@pytest.mark.cpu  # CuPy has no read-only arrays
def test_the_copy_alone_cannot_be_changed():
    """A change that missed the master would be lost at the next step: it raises instead, or reaches both."""
    p = filled(mp.MIXED, 1, (2, 2))
    for write in (lambda: p.array.fill(3), lambda: p.numpy().fill(3), lambda: np.asarray(p).__setitem__(0, 3)):
        with pytest.raises(ValueError, match="read-only"):
            write()
    np.testing.assert_array_equal(p.numpy(), 1)
    p.array = p.array * 1.0004883  # rounds to a neighbour in FP16, and lies between two in FP32
    assert p.master.dtype == np.float32
    np.testing.assert_array_equal(p.array, host(p.master).astype("float16"))
    p = mp.FP32.cast(p)
    p.array.fill(5)  # now it is all there is
    assert p.master[0, 0] == 5


@POLICIES
def test_weights_can_be_set_aside_and_given_back(policy):
    """backup = p.data; p.data = average; ...; p.data = backup, as averages of weights are evaluated with PyTorch."""
    p = filled(policy, FINE)
    backup = p.data
    p.data = p.data * 2
    assert (host(p.master) == 2 * np.float32(FINE)).all() == (policy is not mp.NO_MASTER)
    assert (host(p.array) == 2).all() == (p.dtype == "float16")
    p.data = backup
    assert (host(p.master) == (1 if policy is mp.NO_MASTER else np.float32(FINE))).all()
    with pytest.raises(AttributeError):
        p.data.data = backup  # of nobody


def test_the_update_that_programs_write_on_data():
    p = nn.Parameter(np.arange(3, dtype="float32"))
    y = p * p
    y.sum().backward()
    p.data -= 0.5 * p.grad
    np.testing.assert_array_equal(p.numpy(), [0, 0, 0])
    assert p.requires_grad and p.is_leaf and not p.data.requires_grad and type(p.data) is not nn.Parameter
    p, m = nn.Parameter(np.ones(3, "float32")), nn.Module()
    m.kept = p.data
    assert not list(m.parameters())
    y = p * p
    p.array = p.array * 2  # new data starts a new count of changes
    p.data.zero_()
    y.backward(np.ones(3, "float32"))
    assert p.grad.tolist() == [2, 2, 2]


@pytest.mark.cpu
def test_a_parameter_owns_its_memory():
    p, other = nn.Parameter(np.ones(3, "float32")), np.zeros(3, "float32")
    other.flags.writeable = False
    for policy in (mp.FP32, mp.MIXED):
        p = policy.cast(p)
        p.data = other
        assert not p.master.any() and not np.shares_memory(p.array, other)
        p.write(np.ones(3, "float32"))
    q = nn.Parameter(other)
    q.write(np.ones(3, "float32"))
    assert not other.any()
    assert nn.Parameter(np.broadcast_to(np.float32(1), (3,))).array.flags.writeable


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_more_than_a_thousand_bytes(protocol):
    """NumPy reads such an array where its bytes are, and lets nobody set its flag again."""
    p = nn.Parameter(np.ones((100, 10), "float32"))
    q = pickle.loads(pickle.dumps(p, protocol=protocol))
    with mp.no_grad():
        q.copy_(p * 2)
    np.testing.assert_array_equal(q.numpy(), 2 * p.numpy())
