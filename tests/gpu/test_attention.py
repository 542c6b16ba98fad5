"""The kernels of attention, held to the bound that the definition is held to: exact_attention.py computes it."""

import numpy as np
import pytest

import tinymp as mp
from exact_attention import exact
from gpu.both_ways import fast_only, launches, on_device
from oracle import randn
from tinymp import ops
from tinymp.backend import to_cpu
from tinymp.ops.more.attention import Attention

pytestmark = pytest.mark.usefixtures("gpu")
attention = ops.scaled_dot_product_attention
B, H, L, S = 2, 2, 5, 66
SEEN = np.random.default_rng(0).random((B, H, L, S)) < 0.3
SEEN[1, 1, 2] = False  # a row that sees nothing
SEEN[0, 1, 3, :64] = False  # one that sees nothing in its first tile
KEPT = np.random.default_rng(1).random((B, H, L, S)) < 0.75
MASKED = ((B, H, L, 16), (B, H, S, 16), (B, H, S, 16))

# shapes of q, k and v, and options: layout, in which order the axes lie in memory; kept, which weights a dropout of 1/4
# keeps; mixed, also one of forward and backward by the definition; head, for which length the kernels are (0: none run)
CASES = [
    *[((1, 64 + i, 32), (1, 64 - i, 32), (1, 64 - i, 31), {}) for i in (-1, 0, 1)],
    *[((1, 64 + i, 64), (1, 64 - i, 64), (1, 64 - i, 63), {"head": 64}) for i in (-1, 0, 1)],
    *[((1, 32 + i, 128), (1, 32 - i, 128), (1, 32 - i, 127), {"head": 128}) for i in (-1, 0, 1)],
    ((2, 2, 5, 8), (2, 2, 6, 8), (2, 2, 6, 16), {"layout": (0, 2, 1, 3)}),  # heads that are split from (B, L, H E)
    ((2, 2, 5, 8), (2, 2, 6, 8), (2, 2, 6, 16), {"layout": (2, 0, 1, 3), "mixed": True}),  # and from (L, B, H E)
    ((2, 2, 5, 8), (2, 2, 6, 8), (2, 2, 6, 16), {"layout": (0, 1, 3, 2)}),  # columns that are no neighbours
    *[((1, m, 16), (1, n, 16), (1, n, 16), {"is_causal": True}) for m, n in ((70, 70), (40, 90), (90, 40), (1, 70))],
    ((2, 2, 1, 16), (2, 2, 70, 16), (2, 2, 70, 16), {}),  # one query, as with a cache of keys and values
    ((2, 3, 5), (2, 40, 5), (2, 40, 7), {"scale": -0.7}),  # which turns the order around
    (*MASKED, {"mask": SEEN, "mixed": True}),
    (*MASKED, {"mask": SEEN[0, 1]}),
    (*MASKED, {"mask": np.arange(S) < np.array([64, 7]).reshape(2, 1, 1, 1)}),  # padded keys
    (*MASKED, {"mask": np.array([[True], [False], [True], [True], [False]])}),
    (*MASKED, {"mask": SEEN[:, :, :, ::-1].swapaxes(0, 1)}),
    (*MASKED, {"mask": randn(H, L, S).astype("float32")}),
    (*MASKED, {"mask": np.where(SEEN, 3 * randn(B, H, L, S), -np.inf).astype("float32")}),
    (*MASKED, {"mask": randn(L, S).astype("float16")}),
    (*MASKED, {"mask": SEEN, "kept": KEPT, "mixed": True}),
    ((1, 3, 129), (1, 4, 129), (1, 4, 8), {"head": 0}),
    ((1, 3, 8), (1, 4, 8), (1, 4, 129), {"head": 0}),
    ((2, 1, 2, 3, 8), (2, 1, 2, 4, 8), (2, 1, 2, 4, 8), {"head": 0}),
    ((2, 4, 8), (2, 4, 8), (2, 4, 8), {"head": 0, "dtype": "float32"}),
]


@pytest.mark.parametrize(("q", "k", "v", "options"), CASES)
def test_attention(q, k, v, options):
    options = {"mask": None, "kept": None, "layout": (0, 1, 2, 3), "head": 32, "dtype": "float16"} | options
    mask, kept, layout, head, dtype = (options.pop(name) for name in ("mask", "kept", "layout", "head", "dtype"))
    mixed = options.pop("mixed", False)
    arrays = [randn(*shape, seed=i).astype(dtype) for i, shape in enumerate((q, k, v, (*q[:-1], v[-1])))]
    seen = np.tril(np.ones((q[-2], k[-2]), bool)) if options.get("is_causal") else mask
    dropped = {} if kept is None else {"kept": kept, "dropout_p": 0.25}
    held = exact(dtype, *arrays, seen, options.get("scale"), **dropped)
    for forward, backward in ((True, True), (True, False), (False, True))[: 3 if mixed else 1]:
        before = len(launches() or ())
        with fast_only(forward, backward):
            tensors = [mp.Tensor(laid(x, layout)).requires_grad_() for x in arrays[:3]]
            given = [None if m is None else mp.Tensor(on_device(m)) for m in (mask, kept)]
            if kept is None:
                y = attention(*tensors, given[0], **options)
            else:
                y = Attention.apply(*tensors, *given, scale=q[-1] ** -0.5, causal=False, dropout_p=0.25)
            y.backward(laid(arrays[3], layout))
        if launches() is not None and forward and backward:
            kernels = {f"attention{part}_{head}" for part in ("", "_queries", "_keys")} if head else set()
            assert {name for name in launches()[before:] if name.startswith("attention")} == kernels
        for name, x in zip(("y", "dq", "dk", "dv"), (y.array, *[t.grad_array for t in tensors])):
            assert x.dtype == dtype
            held[name].check(to_cpu(x), f"kernels: forward {forward}, backward {backward}: {name}")


