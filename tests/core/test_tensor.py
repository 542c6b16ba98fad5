"""Tensor, Op and backward(): the autograd, its contracts and its errors."""

import copy
import gc
import inspect
import pickle
import threading
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import nn, ops
from tinymp.autograd import Op
from tinymp.dtypes import float32
from tinymp.ops.more.random import fork_rng
from tinymp.precision import LOSS, POINTWISE, store, widen
from tinymp.tensor import Tensor
from watching import watch

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


class Halves(Op):
    """(x, -x): two outputs, of which one may go unused."""

    kind = POINTWISE

    def forward(self, x):
        return x + 0, -x

    def backward(self, dy, dz):
        self.seen = (dy is not None, dz is not None)
        parts = [p for p in (dy, None if dz is None else -dz) if p is not None]
        return store(sum(widen(p) for p in parts), like=parts[0])


# ------------------------------------------------------------------------------------------------ graphs of many shapes


def test_a_tensor_used_many_times():
    x = leaf(2.0, 3.0)
    assert grad_of(x * x + x * 3 - x, x) == [[2 * 2 + 2, 2 * 3 + 2]]


def test_diamond():
    x = leaf(2.0)
    a = x * x
    assert grad_of((a + 1) * (a - 1), x) == [[4 * 2.0**3]]  # x^4 - 1


@pytest.mark.parametrize("dtype", [F16, F32])
def test_leaves_accumulate_over_calls(dtype):
    x = leaf(1.0, dtype=dtype)
    for n in range(1, 4):
        (x * 2).backward(np.array([1024 + n], dtype))
        expected = sum(2 * (1024 + i) for i in range(1, n + 1))
        assert x.grad.dtype == (
            dtype if n == 1 else F32
        )  # FP32 from the second call on: FP16 would round 6156 and 4102
        assert x.grad.tolist() == [expected] if n > 1 else [F16(expected)]
    x.zero_grad()
    assert x.grad is None
    assert x.grad_scale == 1


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


@pytest.mark.cpu  # weak references tell of NumPy's arrays
def test_gradients_that_met_are_freed_before_the_op_behind_them_runs():
    met, left = [], []

    def meet(dy):
        dx = dy * F16(2)
        met.append(weakref.ref(dx))
        return dx

    def look(dy):
        left.extend(ref() for ref in met)
        return dy

    x = Identity.apply(leaf(1.0, 2.0, dtype=F16), gradient=look)
    (Identity.apply(x, gradient=meet) + Identity.apply(x, gradient=meet)).backward(np.ones(2, F16))
    assert left == [None, None]


def test_a_chain_of_50_000_ops():
    x = leaf(1.0)
    y = x
    for _ in range(50_000):
        y = Identity.apply(y)
    y.backward(np.ones(1, F32))
    assert x.grad.tolist() == [1]
    z = x
    for _ in range(50_000):
        z = Identity.apply(z)
    del y, z  # freeing it must not recurse either, walked backward or not


def test_two_runs_agree_bit_for_bit():
    def run():
        x, w = (
            mp.tensor(np.random.default_rng(i).standard_normal((7, 5)).astype(F16), requires_grad=True) for i in (1, 2)
        )
        y = x
        for _ in range(5):
            y = ops.exp(y * w) - y * x + y / (w * w + 1)
        y.backward(np.ones_like(y.array))
        return x.grad_array.tobytes(), w.grad_array.tobytes()

    assert run() == run()


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_outputs_that_nobody_uses(used):
    x = leaf(2.0, 3.0)
    outputs = Halves.apply(x)
    assert isinstance(outputs, tuple)
    y = outputs[used[0]] if len(used) == 1 else outputs[0] + outputs[1] * 2
    node = outputs[0].grad_fn
    assert grad_of(y, x) == [[{(0,): 1, (1,): -1, (0, 1): -1}[used]] * 2]
    assert node.seen == (0 in used, 1 in used)


def test_arguments_that_want_no_gradient():
    x, c = leaf(2.0), mp.tensor(np.array([3.0], F32))
    assert grad_of(x * c, x) == [[3]]
    assert c.grad is None
    assert grad_of(ops.where(mp.tensor([True]), x, c), x) == [[4]]  # 3 + 1: the second call added


# --------------------------------------------------------------------------------------------------- errors of backward


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


