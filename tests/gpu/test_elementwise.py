"""Kernels made of definitions have the bits of the definitions run operation by operation on the same device."""

import math
from contextlib import nullcontext

import numpy as np
import pytest

import tinymp as mp
from cuda_on_cpu.compile import once
from gpu.both_ways import launches, without
from tinymp import ops
from tinymp.gpu import elementwise
from tinymp.gpu.symbols import SYMBOLS
from tinymp.ops.unary import OPS

HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 2.0**-24, -(2.0**-24), 2.0**-14, 65504.0, -65504.0, math.inf, -math.inf]
EDGES = np.array([*EDGES, math.nan, 1e-39, -1e-40, 2.0**-126, 3.4e38, 88.5, -104.0, 11.1, -17.0, 2.0**24 + 1])

RECTIFIERS = "relu", "gelu", "hardtanh", "elu", "celu", "softplus", "isnan", "isinf", "isfinite", "neg"
OF_TWO = "add", "sub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"
UNARY = {name: getattr(ops, name) for name in OPS if hasattr(ops, name)}
UNARY |= {name: getattr(ops, name) for name in RECTIFIERS}
UNARY |= {
    "gelu, tanh": lambda x: ops.gelu(x, "tanh"),
    "leaky_relu": lambda x: ops.leaky_relu(x, 0.3),
    "clamp": lambda x: ops.clamp(x, -1.5, 2),
    "x + 3": lambda x: x + 3,
    "0.1 x": lambda x: 0.1 * x,
    "3 / x": lambda x: 3 / x,
    "x^2.5": lambda x: x**2.5,
    "1.5^x": lambda x: ops.pow(1.5, x),
    "x > 0.1": lambda x: x > 0.1,
    "masked_fill": lambda x: ops.masked_fill(x, x > 1, -7.0),
    "dropout": lambda x: ops.dropout(x, 0.3),
}
BINARY = {name: getattr(ops, name) for name in OF_TWO}
BINARY |= {
    "add, alpha": lambda x, y: ops.add(x, y, alpha=0.3),
    "where": lambda x, y: ops.where(x > 0, x, y),
    "clamp, two": lambda x, y: ops.clamp(x, y, x),
    "bce with logits": lambda x, y: ops.binary_cross_entropy_with_logits(x, y, reduction="none", pos_weight=y.detach()),
    "mse_loss, weight": lambda x, y: ops.mse_loss(x, y, reduction="none", weight=y.detach()),
    "l1_loss": lambda x, y: ops.l1_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y: ops.huber_loss(x, y, reduction="none", delta=0.3),
    "smooth_l1_loss": lambda x, y: ops.smooth_l1_loss(x, y, reduction="none", beta=0.3),
}
NOT_TRACED = {"1.5^x", "pow"}  # the gradient of an exponent asks for an array of a number
AS_IT_IS = {"add", "x + 3"}  # backward returns what it is given


DY = np.random.default_rng(5).standard_normal(4099)


def run(op, arrays):
    """The results and gradients of op on these arrays, on the host, and in how many phases no kernel was launched."""
    mp.manual_seed(1)
    tensors = [mp.Tensor(x).requires_grad_(x.dtype.kind == "f") for x in arrays]
    counts = [len(launches() or ())]
    y = op(*tensors)
    counts.append(len(launches() or ()))
    if y.requires_grad:
        dy = DY[np.arange(y.numel()) % DY.size].reshape(y.shape).astype(y.dtype)
        y.backward(mp.Tensor(mp.backend.gpu.asarray(dy)))
        counts.append(len(launches() or ()))
    return [y.numpy(), *[x.grad.numpy() for x in tensors if x.grad is not None]], len(counts) - len({*counts})


def check(op, *arrays, name=""):
    """Hold op to itself operation by operation; those of CuPy are used where it is not traced alone."""
    device = [mp.backend.gpu.asarray(x) for x in arrays]
    with once(), np.errstate(all="ignore"):
        traced, idle = run(op, device)
        with without("map"):
            same(traced, run(op, device)[0])
    assert not name or launches() is None or name in NOT_TRACED or idle == (name in AS_IT_IS)


def same(one, other):
    for x, y in zip(one, other, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        bits = np.dtype(f"u{x.itemsize}")
        wrong = (x.view(bits) != y.view(bits)) & ~((x != x) & (y != y)) if x.dtype.kind == "f" else x != y
        assert not wrong.any(), f"{wrong.sum()} differ, first {x[wrong][0]!r} and {y[wrong][0]!r}"


@pytest.mark.parametrize("name", UNARY)
def test_of_one(name):
    check(UNARY[name], HALVES, name=name)
    random = np.random.default_rng(0).standard_normal(2048).astype(np.float32)
    check(UNARY[name], np.concatenate([EDGES.astype(np.float32), random * 2.0**-120, random, random * 50]))
    check(UNARY[name], np.concatenate([EDGES[:14], random.astype(np.float64)]))


@pytest.mark.parametrize("name", BINARY)
def test_of_two(name):
    random = np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32)
    for dtype in (np.float16, np.float32):
        with np.errstate(over="ignore"):
            edges = EDGES.astype(dtype)
        x, y = (a.ravel() for a in np.broadcast_arrays(edges, edges[:, None]))
        pairs = [np.concatenate([e, r.astype(dtype)]) for e, r in zip((x, y), random)]
        check(BINARY[name], *pairs, name=name)