def laid(x, layout):
    """x on the device, its axes in this order in memory."""
    order = layout[-x.ndim :] if x.ndim == 4 else range(x.ndim)
    return on_device(x.transpose(order).copy().transpose(np.argsort(order)))


def test_weights_are_divided_by_their_sum_before_they_are_rounded():
    """2^-20 of 1000 is zero in FP16, as in the definition; 2^-20 alone is not, and would show beside 65504."""
    q, k, v = np.ones((1, 1, 1)), np.zeros((1, 1000, 1)), np.zeros((1, 1000, 1))
    k[0, -1], v[0, -1] = 20 * np.log(0.5), 65504
    for put in (np.asarray, on_device):
        y = attention(*[mp.Tensor(put(x.astype("float16"))) for x in (q, k, v)], scale=1.0)
        assert y.item() == 0


def test_the_gradient_of_a_row_does_not_see_that_y_was_rounded():
    """y is 1000.25 in 32 columns, 1000 in FP16: the sum of y dy is off by 8, a third of what dp - that should be."""
    q, k = np.ones((1, 1, 1)), np.array([0, np.log(3)]).reshape(1, 2, 1)
    v, dy = np.full((1, 2, 32), 1000.0), np.ones((1, 1, 32), "float16")
    v[0, 0] = 1001
    found = []
    for put in (np.asarray, on_device):
        tensors = [mp.Tensor(put(x.astype("float16"))).requires_grad_() for x in (q, k, v)]
        attention(*tensors, scale=1.0).backward(put(dy))
        found.append([t.grad.numpy() for t in tensors])
    for on_cpu, on_gpu in zip(*found):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=2**-10)


def test_views_of_one_array():
    """query, key and value as a product made them side by side, one element behind a multiple of 16 bytes."""
    x = mp.Tensor(on_device(randn(2, 9, 25).astype("float16")))[:, :, 1:]
    parts = [t.reshape(2, 9, 2, 4).transpose(1, 2) for t in ops.chunk(x, 3, -1)]
    y = attention(*parts).numpy()
    exact("float16", *[t.numpy() for t in parts], np.zeros(y.shape))["y"].check(y, "y")


def kernels_of(call):
    """The kernels of attention that were launched; skips on a GPU, which keeps no list."""
    if (names := launches()) is None:
        pytest.skip("only the stand-in tells what was launched")
    before = len(names)
    call()
    return {name for name in names[before:] if name.startswith("attention")}


def leaf(*shape, dtype="float16"):
    return mp.Tensor(on_device(randn(*shape).astype(dtype))).requires_grad_()


def test_when_kernels_run(monkeypatch):
    """Not where leading axes broadcast, or the mask learns, or before Ampere; and only as a policy has it."""
    q, k = leaf(2, 4, 8), leaf(1, 4, 8)
    forward, backward = {"attention_32"}, {"attention_queries_32", "attention_keys_32"}
    assert not kernels_of(lambda: attention(q, k, k).sum().backward())
    assert kernels_of(lambda: attention(q, q, q, dropout_p=0.5).sum().backward()) == forward | backward
    mask = leaf(4, 4, dtype="float32")
    assert kernels_of(lambda: attention(q, q, q, mask).sum().backward()) == forward
    assert mask.grad.dtype == "float32"
    for policy in (mp.FP16_ACCUMULATE, mp.FP16_REDUCTIONS, mp.STOCHASTIC_ROUNDING):
        with mp.use(policy):
            assert not kernels_of(lambda: attention(q, q, q).sum().backward()), policy
    m = mp.MIXED.cast(mp.nn.MultiheadAttention(16, 2)).to("gpu")
    x, hidden = leaf(4, 2, 16), mp.Tensor(on_device(np.zeros((2, 4), bool)))
    assert kernels_of(lambda: m(x, x, x, key_padding_mask=hidden, need_weights=False)) == forward
    assert not kernels_of(lambda: m(x, x, x))
    monkeypatch.setattr(mp.backend.gpu, "compute_capability", lambda: 75)
    assert not kernels_of(lambda: attention(k, k, k))
