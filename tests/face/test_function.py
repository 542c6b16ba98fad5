"""torch.autograd.Function: ops that a program defines, with the gradients that PyTorch's have."""

import numpy as np
import pytest

import tinymp as mp
import tinymp.torch
from tinymp.torch.autograd import Function

torch = pytest.importorskip("torch")


def products(base):
    class Products(base):
        @staticmethod
        def forward(ctx, x, factor, w):
            ctx.save_for_backward(x, w)
            ctx.dtype, ctx.needs = factor, ctx.needs_input_grad  # names that an Op has, too
            return x * w * factor, x + w

        @staticmethod
        def backward(ctx, dy, dz):
            x, w = ctx.saved_tensors
            return dy * w * ctx.dtype + dz, None, (dy * x * ctx.dtype + dz if ctx.needs[2] else None)

    return Products


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("used", [0, 1])
def test_gradients_are_those_of_pytorch(wanted, used):
    arrays = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    grads = []
    for module, base in ((torch, torch.autograd.Function), (tinymp.torch, Function)):
        x, w = (module.tensor(a, requires_grad=on) for a, on in zip(arrays, (True, wanted)))
        (products(base).apply(x, 3.0, w)[used] ** 2).sum().backward()
        grads.append([None if t.grad is None else t.grad.numpy() for t in (x, w)])
    assert (grads[1][1] is not None) == wanted
    for theirs, own in zip(*grads):
        if theirs is not None:
            np.testing.assert_array_max_ulp(own, theirs, 4)  # products and a sum of three terms


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.view_as(x) * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 2 + ctx.saved_tensors[0] * 0


def test_in_a_mixed_model_it_works_on_fp16_and_an_audit_sees_it():
    x = mp.tensor([1.5, 2.0], requires_grad=True)
    with mp.audit() as a:
        y = Twice.apply(mp.MIXED.cast(x).requires_grad_())
    assert y.dtype == "float16" and "Twice" in {row.op for row in a.ledger}


def test_what_it_saved_is_held_to_the_rules_of_every_op():
    x = mp.tensor([1.0, 2.0], requires_grad=True)
    y = Twice.apply(x).sum()
    with mp.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="Twice: a tensor that backward needs was changed in place"):
        y.backward()
    y = Twice.apply(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="saved arrays were freed"):
        y.backward()
    with mp.no_grad():
        assert not Twice.apply(x).requires_grad


def test_a_result_may_have_another_precision():
    class Wide(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.float())
            return x.float() ** 2

        @staticmethod
        def backward(ctx, dy):
            return 2 * dy * ctx.saved_tensors[0]

    x = mp.tensor([300.0], dtype="float16", requires_grad=True)
    y = Wide.apply(x)
    y.backward()
    assert (y.dtype, y.item()) == (mp.float32, 90_000) and (x.grad.dtype, x.grad.item()) == (mp.float16, 600)


def test_a_result_that_is_the_argument_shares_its_changes():
    class Same(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, dy):
            return -dy

    x = mp.tensor([1.0, 2.0], requires_grad=True)
    y = Same.apply(x)
    z = (y * y).sum()
    with mp.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        z.backward()
