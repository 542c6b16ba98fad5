"""Tensor, Op and backward(): the autograd, its contracts and its errors."""

import gc
import weakref

import numpy as np
import pytest

import tinymp as mp
from tinymp import ops
from tinymp.autograd import Op
from tinymp.precision import POINTWISE, widen
from tinymp.tensor import Tensor

F16, F32, F64 = np.float16, np.float32, np.float64


def leaf(*values, dtype=F32):
    return mp.tensor(np.array(values, dtype), requires_grad=True)


def grad_of(y, *leaves):
    y.backward(np.ones(y.shape, y.dtype))
    return [x.grad.tolist() for x in leaves]


class Identity(Op):
    """y = x;  dx = what `gradient` makes of dy. `saves` and `result` say what it keeps and returns."""

    kind = POINTWISE

    def forward(self, x, *, gradient=lambda dy: dy, saves=(), result=None, loss_scale=None):
        self.save(*saves)
        self.gradient, self.loss_scale = gradient, loss_scale
        return x + 0 if result is None else result

    def backward(self, dy):
        return self.gradient(dy)


@pytest.mark.parametrize("dtype", [F16, F32])
def test_leaves_accumulate_over_calls(dtype):
    x = leaf(1.0, dtype=dtype)
    for n in range(1, 4):
        (x * 2).backward(np.array([1024 + n], dtype))
        total = sum(2 * (1024 + i) for i in range(1, n + 1))  # FP16 would round 6156 and 4102
        assert x.grad.dtype == (dtype if n == 1 else F32) and x.grad.tolist() == [dtype(total) if n == 1 else total]
    x.zero_grad()
    assert x.grad is None and x.grad_scale == 1


def test_gradients_meet_in_fp32_and_are_rounded_once():
    x = leaf(1.0, dtype=F16)
    a = x * 1  # an inner tensor: its gradient is summed before it travels on
    y = Identity.apply(a, gradient=lambda dy: dy * F16(2048))
    for _ in range(4):
        y = y + Identity.apply(a)
    assert F16(F16(F16(F16(2048) + F16(1)) + F16(1)) + F16(1)) + F16(1) == 2048  # what FP16 partial sums would give
    y.backward(np.ones(1, F16))
    assert x.grad.dtype == F16
    assert x.grad.tolist() == [2052]


def test_a_long_chain_of_ops():
    """Neither walking it backward nor freeing it recurses."""
    x = leaf(1.0)
    for walked in (True, False):
        y = x
        for _ in range(20_000):
            y = -y
        if walked:
            y.backward(np.ones(1, F32))
        del y
    assert x.grad.tolist() == [1]


def test_a_freed_graph_raises():
    x = leaf(2.0)
    a = x * x
    y, z = a.sum(), (a * 2).sum()
    y.backward()
    with pytest.raises(
        RuntimeError, match=r"mul: its saved arrays were freed by an earlier backward\(\); run the forward pass"
    ):
        y.backward()  # sum saved nothing
    with pytest.raises(RuntimeError, match="mul: its saved arrays were freed"):
        z.backward()  # it shares `a` with y
    assert x.grad.tolist() == [4]


def test_retain_graph():
    x = leaf(2.0, 3.0)
    y = ops.exp(x * x).sum()
    y.backward(retain_graph=True)
    once = x.grad_array.copy()
    y.backward()
    assert x.grad.tolist() == (2 * once).tolist()
    with pytest.raises(RuntimeError, match="exp: its saved arrays were freed"):
        y.backward(retain_graph=True)
    y = ops.exp(x)
    y.backward(np.ones(2, F32), retain_graph=True)
    with mp.no_grad():
        y.detach().zero_()
    with pytest.raises(RuntimeError, match="exp: a tensor that backward needs was changed in place"):
        y.backward(np.ones(2, F32))


