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


@pytest.mark.parametrize(("wanted", "used"), [(True, 0), (True, 1), (False, 0)])
def test_gradients_are_those_of_pytorch(wanted, used):
    arrays = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    grads = []
    for module, base in ((torch, torch.autograd.Function), (tinymp.torch, Function)):
        x, w = (module.tensor(a, requires_grad=on) for a, on in zip(arrays, (True, wanted)))
        (products(base).apply(x, 3.0, w)[used] ** 2).sum().backward()
        grads.append([t.grad.numpy() for t in (x, w)[: 1 + wanted]])
        assert (w.grad is not None) == wanted
    for theirs, own in zip(*grads):
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


# ---- programs in both: each ends as PyTorch's ----

BOTH = {
    "None for a Tensor that requires a gradient": """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask): return x * mask
    @staticmethod
    def backward(ctx, g): return g * 3, None
F.apply(x * 2, w * 1).sum().backward()
found = x.grad, w.grad""",
    "a result that is marked": """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, i = x.sort(0)
        z = x * 5
        ctx.mark_non_differentiable(i, z)
        return y * 2, i, z
    @staticmethod
    def backward(ctx, g, gi, gz):
        return g * 3 + gz
y, i, z = F.apply(x)
y.sum().backward()
found = x.grad, y.requires_grad, z.requires_grad, z.is_leaf, i""",
    "setup_context": """
class F(torch.autograd.Function):
    @staticmethod
    def forward(x, n): return x ** n
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)
        ctx.n = inputs[1]
    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * ctx.n * y / x, None
F.apply(x, 3).sum().backward()
found = x.grad""",
    "gradients of outputs that share an op": """
h = x.exp()
found = torch.autograd.grad([h.sum(), (h * h).sum(), w.sum()], [x, w]), x.grad, w.grad""",
    "backward of several": """
h = x.exp()
torch.autograd.backward([h.sum(), (h * w).sum(), w], [None, torch.tensor(2.0), x.detach()])
torch.autograd.backward((x * x).sum())
found = x.grad, w.grad""",
    "the graph is retained": """
y = (x * w).sum()
torch.autograd.backward(y, retain_graph=True)
torch.autograd.backward([y, y * 2])
found = x.grad, w.grad""",
}


@pytest.mark.parametrize("program", BOTH.values(), ids=BOTH)
def test_a_program_ends_as_in_pytorch(program):
    found = []
    for module in (torch, tinymp.torch):
        x, w = module.tensor([0.5, -1.0, 2.0]).requires_grad_(), module.tensor([3.0, 4.0, -5.0]).requires_grad_()
        names = {"torch": module, "x": x, "w": w}
        exec(program, names)
        found.append([*names["found"]] if isinstance(names["found"], tuple) else [names["found"]])
    compare(*found)


def compare(theirs, own):
    if isinstance(theirs, (list, tuple)):
        assert len(theirs) == len(own)
        for a, b in zip(theirs, own):
            compare(a, b)
    elif hasattr(theirs, "detach"):
        np.testing.assert_allclose(own.detach().numpy(), theirs.detach().numpy(), rtol=1e-6)
        assert own.detach().numpy().dtype == theirs.detach().numpy().dtype
    else:
        assert own is theirs


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