def test_backward_over_parts_of_a_graph_that_saved_nothing():
    """As in PyTorch: split, chunk, slices, reshape, + and * by a number are passed by every part's backward."""
    x = leaf(*[1.0] * 6)
    y = (x + 1).reshape(2, 3) * 2
    a, b = y.split(1)
    c, _ = y.reshape(-1).chunk(2)
    for part in (a, b, c, y[0], y[1:]):
        ops.exp(part * 0).sum().backward()
        part.sum().backward()
    assert x.grad.tolist() == [6, 6, 6, 4, 4, 4]


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
        (lambda x: x * 2, None, RuntimeError, r"backward: a tensor of shape \(2,\) needs an explicit gradient"),
        (lambda x: x * 2, np.ones(3, F32), ValueError, r"expected gradient to be float32 \(2,\) .* got float32 \(3,\)"),
        (lambda x: x * 2, np.ones(2, F64), ValueError, r"expected gradient to be float32 \(2,\) .* got float64 \(2,\)"),
        (lambda x: (x * 2).sum(), 1.0, ValueError, r"expected gradient to be float32 \(\) .* got float64 \(\)"),
        (lambda x: x * 2, [[1.0], [2.0, 3.0]], ValueError, "backward: expected numbers in rows of equal length"),
        (lambda x: x.detach() * 2, None, RuntimeError, "backward: this tensor does not require a gradient"),
        (lambda x: mp.tensor(1.0), None, RuntimeError, "does not require a gradient"),
        (lambda x: x.argmax(), None, RuntimeError, "does not require a gradient"),
    ],
)
def test_backward_refuses(make, gradient, error, message):
    with pytest.raises(error, match=message):
        make(leaf(1.0, 2.0)).backward(gradient)


def test_backward_takes_tensors_and_starts_at_leaves():
    x = leaf(1.0, 2.0)
    (x * 2).backward(mp.tensor(np.array([1, 2], F32)))
    assert x.grad.tolist() == [2, 4]
    one = leaf(5.0)
    one.backward()
    assert one.grad.tolist() == [1]


# --------------------------------------------------------------------------------------------- with and without a graph


def test_no_grad_and_enable_grad():
    x = leaf(1.0)
    with mp.no_grad():
        assert not mp.is_grad_enabled()
        assert not (x * 2).requires_grad
        with mp.enable_grad():
            assert mp.is_grad_enabled()
            assert (x * 2).requires_grad
        with pytest.raises(KeyError), mp.enable_grad():
            raise KeyError
        assert not mp.is_grad_enabled()
        y = x * 2
        assert y.is_leaf
        assert y.grad_fn is None
    assert mp.is_grad_enabled()


def test_no_grad_stays_in_its_thread():
    seen = []
    with mp.no_grad():
        thread = threading.Thread(target=lambda: seen.append((leaf(1.0) * 2).requires_grad))
        thread.start()
        thread.join()
    assert seen == [True]


def test_detach_and_clone():
    x = leaf(1.0, 2.0)
    y = (x * 2).detach()
    assert y.is_leaf
    assert not y.requires_grad
    assert np.shares_memory(x.detach().array, x.array)
    z = x.clone()
    assert not np.shares_memory(z.array, x.array)
    assert grad_of(z * 3, x) == [[3, 3]]


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


@pytest.mark.parametrize("part", ["data", "grad"])
@pytest.mark.parametrize(
    "idiom",
    [
        lambda x: x.max(1)[1],
        lambda x: x.std(),
        lambda x: x.var(0),
        lambda x: x.transpose(0, 1),
        lambda x: x.repeat(2, 1),
        lambda x: x.sort(1)[0],
        lambda x: x.sort(1)[1],
        lambda x: x.max(1, keepdim=True)[1].eq(x.argmax(1).view(-1, 1)).sum().item() / len(x),
        lambda x: 100.0 * (x.max(1)[1] == x.min(1)[1]).float().mean(),
        lambda x: x.norm(2).item(),
        lambda x: x.add_(1).mul_(2).clamp_(-1, 1),
        lambda x: x.zero_(),
    ],
    ids=["max", "std", "var", "transpose", "repeat", "sort", "places", "accuracy", "share", "norm", "add_", "zero_"],
)
def test_idioms_of_programs_for_pytorch_give_what_they_give_there(part, idiom):
    torch = pytest.importorskip("torch")
    mine, theirs = mp.tensor(randn(4, 3), dtype=F32), torch.tensor(randn(4, 3), dtype=torch.float32)
    for x in (mine.requires_grad_(), theirs.requires_grad_()):
        (x * x).sum().backward()
    got, expected = idiom(getattr(mine, part)), idiom(getattr(theirs, part))
    assert isinstance(got, Tensor) == isinstance(expected, torch.Tensor) and np.shape(got) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-6)
    np.testing.assert_allclose(getattr(mine, part).numpy(), getattr(theirs, part).numpy(), rtol=1e-6)


