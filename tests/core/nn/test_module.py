"""Module: what it is made of, saving and loading, casting, and its messages."""

import copy
import pickle

import numpy as np
import pytest

import tinymp as mp
from oracle import host, on_cpu_if_bf16
from tinymp import nn

SOME = "FP32", "MIXED", "BF16", "NO_MASTER"  # BF16 needs ml_dtypes


def model():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(8, 3)))


NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "3.1.weight", "3.1.bias"]
STATE = [*NAMES[:4], "1.running_mean", "1.running_var", "1.num_batches_tracked", *NAMES[4:]]


class Tied(nn.Module):
    """Two layers that share one weight, beside a buffer that is saved and one that is not."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.again = self.second
        self.scale = nn.Parameter(np.ones(3, "float32"))
        self.register_buffer("mask", mp.tensor([0.0, -np.inf, 1.0]))
        self.register_buffer("scratch", mp.tensor([1, 2]), persistent=False)
        self.register_parameter("absent", None)
        self.plain = mp.tensor([1.0])


def test_names_and_order():
    m = model()
    assert [name for name, _ in m.named_parameters()] == [p.name for p in m.parameters()] == NAMES
    assert [name for name, _ in m.named_buffers()] == STATE[4:7]
    assert [name for name, _ in m.named_modules()] == ["", "0", "1", "2", "3", "3.0", "3.1"]
    assert [name for name, _ in m.named_children()] == ["0", "1", "2", "3"] and list(m.children()) == list(m)
    assert [name for name, _ in m.named_parameters(prefix="net", recurse=False)] == []
    assert [name for name, _ in m[0].named_parameters(prefix="net", recurse=False)] == ["net.weight", "net.bias"]
    assert [p.name for p in m[3].parameters()] == NAMES[4:]  # the longest name stays, until it moves
    assert [p.name for p in nn.ModuleDict({"head": m[3][1]}).parameters()] == ["head.weight", "head.bias"]


def test_shared_parts_count_once_and_own_parts_come_first():
    m = Tied()
    assert [name for name, _ in m.named_parameters()] == ["scale", "first.weight", "second.bias"]
    assert [name for name, _ in m.named_parameters(remove_duplicate=False)] == [
        "scale", "first.weight", "second.weight", "second.bias", "again.weight", "again.bias",
    ]  # fmt: skip
    assert [name for name, _ in m.named_children()] == ["first", "second"]
    assert [name for name, _ in m.named_buffers()] == ["mask", "scratch"]
    assert {"second.weight", "again.bias"} <= m.state_dict().keys()
    assert not {"scratch", "absent", "plain"} & m.state_dict().keys()
    m.absent = nn.Parameter(np.zeros(2, "float32"))
    m.scale = m.first = None
    del m.again
    m.mask = mp.tensor([1.0])
    assert list(m.state_dict()) == ["absent", "mask", "second.weight", "second.bias"]


@pytest.mark.parametrize("policy", [on_cpu_if_bf16(mp.POLICIES[n]) for n in SOME if n in mp.POLICIES], ids=str)
@pytest.mark.parametrize("protocol", [None, 2, 5])
def test_copies_are_equal_and_apart(policy, protocol):
    """Also those of pickle's protocol 5, whose arrays lie in memory that was read-only."""
    m = policy.cast(Tied())
    other = copy.deepcopy(m) if protocol is None else pickle.loads(pickle.dumps(m, protocol))
    assert other.second.weight is other.first.weight
    np.testing.assert_equal(other.state_dict(), m.state_dict())
    for p, q in zip(m.parameters(), other.parameters(), strict=True):
        assert mp.backend.writeable(p.array) == mp.backend.writeable(q.array)
    with mp.no_grad():
        other.first.weight.zero_()
    assert m.first.weight.array.any() and m.first.weight.master.any()
    shallow = copy.copy(m.first.weight)
    assert shallow.array is m.first.weight.array and shallow.master is m.first.weight.master


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda m: m.frist, AttributeError, "did you mean first"),
        (lambda m: setattr(m, "scale", mp.tensor([1.0])), TypeError, "expected a Parameter or None"),
        (lambda m: setattr(m, "children", nn.ReLU()), ValueError, r"would hide Module\.children"),
        (lambda m: m.register_buffer("a.b", None), ValueError, "without dots"),
        (lambda m: m.to(np.float16), TypeError, r"to: expected the name of a device.*policy\.cast"),
    ],
)
def test_refusals(act, error, message):
    with pytest.raises(error, match=message):
        act(Tied())


