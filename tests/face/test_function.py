"""torch.autograd.Function: ops that a program defines, with the gradients that PyTorch's have."""

import pytest

import tinymp as mp
import tinymp.torch
from tinymp.torch.autograd import Function

torch = pytest.importorskip("torch")


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


def test_one_pass_for_fp16_and_fp32_and_what_is_refused():
    face = tinymp.torch
    x = face.tensor([1.0, 2.0]).requires_grad_()
    (g,) = face.autograd.grad([x.half(), x * 3], [x], [face.ones(2).half(), face.ones(2)])
    assert g.tolist() == [4.0, 4.0] and x.grad is None
    given = face.ones(2)
    face.autograd.backward([x], [given])
    given.fill_(9.0)
    assert x.grad.tolist() == [1.0, 1.0]  # not the memory of what was given
    with pytest.raises(RuntimeError, match=r"^backward: expected outputs that require a gradient"):
        face.autograd.backward([x.detach()])
    with pytest.raises(ValueError, match="expected leaves"):
        face.autograd.grad(x.sum(), x * 2)

    class Dirty(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)

    with pytest.raises(RuntimeError, match="mark_dirty: a Function here changes nothing in place"):
        Dirty.apply(x)