@pytest.mark.parametrize(
    ("make", "gradient", "error", "message"),
    [
        (lambda x: x * 2, None, RuntimeError, "needs an explicit gradient"),
        (lambda x: x * 2, np.ones(3, F32), ValueError, r"expected gradient to be float32 \(2,\)"),
        (lambda x: x * 2, np.ones(2, F64), ValueError, r"expected gradient to be float32 \(2,\)"),
        (lambda x: x.detach() * 2, None, RuntimeError, "does not require a gradient"),
    ],
)
def test_backward_refuses(make, gradient, error, message):
    with pytest.raises(error, match=message):
        make(leaf(1.0, 2.0)).backward(gradient)


def test_data_shares_memory_and_the_count_of_changes():
    x = leaf(1.0, 2.0)
    y, before = x * x, x.data
    assert isinstance(before, Tensor) and not before.requires_grad and np.shares_memory(before.array, x.array)
    before.mul_(2.0)
    assert x.tolist() == [2, 4] and x.version == before.version == 1
    with pytest.raises(RuntimeError, match="mul: a tensor that backward needs was changed in place"):
        y.sum().backward()
    y = x * x
    x.data = mp.tensor([3.0, 5.0])  # the new memory has a count of its own
    x.data.zero_()
    assert grad_of(y, x) == [[4, 8]]
    x.data = np.ones((2, 2), F16)
    assert x.dtype == F16 and x.requires_grad and x.is_leaf
    for value, message in (([1, 2], "expected floating values"), ("a", "expected real numbers")):
        with pytest.raises(TypeError, match=message):
            x.data = value


@pytest.mark.cpu  # it shares memory with NumPy's arrays
def test_a_gradient_is_a_tensor():
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    g = x.grad
    assert isinstance(g, Tensor) and g is x.grad and g.array is x.grad_array and not g.requires_grad and g.is_leaf
    g.add_(1.0)
    x.grad *= 2
    x.grad.data /= 2  # as processes that share gradients write it
    x.grad[0] = 0.0
    assert x.grad_array.tolist() == [0, 5]
    (x * x).sum().backward()
    assert x.grad.tolist() == [2, 9]
    for given in (mp.tensor([1.0, 2.0]), np.array([1, 2], F32)):
        x.grad = given
        assert x.grad.tolist() == [1, 2] and np.shares_memory(x.grad.array, np.asarray(given))
    x.grad = None
    assert x.grad is None and x.grad_array is None and (x * 2).grad is None


def test_in_place_is_for_leaves_outside_the_graph():
    x = leaf(1.0, 2.0)
    y = x * 2
    for write in (lambda t: t.__setitem__(0, 5.0), lambda t: t.zero_(), lambda t: t.copy_(np.ones(2, F32))):
        for t in (x, y):
            with pytest.raises(RuntimeError, match="this tensor is part of a graph; change leaves inside"):
                write(t)
    with mp.no_grad():
        x[0] = 5.0
        assert x.tolist() == [5, 2]
        assert x.copy_(mp.tensor([7.0, 8.0])).tolist() == [7, 8]
        assert x.zero_().tolist() == [0, 0]
        with pytest.raises(RuntimeError, match="part of a graph"):
            y[0] = 1.0


def test_saved_arrays_are_released_while_backward_passes():
    x = leaf(*range(100))
    alive = []

    def probe(dy):
        gc.collect()
        alive.append(saved() is not None)
        return dy

    y = ops.exp(Identity.apply(x, gradient=probe))
    saved = weakref.ref(y.array)  # exp saves its own result
    y = Identity.apply(y.reshape(10, 10), gradient=probe).sum()
    gc.collect()
    y.backward()
    assert alive == [True, False]


def test_gradients_of_leaves_never_alias():
    x, w, passed = leaf(*[1.0] * 4), leaf(*[2.0] * 4), ops.ones(4).array
    (x + w).backward(passed)  # both get dy itself
    assert not np.shares_memory(x.grad.array, w.grad.array)
    assert not np.shares_memory(x.grad.array, passed)
    assert not np.shares_memory(w.grad.array, passed)
    for y in (x, x.reshape(2, 2), x.transpose(0, 0)):
        x.zero_grad()
        passed = ops.ones(y.shape).array
        y.backward(passed)
        assert not np.shares_memory(x.grad.array, passed)
        x.grad *= 2
        assert (passed == 1).all()