@pytest.mark.parametrize("wrap", [np.asarray, mp.tensor])
@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, mp.NO_MASTER])
def test_state_dict_round_trip(policy, wrap):
    mp.manual_seed(1)
    m, other = policy.cast(model()), policy.cast(model())
    state = m.state_dict()
    assert list(state) == STATE and all(type(a) is np.ndarray for a in state.values())
    assert other.load_state_dict({k: wrap(a) for k, a in state.items()}) == ([], [])
    np.testing.assert_equal(other.state_dict(), state)
    assert [a.dtype for a in other.state_dict().values()] == [a.dtype for a in state.values()]
    for p, q in zip(m.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
    state["0.weight"][...] = 7
    assert not (m[0].weight.master == 7).any(), "a state_dict is a copy"


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, mp.NO_MASTER], ids=str)
def test_loading_between_forward_and_backward_is_noticed(policy):
    m, norm = policy.cast(nn.Linear(2, 2)), nn.BatchNorm1d(2)
    for layer, y in (
        (m, m(policy.cast(mp.tensor(np.ones((1, 2), "float32"), requires_grad=True)))),
        (norm, mp.tensor([1.0, 2.0], requires_grad=True) * norm.running_var),
    ):
        layer.load_state_dict(layer.state_dict())
        with pytest.raises(RuntimeError, match="changed in place"):
            y.sum().backward()


def test_a_copy_that_was_rounded_stochastically_is_saved_and_loaded():
    mp.manual_seed(0)
    m = mp.STOCHASTIC_ROUNDING.cast(model())
    with mp.use(mp.STOCHASTIC_ROUNDING), mp.no_grad():
        m[0].weight.copy_(m[0].weight.master)
    m[3][1].weight.write(m[3][1].weight.master)  # to nearest
    state = m.state_dict()
    assert "0.weight.copy" in state and "3.1.weight.copy" not in state
    other = mp.STOCHASTIC_ROUNDING.cast(model())
    with mp.use(mp.STOCHASTIC_ROUNDING):
        other.load_state_dict(state)
    for p, q in zip(m.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(host(p.array), host(q.array))
        np.testing.assert_array_equal(host(p.master), host(q.master))
    for policy in (mp.FP32, mp.NO_MASTER, mp.MIXED):
        policy.cast(other).load_state_dict(state)
        same = (host(other[0].weight.array) == host(m[0].weight.array)).all()
        assert same == (policy is mp.MIXED)


def test_loading_without_strict_reports_and_loads_the_rest():
    m = nn.Linear(2, 1)
    assert m.load_state_dict({"bias": np.array([5.0]), "other": 1}, strict=False) == (["weight"], ["other"])
    assert m.bias.array == 5
    with pytest.raises(ValueError, match="fit Linear: missing: weight; unexpected: b, c"):
        m.load_state_dict({"bias": np.ones(3), "b": 1, "c": 2})


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": np.ones((2, 1))}, ValueError, r"'weight': expected shape \(1, 2\), got \(2, 1\)"),
        ({"weight": np.array([[1.0, np.nan]])}, TypeError, "'weight': expected finite values, got 1 infinite or nan"),
        ({"weight": np.array([["a", "b"]])}, TypeError, "'weight': expected real numbers"),
        ({"weight": np.full((1, 2), 65520.0)}, ValueError, "'weight': has values beyond the range of float16"),
        ({"weight": np.ones((1, 2)), "weight.copy": np.ones((1, 1))}, ValueError, r"'weight\.copy': expected shape"),
    ],
)
def test_a_failing_load_changes_nothing(change, error, message, strict):
    m = mp.MIXED.cast(nn.Linear(2, 1))
    before = m.state_dict()
    with pytest.raises(error, match=message):
        m.load_state_dict({"bias": np.ones(1)} | change, strict)
    np.testing.assert_equal(m.state_dict(), before)