@pytest.mark.cpu  # it shares memory with NumPy's arrays
def test_a_gradient_is_a_tensor():
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    g = x.grad
    assert isinstance(g, Tensor) and g.array is x.grad_array and not g.requires_grad and g.is_leaf
    assert type(copy.deepcopy(g)) is Tensor and pickle.loads(pickle.dumps(g)).tolist() == [2, 4]
    g.add_(1.0)
    x.grad *= 2
    assert x.grad.tolist() == [6, 10] and g.tolist() == [3, 5]
    x.grad.data /= 2  # as processes that share gradients write it
    g = x.grad
    g.data = g.data.mul_(3.0)
    assert g.array is x.grad_array
    x.grad[0] = 0.0
    assert x.grad_array.tolist() == [0, 15]
    (x * x).sum().backward()
    assert x.grad.tolist() == [2, 19]
    x.grad.zero_()
    assert not x.grad_array.any()
    for given in (mp.tensor([1.0, 2.0]), np.array([1, 2], F32)):
        x.grad = given
        assert x.grad.tolist() == [1, 2] and np.shares_memory(x.grad.array, np.asarray(given))
    x.grad = None
    assert x.grad is None and x.grad_array is None and (x * 2).grad is None


def test_a_gradient_is_one_object_while_somebody_holds_it():
    w = leaf(1.0)
    w.sum().backward()
    assert w.grad is w.grad
    first = w.grad
    w.sum().backward()
    assert w.grad is not first and (w.grad.tolist(), first.tolist()) == ([2], [1])
    w.grad = None
    assert w.grad is None


def test_the_repr_of_a_gradient_says_which_loss_scale_it_carries():
    w = mp.nn.Parameter(np.ones(1, F32))
    optimizer, scaler = mp.optim.SGD([w], lr=1.0), mp.optim.StaticLossScaler(1024.0)
    scaler.scale((w * w).sum()).backward()
    scaled = w.grad
    shown = f"tensor([2048.], dtype=float32, device={w.device}, loss scale 1024)"
    assert repr(scaled) == shown and w.grad_scale == 1024
    scaler.unscale_(optimizer)
    assert repr(w.grad) == f"tensor([2.], dtype=float32, device={w.device})"
    assert "loss scale 1024" in repr(scaled) and "loss scale" not in repr(scaled * 2)


def test_copies_and_pickles_keep_the_array_and_the_gradient():
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2, 4]
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert (y.tolist(), y.grad.tolist(), y.requires_grad, type(y)) == ([1, 2], [2, 4], True, Tensor)
        assert not np.shares_memory(y.array, x.array)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "clamp", "masked_fill"])
def test_in_place_methods_write_what_their_functions_return(name):
    a, function = np.array([[0.25, 0.5], [1.0, 0.75]], F32), getattr(ops, name)
    given = {"clamp": (0.5, 0.75), "masked_fill": (mp.tensor(a > 0.5), 0.0)}.get(name, (2.0,))
    x, expected = mp.tensor(a), function(mp.tensor(a), *given)
    memory = x.array
    assert getattr(x, f"{name}_")(*given) is x
    assert x.array is memory and x.version == 1 and x.tolist() == expected.tolist()
    w = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match=f"^{name}_: this tensor is part of a graph"):
        getattr(w, f"{name}_")(*given)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda: mp.tensor([1.0]).add_(mp.ones(2)), ValueError, r"add_: expected source.shape == \(1,\), got \(2,\)"),
        (lambda: mp.tensor([1]).mul_(1.5), TypeError, "mul_: the result is float32, which int64 does not hold"),
        (lambda: mp.tensor([6e4], F16).mul_(mp.tensor([2.0])), TypeError, "mul_: expected tensors of one dtype"),
    ],
)
def test_in_place_methods_refuse_what_does_not_fit(change, error, message):
    with pytest.raises(error, match=message):
        change()


