"""Convolutions on a CPU, by every way that their fast paths have, against their definition, in both directions."""

import numpy as np
import pytest

import four_programs
import tinymp as mp
from convolutions import CASES, TRANSPOSED
from oracle import SPACING, STORAGE, WORK, host, randn
from tinymp import autograd, fast_path, ops
from tinymp.fast.cpu import conv
from tinymp.ops.conv import Geometry, fold

pytestmark = pytest.mark.cpu
BOTH = {"forward", "backward"}


@pytest.fixture(params=["by its size", "columns", "rows", "parts of rows", "blocks"])
def way(request, monkeypatch):
    """Convolution by columns, and by rows where they lie, whole or in parts, whatever their sizes."""
    if request.param == "blocks":
        monkeypatch.setattr(conv, "BLOCK", 1)
        monkeypatch.setattr(conv, "CACHED", 1)
    elif request.param != "by its size":
        monkeypatch.setattr(conv, "RUN", 1 << 30 if request.param == "columns" else 1)
        monkeypatch.setattr(conv, "SMALL", 400 if request.param == "parts of rows" else 1 << 30)


def results(monkeypatch, off, op, arrays, dtype, change=lambda x: x):
    """The result and the gradients of op without these fast paths."""
    monkeypatch.setattr(fast_path, "off", off)
    tensors = [mp.tensor(change(a.astype(dtype)), requires_grad=True) for a in arrays]
    y = op(*tensors)
    y.backward(change(randn(*y.shape, seed=9).astype(dtype)))
    return [y.numpy(), *[host(t.grad) for t in tensors]]


def check_both_directions(monkeypatch, op, *arrays):
    """|fast - definition| <= one ulp of storage + 2 n u_w sum |terms|, with the symbols of oracle.py: n terms, of which
    the sums of sizes come from the definition of the absolute values.
    """
    n = max(a.size for a in arrays) * arrays[1].size  # no sum is longer
    for dtype in ("float64", "float32", "float16"):
        expected = results(monkeypatch, BOTH, op, arrays, dtype)
        sizes = results(monkeypatch, BOTH, op, [a.astype(dtype).astype("f8") for a in arrays], "float64", np.abs)
        for off in (set(), {"forward"}, {"backward"}):
            for e, size, got in zip(expected, sizes, results(monkeypatch, off, op, arrays, dtype), strict=True):
                e, bound = e.astype("f8"), 2 * n * WORK[dtype] * size + SPACING[dtype]
                assert (abs(got - e) <= 2 * STORAGE[dtype] * abs(e) + bound).all(), (dtype, off)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("x", "w", "stride", "padding", "dilation", "groups"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_conv2d(monkeypatch, x, w, stride, padding, dilation, groups, bias):
    check_both_directions(
        monkeypatch,
        lambda x, w, b=None: ops.conv2d(x, w, b, stride, padding, dilation, groups),
        *[randn(*x), randn(*w, seed=2), randn(w[0], seed=3)][: 2 + bias],
    )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("x", "w", "stride", "padding", "output_padding", "groups", "dilation"), TRANSPOSED)
@pytest.mark.parametrize("bias", [True, False])
def test_conv_transpose2d(monkeypatch, x, w, stride, padding, output_padding, groups, dilation, bias):
    check_both_directions(
        monkeypatch,
        lambda x, w, b=None: ops.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation),
        *[randn(*x), randn(*w, seed=2), randn(w[1] * groups, seed=3)][: 2 + bias],
    )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "shapes", [((0, 4, 6, 5), (6, 2, 3, 3)), ((0, 4, 6, 5), (6, 4, 1, 1)), ((0, 6, 6, 5), (6, 1, 3, 3))]
)
def test_an_empty_batch(shapes, dtype):
    x, w = (mp.tensor(np.ones(shape, dtype), requires_grad=True) for shape in shapes)
    ops.conv2d(x, w, groups=x.shape[1] // w.shape[1]).sum().backward()
    assert not host(w.grad).any() and x.grad.shape == x.shape


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("stride", [1, 2, 3, (2, 3)])
@pytest.mark.parametrize("dilation", [1, 2, (3, 1)])
@pytest.mark.parametrize("padding", [0, 2])
def test_spread_by_phases_is_the_fold(stride, dilation, padding):
    """The definition, products that are added where their windows lie, against the form that scatters nothing."""
    pair = lambda v: v if isinstance(v, tuple) else (v, v)  # noqa: E731
    pads = ((padding, padding), (padding, padding + 1))
    for kernel, groups in (((3, 2), 1), ((4, 1), 2), ((1, 5), 3)):
        g = Geometry(kernel, pair(stride), pads, pair(dilation), groups)
        size, n = (11, 13), 2
        y, w, b = randn(6, *g.output(*size), n), randn(6, 2, *kernel, seed=2), randn(2 * groups, seed=3)
        columns = w.reshape(groups, 6 // groups, -1).swapaxes(1, 2) @ y.reshape(groups, 6 // groups, -1)
        folded = fold(columns, (2 * groups, *size, n), g, like=w) + b.reshape(-1, 1, 1, 1)
        np.testing.assert_allclose(conv.spread_by_phases(np, y, w, b, g, size), folded, rtol=1e-12, atol=1e-12)


def test_memory_order_of_the_input_does_not_matter():
    x, w = randn(2, 3, 6, 5).astype("float16"), mp.tensor(randn(4, 3, 3, 3, seed=2).astype("float16"))
    chwn = mp.tensor(x.transpose(1, 2, 3, 0)).permute(3, 0, 1, 2)
    np.testing.assert_array_equal(ops.conv2d(mp.tensor(x), w).numpy(), ops.conv2d(chwn, w).numpy())


@pytest.mark.parametrize(("program", "policy"), [(four_programs.mnist, mp.FP32), (four_programs.dcgan, mp.MIXED)])
def test_every_convolution_of_a_training_is_within_the_bound(monkeypatch, program, policy):
    """Each runs once more by its definition, and in float64 on absolute values for the size of its terms."""
    seen = []

    def both(definition, device):
        fast = fast_path.find(definition, device)
        if fast is None or not definition.__qualname__.startswith(("Conv2d", "ConvTranspose2d")):
            return fast

        def run(op, *arrays, **options):
            got = fast(op, *arrays, **options)
            expected, saved = definition(op, *arrays, **options), op.saved
            x, w = saved
            targets, op.targets = op.targets, (op.targets[0], op.targets[1], None) if op.targets else ()
            op.saved = tuple(abs(a.astype("f8")) for a in saved)
            sizes = definition(op, *[None if a is None else abs(a.astype("f8")) for a in arrays], **options)
            op.saved, op.targets = saved, targets
            places = max(a.size // a.shape[1] for a in (x, arrays[0]))
            terms = w.size // min(w.shape[:2]), places, places  # of y or dx, dw, db
            results = (r if isinstance(r, tuple) else (r,) for r in (got, expected, sizes))
            for y, e, size, n in zip(*results, terms):
                if size is not None:
                    seen.append(definition.__qualname__)
                    bound = 2 * STORAGE[y.dtype.name] * abs(e.astype("f8")) + 2 * n * WORK["float16"] * size
                    assert (abs(y.astype("f8") - e) <= bound + SPACING[y.dtype.name]).all(), definition.__qualname__
            return got

        return run

    monkeypatch.setattr(autograd, "find", both)
    program(policy)
    assert {"Conv2d.forward", "Conv2d.backward"} <= set(seen)