def test_buffers_load_by_their_own_rules():
    m, norm = Tied(), nn.BatchNorm1d(2)
    m.load_state_dict(m.state_dict())  # the mask may stay infinite where it is
    with pytest.raises(TypeError, match="'mask': expected finite values, got 1"):
        m.load_state_dict(m.state_dict() | {"mask": np.array([np.inf, -np.inf, 1])})
    for change, error in (
        ({"num_batches_tracked": np.array(1.5)}, TypeError),
        ({"num_batches_tracked": np.array(2**64 - 1, "uint64")}, ValueError),
        ({"running_var": np.array([1, 1e300])}, ValueError),
    ):
        with pytest.raises(error, match=r"expected int64|beyond the range of"):
            norm.load_state_dict(norm.state_dict() | change)
    norm.load_state_dict(norm.state_dict() | {"num_batches_tracked": np.array(2**63 - 1, "uint64")})
    assert norm.num_batches_tracked.item() == 2**63 - 1


@pytest.mark.parametrize(
    ("policy", "weight", "norm", "master"),
    [
        (mp.FP32, "float32", "float32", False),
        (mp.MIXED, "float16", "float32", True),
        (mp.NO_MASTER, "float16", "float32", False),
        (mp.Policy("HALF", master=False, norm="float16"), "float16", "float16", False),
        (mp.Policy("FP64", storage="float64"), "float64", "float64", False),
    ],
)
def test_cast(policy, weight, norm, master):
    m = model()
    m.register_buffer("table", mp.tensor([1.0, 2.0]))
    exact = m.state_dict()["0.weight"]
    m[0].weight.grad = exact
    assert policy.cast(m) is m and m[0].weight.grad is None
    assert m[0].weight.dtype == m[3][1].bias.dtype == m.table.dtype == weight
    assert m[1].weight.dtype == m[1].running_var.dtype == norm and m[1].num_batches_tracked.dtype == "int64"
    assert (m[0].weight.master_nbytes > 0) is master and m[1].weight.master_nbytes == 0
    x = policy.cast(mp.tensor(np.ones((2, 1, 4, 4), "float32")))
    assert m(x).dtype == weight
    if master:
        np.testing.assert_array_equal(mp.FP32.cast(m).state_dict()["0.weight"], exact)


def test_a_cast_that_overflows_changes_nothing():
    m = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    nn.init.constant_(m[1].bias, 7e4)
    with pytest.raises(ValueError, match=r"MIXED.cast: '1.bias' has values beyond the range of float16"):
        mp.MIXED.cast(m)
    assert m[0].weight.dtype == "float32"
    assert mp.MIXED.cast(Tied()).mask.tolist() == [0, -np.inf, 1]  # infinities stay what they are


def test_sequential():
    a, b, c = nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)
    m, twice, x = nn.Sequential({"in": a, "act": b}).append(c), nn.Sequential(b, a, b), mp.tensor([[1.0, -1.0]])
    assert (len(m), m[0], m[-1], m.act) == (3, a, c, b)
    assert list(m[1:].state_dict()) == ["2.weight", "2.bias"] and isinstance(m[1:], nn.Sequential)
    assert len(twice) == 3 and len(list(twice.children())) == 2
    np.testing.assert_array_equal(m(x).numpy(), c(b(a(x))).numpy())