def test_requires_grad_():
    x = mp.tensor([1.0])
    assert x.requires_grad_() is x
    assert x.requires_grad
    assert not x.requires_grad_(False).requires_grad
    with pytest.raises(RuntimeError, match=r"requires_grad_: only leaves can stop .* use detach\(\)"):
        (leaf(1.0) * 2).requires_grad_(False)


@pytest.mark.parametrize("target", [F16, F32, F64])
def test_to_is_differentiable(target):
    x = leaf(1.5, -2.0)
    y = x.to(target)
    assert y.dtype == target
    y.backward(np.array([3, 4], target))
    assert x.grad.dtype == F32
    assert x.grad.tolist() == [3, 4]


def test_dtypes_by_method():
    x = leaf(1 / 3, 2.0)
    assert x.half().dtype == F16
    assert x.half().tolist()[0] == float(F16(F32(1 / 3)))
    assert x.double().dtype == F64
    assert x.float() is x
    assert x.to("float16").dtype == F16
    assert x.to(x.device) is x
    assert x.to(np.int64).tolist() == [0, 2]
    assert not x.to(np.int64).requires_grad
    assert mp.tensor([1, 2]).half().dtype == F16
    for target in ("cuda", None):
        with pytest.raises(ValueError, match="to: expected a device, 'cpu' or 'gpu', got"):
            x.to(target)


# ------------------------------------------------------------------------------------------------------------- in place


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


@pytest.mark.parametrize("constant", [False, True], ids=["leaf", "constant"])
def test_a_changed_argument_makes_backward_raise(constant):
    x, w = leaf(2.0), leaf(3.0)
    x.requires_grad = not constant
    y = x * w
    with mp.no_grad():
        x[0] = 4.0
    with pytest.raises(RuntimeError, match=r"mul: a tensor that backward needs was changed in place"):
        y.backward()


def test_a_changed_argument_that_backward_does_not_read_is_fine():
    x, w = leaf(2.0), leaf(3.0)
    y = x + w
    with mp.no_grad():
        x[0] = 4.0
    assert grad_of(y, x, w) == [[1], [1]]


def test_augmented_assignment_makes_a_new_tensor():
    x = leaf(1.0)
    y = x
    y += 1
    y *= 3
    assert y is not x
    assert x.tolist() == [1]
    assert y.tolist() == [6]
    assert grad_of(y, x) == [[3]]


def test_views_share_memory():
    x = mp.tensor(np.arange(6, dtype=F32).reshape(2, 3))
    for view in (x.reshape(3, 2), x.transpose(0, 1), x[0], x.T, x.detach()):
        assert np.shares_memory(view.array, x.array)
    x[0, 0] = 9.0
    assert x.reshape(-1)[0].item() == 9


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda x: x.__setitem__(0, 1e6),
            ValueError,
            r"a value of magnitude 1e\+06 does not fit FP16",
        ),
        (lambda x: x.copy_(np.full(2, 70_000, F32)), ValueError, "a value of magnitude 70000 does not fit FP16"),
        (lambda x: x.copy_([[1], [2, 3]]), ValueError, "copy_: expected numbers in rows of equal length"),
        (lambda x: x.copy_(np.ones(3, F16)), ValueError, r"copy_: expected source.shape == \(2,\), got \(3,\)"),
    ],
)
def test_in_place_refuses(write, error, message):
    with pytest.raises(error, match=message):
        write(mp.tensor(np.ones(2, F16)))


def test_in_place_rounds_and_takes_infinity():
    x = mp.tensor(np.zeros(3, F16))
    x[:2] = mp.tensor([1 + 2.0**-11, float("inf")])
    x[mp.tensor([2])] = 3
    assert x.tolist() == [1, np.inf, 3]


# --------------------------------------------------------------------------------------------------------------- memory


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


def test_activations_that_nobody_needs_are_freed():
    x = leaf(*range(100))
    a = x + 1  # add and mul by a number save nothing of it
    gone = weakref.ref(a.array)
    y = a * 2
    b = y * mp.tensor(np.ones(100, F32))  # nor does mul by a constant save its other operand
    gone_too = weakref.ref(y.array)
    del a, y
    assert gone() is None
    assert gone_too() is None
    assert b.requires_grad