def test_a_gradient_does_not_keep_that_of_others_in_memory():
    x, w = leaf(1.0), leaf(*[2.0] * 1000)
    (ops.cat([x, w]) * 2).backward(np.ones(1001, F32))
    assert mp.backend.owner_of(x.grad_array).nbytes == x.nbytes


def test_an_op_must_not_save_an_fp32_copy():
    x = leaf(1.0, dtype=F16)
    with pytest.raises(TypeError, match="identity: saved float32 for backward, but storage is float16"):
        Identity.apply(x, saves=(widen(x.array),))
    Identity.apply(x, saves=(x.array, np.array([1]), None, 2.5))  # storage, integers, nothing, numbers


@pytest.mark.parametrize(
    ("given", "got"), [(None, "NoneType"), (1.0, "float"), (Tensor([1.0]), "tinymp.*Tensor"), (np.ones(2), "float64")]
)
def test_a_backward_gives_arrays_like_the_arguments(given, got):
    with pytest.raises(RuntimeError, match=rf"the gradient of `input` must be an array, float32 \(1,\).* got {got}"):
        Identity.apply(leaf(1.0), gradient=lambda dy: given).sum().backward()


def test_an_op_takes_tensors_of_one_dtype():
    with pytest.raises(TypeError, match="mul: expected tensors of one dtype"):
        leaf(1.0, dtype=F16) * leaf(1.0)
    for combine in (lambda x, a: x * a, lambda x, a: a - x, lambda x, a: a @ x):
        with pytest.raises(TypeError, match=r"got numpy.ndarray; wrap it with tinymp.tensor"):
            combine(leaf(1.0, 2.0), np.ones(2, F32))
    y = F64(2) * leaf(1.0, dtype=F16) - F32(3)
    assert isinstance(y, Tensor) and y.dtype == F16


def test_gradients_carry_their_loss_scale():
    x, w = leaf(1.0), leaf(2.0)
    (Identity.apply(x * w, loss_scale=8.0) + 1).backward()
    assert x.grad_scale == w.grad_scale == 8
    Identity.apply(x * 2, loss_scale=8.0).backward()  # one scale: accumulates
    with pytest.raises(RuntimeError, match="loss scales 8 and 4 meet"):
        Identity.apply(x * 2, loss_scale=4.0).backward()
    with pytest.raises(RuntimeError, match="loss scales 8 and 1 meet"):
        (x * 2).backward()
    x.zero_grad()
    (x * 2).backward()
    assert x.grad_scale == 1


@pytest.mark.cpu
def test_tensor_copies_and_from_numpy_shares():
    a = np.ones(3, F32)
    for source in (a, mp.from_numpy(a), memoryview(a), a[::-1]):
        made = mp.tensor(source)
        assert not np.shares_memory(made.array, a)
        assert made.dtype == F32
    assert np.shares_memory(mp.from_numpy(a).array, a)
    assert np.shares_memory(Tensor(a).array, a)
    assert mp.tensor(a, dtype=F16, requires_grad=True).half().dtype == F16


def test_numbers():
    one, two = mp.tensor(1.5), mp.tensor([[2]])
    assert (one.item(), float(one), int(one), f"{one:.2f}") == (1.5, 1.5, 1, "1.50")
    assert [10, 20, 30][two] == 30 and two.tolist() == [[2]]
    assert bool(two) and not bool(mp.tensor(0.0)) and (one == None) is False  # noqa: E711
    assert [x.item() for x in leaf(1.0, 2.0)] == [1, 2]
    assert len({one, two, one}) == 2  # hashed by identity
    for refused in (float, bool):
        with pytest.raises(ValueError, match="expected one element"):
            refused(leaf(1.0, 2.0))
