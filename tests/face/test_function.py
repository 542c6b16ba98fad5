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