def test_nothing_is_kept_without_a_graph():
    x = leaf(*range(100))
    with mp.no_grad():
        a = ops.exp(x)
        y = a * a
    gone = weakref.ref(a.array)
    del a
    assert gone() is None
    assert y.is_leaf


# --------------------------------------------------------------------------------------------- gradients own themselves


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


def test_a_gradient_is_never_a_broadcast_view():
    x, a = leaf(*[1.0] * 4), leaf(*[1.0] * 4)
    (x.sum() + a.sum()).backward()
    for g in (x.grad_array, a.grad_array):
        assert mp.backend.writeable(g)
        assert g.flags.owndata
        assert g.strides == (4,)
        g += 1


def test_the_gradient_buffer_of_the_user_may_come_from_anywhere():
    x = leaf(1.0, 2.0)
    buffer = np.frombuffer(bytearray(8), F32)
    x.reshape(2, 1).backward(buffer.reshape(2, 1))
    x.grad += 1
    assert (buffer == 0).all()


@pytest.mark.parametrize("dtype", [F16, F32])
def test_gradients_of_0d_tensors_are_arrays(dtype):
    x = mp.tensor(np.array(3, dtype), requires_grad=True)
    for _ in range(2):
        (x * x).backward()
        assert type(x.grad.array) is type(x.array)
        assert x.grad.shape == ()
    assert x.grad == 12


# ----------------------------------------------------------------------------------------------- the contracts of an op


def test_fp16_and_fp32_do_not_meet():
    with pytest.raises(
        TypeError,
        match=r"mul: expected tensors of one dtype, got `input` is float16, `other` is float32; .* policy\.cast",
    ):
        leaf(1.0, dtype=F16) * leaf(1.0)


def test_arguments_declared_fp32_may_be():
    class Scaled(Identity):
        fp32 = ("weight",)

        def forward(self, x, weight):
            return store(widen(x) * weight, like=x)

    assert Scaled.apply(leaf(2.0, dtype=F16), mp.tensor([3.0])).dtype == F16


def test_only_tensors_and_numbers_are_arguments():
    with pytest.raises(
        TypeError, match=r"identity: expected a Tensor for `input`, got numpy.ndarray; wrap it with tinymp.tensor"
    ):
        Identity.apply(np.ones(1))


@pytest.mark.parametrize(
    ("kind", "dtype", "result", "promised"),
    [
        (POINTWISE, F16, F32, "float16"),
        (POINTWISE, F32, F16, "float32"),
        (LOSS, F16, F16, "float32"),
        (LOSS, F64, F32, "float64"),
    ],
)
def test_an_op_must_write_what_its_kind_promises(kind, dtype, result, promised):
    broken = type("Broken", (Identity,), {"kind": kind})
    message = f"broken: a {kind.name} op on {np.dtype(dtype)} writes {promised}, got {np.dtype(result)}"
    with pytest.raises(TypeError, match=message):
        broken.apply(leaf(1.0, dtype=dtype), result=np.ones(1, result))


def test_an_op_must_not_save_an_fp32_copy():
    x = leaf(1.0, dtype=F16)
    with pytest.raises(TypeError, match=r"identity: saved float32 for backward, but storage is float16; see Op.save"):
        Identity.apply(x, saves=(widen(x.array),))
    Identity.apply(x, saves=(x.array, np.array([1]), None, 2.5))  # storage, integers, nothing, numbers


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (
            lambda dy: widen(dy),
            r"identity: the gradient of `input` must be float16 \(2,\) like the argument, got float32 \(2,\)",
        ),
        (lambda dy: dy[:1], r"must be float16 \(2,\) like the argument, got float16 \(1,\)"),
        (lambda dy: (dy, dy), "identity: backward gave 2 gradients for 1 arguments"),
    ],
)
def test_an_op_must_return_fitting_gradients(gradient, message):
    with pytest.raises(RuntimeError, match=message):
        Identity.apply(leaf(1.0, 2.0, dtype=F16), gradient=gradient).backward(np.ones(2, F16))


