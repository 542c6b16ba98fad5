"""Arrays from elsewhere: memory that another library owns, and numbers in other forms than this machine's."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import backend, nn
from tinymp.data import TensorDataset

pytestmark = pytest.mark.cpu
VALUES = np.arange(1, 5, dtype="float32")


class Foreign:
    """An array of another library, as NumPy sees one: it owns the memory and has a dtype, but little else; its `base`
    is an array of the same library, and not of NumPy.
    """

    base = property(lambda self: Foreign(self.kept))

    def __init__(self, values):
        self.kept = values
        self.dtype, self.__array_interface__ = values.dtype, values.__array_interface__


def memmap(tmp_path):
    VALUES.tofile(tmp_path / "values")
    return np.memmap(tmp_path / "values", "float32", "r+")


def torch(values):
    return pytest.importorskip("torch").from_numpy(values.copy())


SOURCES = {
    "another library": lambda tmp_path: np.asarray(Foreign(VALUES.copy())),
    "memmap": memmap,
    "read-only and not aligned": lambda tmp_path: np.frombuffer(b"." + VALUES.tobytes(), "float32", offset=1),
    "DLPack": lambda tmp_path: np.from_dlpack(VALUES.copy()),
    "torch, a part": lambda tmp_path: torch(VALUES)[:4].view(2, 2).numpy(),
    "torch, DLPack": lambda tmp_path: np.from_dlpack(torch(VALUES)),
}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.peer] * ("torch" in name)) for name in SOURCES])
def elsewhere(request, tmp_path):
    return SOURCES[request.param](tmp_path)


def test_an_array_from_elsewhere_is_as_any_other(elsewhere):
    """Views of it share a change counter, gradients never its memory, and the owner is one of NumPy's arrays."""
    given = np.array(elsewhere)
    x = mp.from_numpy(elsewhere)
    assert np.shares_memory(x.array, elsewhere) and not np.shares_memory(mp.tensor(elsewhere).array, elsewhere)
    views = [x.reshape(-1), x.reshape(-1)[1:], x.unsqueeze(0), x.detach()]
    assert isinstance(backend.owner_of(x.array), np.ndarray)
    assert len({id(backend.owner_of(v.array)) for v in [x, *views]}) == 1
    product = mp.tensor(given, requires_grad=True) * views[0].reshape(x.shape)
    if elsewhere.flags.writeable:
        with mp.no_grad():
            x[...] = given + 1
        np.testing.assert_array_equal(elsewhere, given + 1)
        with pytest.raises(RuntimeError, match="mul: a tensor that backward needs was changed in place"):
            product.sum().backward()
        elsewhere[...] = given
    else:
        for change in (lambda: x.copy_(given), x.zero_, lambda: x.__setitem__(0, 1.0)):
            with pytest.raises(ValueError, match="expected a tensor whose memory can be written to, got a read-only"):
                change()
    for f in (lambda w: w, lambda w: w.reshape(-1).reshape(x.shape), lambda w: w + 0.0):
        w = mp.tensor(np.zeros_like(given), requires_grad=True)
        f(w).backward(elsewhere)
        assert np.array_equal(w.grad, given) and not np.shares_memory(w.grad.array, elsewhere)
        w.grad += 1
        np.testing.assert_array_equal(elsewhere, given)


@pytest.mark.peer
def test_pytorch_shares_memory_both_ways():
    torch = pytest.importorskip("torch")
    theirs = torch.arange(4.0)
    x = mp.from_numpy(theirs.numpy())
    with mp.no_grad():
        x[0] = 7.0
    torch.from_dlpack(x)[1] = 8.0
    assert theirs.tolist() == x.tolist() == mp.tensor(theirs).tolist() == [7, 8, 2, 3]
    for refused in (theirs.requires_grad_(), torch.ones(2, dtype=torch.complex64), torch.ones(2, device="meta")):
        with pytest.raises((TypeError, RuntimeError), match=r"^tensor: "):
            mp.tensor(refused)


NUMBERS = "f2", "f4", "f8", "i4", "u2"
OTHERS = {
    "structured": np.zeros(3, [("a", "f4")]),
    "void": np.zeros(3, "V2"),  # as wide as BF16, whose kind is "V", too
    "complex": np.ones(3, "c8"),
    "object": np.array([1, 2, 3], object),
    "masked": np.ma.array(np.ones(3, "f4"), mask=[0, 1, 0]),
}


def parameter(grad=None):
    p = nn.Parameter(np.zeros(3, "f8" if getattr(grad, "nbytes", 0) == 24 else "f4"))
    p.grad = grad
    return p


def written(x):
    t = mp.zeros(3, dtype="float64")
    t[...] = x
    return t


def backward(x):
    w = mp.zeros(3, dtype=x.dtype.newbyteorder("=") if x.dtype.kind == "f" else None, requires_grad=True)
    w.backward(x)
    return w.grad_array


def loaded(x):
    model = nn.Module()
    model.register_buffer("buffer", mp.zeros(3, dtype="float64"))
    model.load_state_dict({"buffer": x})
    return model.buffer


# Where arrays enter: what errors begin with, the call, and which kinds of numbers it takes in another byte order.
ENTRANCES = {
    "tensor": (mp.tensor, "fiu"),
    "from_numpy": (mp.from_numpy, ""),
    "Parameter": (nn.Parameter, "f"),
    "load_state_dict": (loaded, "fiu"),
    "TensorDataset": (lambda x: TensorDataset(x)[:3][0], "fiu"),
    "setitem": (written, "fiu"),
    "copy_": (lambda x: mp.zeros(3, dtype="float64").copy_(x), "fiu"),
    "backward": (backward, "f"),
    "grad": (lambda x: parameter(x).grad, "f"),
    "getitem": (lambda x: mp.arange(9)[x], "iu"),
    "add": (lambda x: mp.zeros(3) + x, ""),
}


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", ENTRANCES)
def test_numbers_in_another_byte_order_are_taken_or_refused_by_name(name, dtype):
    pytest.importorskip("tinymp.ops.more.errors")  # what has errors begin with the name that was called
    enter, takes = ENTRANCES[name]
    native, x = (np.array([1, 2, 3]).astype(order + dtype) for order in "=>")
    if np.dtype(dtype).kind not in takes:
        with pytest.raises((TypeError, ValueError, RuntimeError), match=rf"^{name}\b"):
            enter(x)
        return
    y = np.asarray(enter(x))
    assert y.dtype.isnative and y.dtype == np.asarray(enter(native)).dtype
    assert y.reshape(-1)[:3].tolist() == [1, 2, 3]


@pytest.mark.parametrize("form", OTHERS)
@pytest.mark.parametrize("name", ENTRANCES)
def test_what_holds_no_real_numbers_is_refused_by_name(name, form):
    pytest.importorskip("tinymp.ops.more.errors")  # what has errors begin with the name that was called
    with pytest.raises((TypeError, ValueError, RuntimeError), match=rf"^{name}\b"):
        ENTRANCES[name][0](OTHERS[form])


@pytest.mark.parametrize("form", [name for name in OTHERS if "complex" not in name])
def test_a_checkpoint_that_could_not_be_read_is_not_written(tmp_path, form):
    mp.save(tmp_path / "saved", x=VALUES)
    with pytest.raises(TypeError, match=r"^save: expected `x` to hold numbers of float16, .*, got"):
        mp.save(tmp_path / "saved", x=OTHERS[form])
    np.testing.assert_array_equal(mp.load(tmp_path / "saved")["x"], VALUES)