# -------------------------------------------------------------------------------------------------------- memory orders


SHAPES = {
    "flat": ((3, 5, 7), (3, 5, 7)),
    "rows of 8": ((6, 16), (16,)),
    "rows of 7": ((6, 7), (7,)),
    "columns": ((6, 16), (6, 1)),
    "channels": ((2, 3, 4, 6), (3, 1, 1)),
    "a number": ((33,), ()),
    "both broadcast": ((4, 1, 8), (5, 1)),
    "empty": ((0, 4), (4,)),
    "no axes": ((), ()),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_broadcast(shapes):
    rng = np.random.default_rng(1)
    x, y = (np.asarray(rng.standard_normal(shape), np.float16) for shape in shapes)
    check(ops.mul, x, y)
    check(ops.add, y, x)


def views(x):
    """x (4, 8, 6, 8), or as many elements, lying otherwise."""
    import cupy

    flat = cupy.asarray(x.ravel())
    wide = cupy.asarray(np.repeat(x, 2, axis=3))
    moved = cupy.empty(x.size + 1, x.dtype)[1:]
    moved[...] = flat
    yield "in order", cupy.asarray(x)
    yield "images last", cupy.asarray(np.ascontiguousarray(x.transpose(1, 2, 3, 0))).transpose(3, 0, 1, 2)
    yield "every second", wide[..., ::2]
    yield "backwards", cupy.asarray(np.ascontiguousarray(x[:, ::-1]))[:, ::-1]
    yield "not at a multiple of 16 bytes", moved.reshape(x.shape)


def test_every_order_beside_every_other():
    x, y = np.random.default_rng(2).standard_normal((2, 4, 8, 6, 8)).astype(np.float16)
    expected = x.astype(np.float32) * y
    with once():
        for one, a in views(x):
            for other, b in views(y):
                z = ops.mul(mp.Tensor(a), mp.Tensor(b))
                np.testing.assert_array_equal(z.numpy(), expected.astype(np.float16), err_msg=f"{one}, {other}")
                if one == "images last" and other != "backwards":  # which is left to CuPy
                    assert z.array.strides == a.strides


# ------------------------------------------------------------------------------------------------ how often it compiles


def compiled(op, *arrays):
    """The texts of the kernels that op needs."""
    elementwise._plans.clear()
    with once():
        op(*[mp.Tensor(mp.backend.gpu.asarray(x)) for x in arrays])
    return {plan.code for _, plan in elementwise._plans.values() if plan}


def test_numbers_are_arguments():
    x = HALVES[:64]
    assert compiled(lambda x: ops.leaky_relu(x, 0.1), x) == compiled(lambda x: ops.leaky_relu(x, 0.2), x)
    assert compiled(lambda x: x * 0.1, x) == compiled(lambda x: x * 0.25, x)
    assert compiled(lambda x: ops.clamp(x, 0, 0.1), x) == compiled(lambda x: ops.clamp(x, 1, 0.25), x)
    assert compiled(ops.relu, x) == compiled(ops.relu, HALVES[:4096].reshape(4, 1024))  # shapes are, too


def test_an_observer_and_stochastic_rounding_get_the_definition():
    class Rounded(mp.Observer):
        seen = 0

        def rounded(self, x, y):
            self.seen += 1

    x = mp.Tensor(mp.backend.gpu.asarray(HALVES[::100]))
    with once():
        fast = ops.sigmoid(x).numpy()
        with mp.observe(observer := Rounded()):
            same([fast], [ops.sigmoid(x).numpy()])
        drawn = []
        with mp.use(mp.STOCHASTIC_ROUNDING):
            for way in (nullcontext, lambda: without("map")):
                mp.manual_seed(3)
                with way():
                    drawn.append(ops.sigmoid(x).numpy())
    assert observer.seen == 1
    same(drawn[:1], drawn[1:])


NOT_OF_ONE_ELEMENT = [
    *(lambda x: x if x > 0 else -x, lambda x: x.sum(), lambda x: np.cumsum(x), lambda x: x[0]),
    *(lambda x: np.float16(1) * x, lambda x: [float(v) for v in x]),  # the first computes in FP16
    *(lambda x: SYMBOLS.reduce(x, 0, "sum"), lambda x: np.add.reduce(x)),
]


@pytest.mark.parametrize("f", NOT_OF_ONE_ELEMENT)
def test_what_is_not_traced(f):
    import cupy

    def wrong(x):
        raise NameError("a mistake")

    x = cupy.zeros(4, "float16")
    assert elementwise.plan_of(f, (x,), {}) is None
    with pytest.raises(NameError, match="a mistake"):  # one in a definition is not hidden
        elementwise.plan_of(wrong, (x,), {})