def test_an_op_without_methods_says_so():
    class Nothing(Op):
        kind = POINTWISE

    with pytest.raises(NotImplementedError, match="nothing has no forward"):
        Nothing().forward()
    with pytest.raises(NotImplementedError, match="nothing has no backward"):
        Nothing().backward()


# ---------------------------------------------------------------------------------------------------------- loss scales


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


def test_parts_of_a_loss_carry_one_scale():
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match=r"gradients with loss scales .* meet; pass every part of the loss through"):
        (Identity.apply(x, loss_scale=8.0) + Identity.apply(x, loss_scale=4.0)).backward()
    with pytest.raises(RuntimeError, match="gradients with loss scales"):
        (Identity.apply(x, loss_scale=8.0) + x).backward()


# ------------------------------------------------------------------------------------------------------------- watching


def test_watchers_see_every_op_and_go():
    seen = []
    x = leaf(1.0, 2.0, dtype=F16)
    with watch(lambda phase, op, inputs, outputs: seen.append((phase, op.name, len(inputs), outputs[0].shape))):
        y = (x * 2).sum()
        y.backward()
        with pytest.raises(KeyError), watch(lambda *_: seen.append("inner")):
            raise KeyError
    (x * 2).sum().backward()
    assert seen == [
        ("forward", "mul", 2, (2,)), ("forward", "sum", 1, (1,)), ("forward", "reshape", 1, ()),
        ("backward", "reshape", 1, (1,)), ("backward", "sum", 1, (2,)), ("backward", "mul", 1, (2,)),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------- constructors and protocols


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


@pytest.mark.parametrize(
    ("data", "dtype"),
    [(1.0, F32), ([1.0, 2], F32), ([[1, 2]], np.int64), (True, bool), (np.ones(2), F64), (F64(1), F64),
     (np.ones(2, F16), F16),
     (range(3), np.int64), (np.array([1], np.uint8), np.uint8), ([], F32), (np.ones((2, 0), F16), F16)],
)  # fmt: skip
def test_dtypes_of_new_tensors(data, dtype):
    assert mp.tensor(data).dtype == dtype


@pytest.mark.cpu
def test_numpy_protocols():
    x = leaf(1.0, 2.0)
    assert x.numpy() is x.array
    assert np.shares_memory(np.asarray(x), x.array)
    assert np.asarray(x, dtype=F64).dtype == F64
    assert not np.shares_memory(np.array(x), x.array)
    with pytest.raises(ValueError, match="copy"):
        np.array(x, dtype=F64, copy=False)
    shared = np.from_dlpack(x)
    assert np.shares_memory(shared, x.array)
    assert x.__dlpack_device__() == (1, 0)


def test_what_a_tensor_is():
    x = mp.tensor(np.ones((2, 3), F16))
    assert (x.shape, x.ndim, x.dim(), x.numel(), x.nbytes, len(x)) == ((2, 3), 2, 2, 6, 12, 2)
    assert x.device == mp.backend.default().name
    assert x.size() == (2, 3)
    assert x.size(-1) == 3
    assert x.is_leaf
    assert not (leaf(1.0) * 2).is_leaf
    assert x.T.shape == (3, 2)
    assert x[0].T.shape == (3,) and mp.tensor(1.0).T.shape == ()
    with pytest.raises(AttributeError, match=r"T: expected a matrix, got shape \(1, 2, 3\); use transpose"):
        _ = x[None].T
    with pytest.raises(AttributeError, match="colour"):
        x.colour = 1


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("x", "text"),
    [
        (lambda: mp.tensor(np.array([1.5, 2], F16)), "tensor([1.5 2. ], dtype=float16, device=cpu)"),
        (lambda: leaf(1.0), "tensor([1.], dtype=float32, device=cpu, requires_grad=True)"),
        (lambda: leaf(1.0) * 2, "tensor([2.], dtype=float32, device=cpu, from=mul)"),
        (lambda: mp.tensor(3), "tensor(3, dtype=int64, device=cpu)"),
    ],
)
def test_repr(x, text):
    assert repr(x()) == str(x()) == text
    assert f"{x()}" == (text if x().ndim else str(x().item()))  # a number is formatted as one, as in PyTorch


def test_repr_of_a_large_tensor_is_short():
    assert len(repr(mp.tensor(np.zeros((1000, 1000))))) < 500


def test_numbers():
    one, two = mp.tensor(1.5), mp.tensor([[2]])
    assert one.item() == float(one) == 1.5
    assert int(one) == 1
    assert f"{one:.2f}" == "1.50"
    assert [10, 20, 30][two] == 30
    assert two.tolist() == [[2]]
    assert bool(two)
    assert not bool(mp.tensor(0.0))
    assert [x.item() for x in leaf(1.0, 2.0)] == [1, 2]
    assert len({one, two, one}) == 2  # hashed by identity


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda x: x.item(), ValueError, r"item: expected one element, got shape \(2,\)"),
        (float, ValueError, "item: expected one element"),
        (int, ValueError, "item: expected one element"),
        (lambda x: int(x[0] * float("inf")), ValueError, "int: expected a finite number, got inf"),
        (bool, ValueError, r"bool: expected one element, got shape \(2,\); use .all\(\) or .any\(\)"),
        (lambda x: [1, 2][x], TypeError, "index: expected an integer tensor, got float32"),
        (lambda x: len(x[0]), TypeError, "len: expected a tensor with an axis"),
        (lambda x: list(x[0]), TypeError, "iter: expected a tensor with an axis"),
    ],
)
def test_what_is_not_a_number(use, error, message):
    with pytest.raises(error, match=message):
        use(leaf(1.0, 2.0))


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "**", "@", "<", "=="])
@pytest.mark.parametrize("swapped", [False, True])
def test_arrays_beside_tensors_are_refused(symbol, swapped):
    a, b = leaf(1.0, 2.0), np.ones(2, F32)
    a, b = (b, a) if swapped else (a, b)
    with pytest.raises(TypeError, match=r"got numpy.ndarray; wrap it with tinymp.tensor\(...\)"):
        eval(f"a {symbol} b")


def test_numpy_functions_do_not_loop_over_tensors():
    with pytest.raises(TypeError, match="Tensor"):
        np.exp(leaf(1.0, 2.0))


def test_numpy_numbers_beside_tensors():
    for y in (F64(2) * leaf(1.0, dtype=F16), leaf(1.0, dtype=F16) - F32(3), np.int64(2) / leaf(1.0, dtype=F16)):
        assert isinstance(y, Tensor)
        assert y.dtype == F16


def test_outputs_of_ops_are_arrays():
    x = mp.tensor(np.array(2, F16))
    assert all(type(y.array) is type(x.array) for y in (x * x, x + 1, -x, x.sum(), ops.exp(x), x.float(), x.argmax()))
    assert (mp.tensor([1, 2]) == mp.tensor([1, 3])).tolist() == [True, False]
    assert float32 == F32


def test_a_change_through_a_view_or_detach_is_noticed():
    for change in (lambda w: w.detach(), lambda w: w.transpose(0, 1), lambda w: w):
        w, x = mp.tensor(np.ones((2, 2)), requires_grad=True), mp.tensor(np.ones((2, 2)), requires_grad=True)
        y = ops.matmul(w.transpose(0, 1).transpose(0, 1), x)
        with mp.no_grad():
            change(w).zero_()
        with pytest.raises(RuntimeError, match="changed in place after the forward pass"):
            y.sum().backward()


def test_numpy_scalars_as_options_do_not_lift_fp32():
    x = mp.tensor(np.ones((2, 3), "float16"))
    y = ops.layer_norm(x, (3,), eps=np.float64(1e-5))
    np.testing.assert_array_equal(y.numpy(), ops.layer_norm(x, (3,), eps=1e-5).numpy())
    assert ops.hardtanh(x, np.float64(-1), np.float64(1)).dtype == "float16"


@pytest.mark.parametrize(("x", "w"), [("float16", "float64"), ("float32", "float16"), ("float64", "float32")])
def test_only_fp32_may_stand_beside_fp16(x, w):
    with pytest.raises(TypeError, match=f"`input` is {x}, `weight` is {w}"):
        ops.layer_norm(mp.tensor(np.ones((2, 3), x)), (3,), mp.tensor(np.ones(3, w)))


def test_the_generator_can_be_put_back():
    state = mp.get_rng_state()
    x = mp.tensor(np.ones(100, "float32"))
    first = ops.dropout(x).numpy()
    mp.set_rng_state(state)
    np.testing.assert_array_equal(ops.dropout(x).numpy(), first)
    with pytest.raises(ValueError, match="set_rng_state: expected the states of"):
        mp.set_rng_state({"tpu": {}})


@pytest.mark.parametrize("error", [None, KeyError])
def test_random_numbers_go_on_as_if_none_had_been_drawn(error):
    state = mp.get_rng_state()

    def draw():
        with fork_rng():
            ops.dropout(mp.tensor(np.ones(100, "float32")))
            assert mp.get_rng_state() != state
            if error:
                raise error

    with pytest.raises(error) if error else nullcontext():
        draw()
    assert mp.get_rng_state() == state


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.size(2), IndexError, r"size: expected an axis of shape \(2, 3\), got dim=2"),
        (lambda x: x.size(np.uint64(2**64 - 2)), IndexError, "size: expected an axis of shape"),
        (lambda x: x.size((0,)), IndexError, "size: expected an axis of shape"),
        (lambda x: x.to(3), TypeError, "to: expected a device .* or a dtype .* got 3"),
        (lambda x: x.requires_grad_("False"), TypeError, "`requires_grad` to be True or False, got 'False'"),
    ],
)
def test_arguments_of_methods(call, error, message):
    x = mp.tensor(np.zeros((2, 3), "float32"))
    with pytest.raises(error, match=message):
        call(x)
    assert (x.size(-1), x.size(np.int64(0)), x.size()) == (3, 2, (2, 3))


# -------------------------------------------------------------------------------------------------- other habits


def test_numpys_functions_give_numpys_results():
    x = leaf(1.0, 2.0, 6.0)
    assert np.mean(x) == 3 and np.sum(x) == 9 and np.max(x) == 6
    assert np.concatenate([x, x]).shape == (6,) and isinstance(np.concatenate([x, x]), np.ndarray)
    assert np.array_equal(np.stack((x.detach(), x), axis=1), np.array([[1, 1], [2, 2], [6, 6]], F32))


def test_comparing_with_none():
    x = mp.tensor([1.0])
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert None not in [x]


@pytest.mark.parametrize(
    "combine", [lambda x, a: x * a, lambda x, a: a * x, lambda x, a: a - x, lambda x, a: x @ a, lambda x, a: a @ x]
)
def test_an_array_beside_a_tensor_is_to_be_wrapped(combine):
    with pytest.raises(TypeError, match=r"got numpy.ndarray; wrap it with tinymp.tensor\(...\)"):
        combine(mp.tensor([1.0, 2.0]), np.ones(2, F32))


@pytest.mark.parametrize("x", [mp.tensor(3), mp.tensor([1.0]), mp.tensor(np.ones((2, 3, 4))), nn.Linear(2, 2).weight])
def test_members_can_be_listed(x):
    members = dict(inspect.getmembers(x))
    assert {"shape", "sum", "backward"} <= members.keys()


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: mp.autocast, "tinymp has no attribute 'autocast'; names that PyTorch alone has are in tinymp.torch"),
        (lambda: mp.cat, "tinymp has no attribute 'cat'; use tinymp.ops.cat"),
        (lambda: mp.tensr, "tinymp has no attribute 'tensr'; did you mean tensor"),
        (lambda: mp.nn.functional, "tinymp.nn has no attribute 'functional'; did you mean functions"),
        (lambda: mp.nn.Linaer, "did you mean Linear"),
        (lambda: nn.Linear(1, 1).register_backward_hook, "did you mean register_full_backward_hook"),
    ],
)
def test_what_is_absent_on_purpose_names_the_way(read, message):
    with pytest.raises(AttributeError, match=message):
        read()


def test_a_name_that_is_not_like_it_is_not_suggested():
    for name in ("cdist", "tensorboard", "range", "Zeros3d"):
        with pytest.raises(AttributeError) as error:
            getattr(mp, name)
        assert "did you mean" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from tinymp import tensr", "did you mean tensor"),
        ("from tinymp import istft", "cannot import name 'istft'"),
        ("from tinymp.nn import Linaer", "did you mean Linear"),
        ("from tinymp import nn, relu", "use tinymp.ops.relu"),
    ],
)
def test_an_import_of_what_is_absent_has_the_hint(line, message):
    with pytest.raises(ImportError, match=message):
        exec(line)
