"""A study's result for an image depends on the mathematics alone: on no other image, and on no fast path."""

from itertools import permutations

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import ops
from tinymp.ops import gru_layer, lstm_layer

pytestmark = pytest.mark.cpu  # on a GPU the order within a product is the hardware's


def t(*shape, seed=1):
    return mp.tensor(randn(*shape, seed=seed).astype("float16"))


def recurrent(layer, gates):
    """The outputs (T, N, H) with the axis N first."""
    w = t(gates * 8, 24), t(gates * 8, 8, seed=2), t(gates * 8)
    return lambda x: layer(x.transpose(0, 1), None, *w)[0].transpose(0, 1)


# What it does with x, and the shape of one image of x. No sum may run over the images.
CASES = {
    "conv2d": (lambda x: ops.conv2d(x, t(6, 32, 3, 3), t(6), padding=1), (32, 5, 4)),
    "conv2d, grouped": (lambda x: ops.conv2d(x, t(8, 4, 3, 3), None, 2, 1, 1, 2), (8, 6, 5)),
    "conv2d, depthwise": (lambda x: ops.conv2d(x, t(8, 1, 3, 3), None, 1, 1, 1, 8), (8, 6, 5)),
    "conv_transpose2d": (lambda x: ops.conv_transpose2d(x, t(8, 6, 4, 4), t(6), 2, 1), (8, 3, 4)),
    "linear": (lambda x: ops.linear(x, t(10, 70), t(10)), (70,)),
    "matmul": (lambda x: ops.matmul(x, t(70, 5)), (3, 70)),
    "scaled_dot_product_attention": (lambda x: ops.scaled_dot_product_attention(x, x, x), (2, 9, 24)),
    "lstm": (recurrent(lstm_layer, 4), (5, 24)),
    "gru": (recurrent(gru_layer, 3), (5, 24)),
    "adaptive_avg_pool2d": (lambda x: ops.adaptive_avg_pool2d(x, (2, 3)), (4, 7, 5)),
    "avg_pool2d": (lambda x: ops.avg_pool2d(x, 3, 2), (4, 7, 5)),
    "max_pool2d": (lambda x: ops.max_pool2d(x, 3, 1), (4, 7, 5)),
    "cumsum": (lambda x: ops.cumsum(x, 1), (70, 3)),
    "group_norm": (lambda x: ops.group_norm(x, 2, t(8), t(8)), (8, 5, 7)),
    "layer_norm": (lambda x: ops.layer_norm(x, (5, 70), t(5, 70), t(5, 70)), (5, 70)),
    "rms_norm": (lambda x: ops.rms_norm(x, (70,), t(70)), (5, 70)),
    "local_response_norm": (lambda x: ops.local_response_norm(x, 5), (8, 5, 7)),
    "log_softmax": (lambda x: ops.log_softmax(x, 1), (70, 3)),
    "softmax": (lambda x: ops.softmax(x, -1), (3, 70)),
    "logsumexp": (lambda x: ops.logsumexp(x, 1), (70, 3)),
    "amax": (lambda x: ops.amax(x, 1), (70, 3)),
    "mean": (lambda x: ops.mean(x, (1, 2)), (70, 3)),
    "sum": (lambda x: ops.sum(x, 1), (70, 3)),
    "var": (lambda x: ops.var(x, 1), (70, 3)),
    "std": (lambda x: ops.std(x, 2), (3, 70)),
    "norm": (lambda x: ops.norm(x, dim=1), (70, 3)),
    "normalize": (lambda x: ops.normalize(x), (70, 3)),
    "expand": (lambda x: x.unsqueeze(2).expand(-1, -1, 70, -1), (4, 3)),
    "gather": (lambda x: ops.gather(x, 1, mp.tensor(np.zeros((len(x), 70), int))), (3,)),
    "pad": (lambda x: ops.pad(x, (3, 3), "circular"), (4, 9)),
    "interpolate": (lambda x: ops.interpolate(x, scale_factor=3), (4, 3, 2)),
    "unfold": (lambda x: ops.unfold(x, 3), (4, 6, 5)),
}  # fmt: skip
STUDIES = {name: mp.POLICIES[name] for name in ("FP16_REDUCTIONS", "PURE_FP16", "FP16_SUMS_HOPPER")}
STUDIES["chunk=16"] = mp.study.change(mp.FP16_ACCUMULATE, chunk=16)
STUDIES["promoted"] = mp.study.change(mp.FP16_HOPPER, name="promoted", promote=32)


def results(name, n):
    """Result and gradient of the first of n images."""
    op, shape = CASES[name]
    x = mp.tensor(randn(64, *shape).astype("float16")[:n], requires_grad=True)
    y = op(x)
    y.backward(randn(64, *y.shape[1:], seed=3).astype("float16")[:n])
    return y.numpy()[0], host(x.grad)[0]


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("name", CASES)
def test_an_image_has_the_bits_that_it_has_alone(name, study):
    with mp.use(STUDIES[study]):
        for one, first in zip(results(name, 1), results(name, 64), strict=True):
            np.testing.assert_array_equal(one, first)


@pytest.mark.parametrize(("chunk", "rows"), [(4, 1), (4, 64), (16, 64)])
def test_a_chunk_is_summed_exactly(chunk, rows):
    """2048 + 1 + 2^-13 + 2^-13 lies above the middle of two FP16 numbers; FP32 loses 2^-13 if it comes last."""
    a = np.tile(np.array([2048, 1, 2.0**-13, 2.0**-13], "float16"), (rows, 1))
    b = mp.tensor(np.ones((4, 33), "float16"))
    with mp.use(mp.study.change(mp.FP16_ACCUMULATE, chunk=chunk)):
        for order in permutations(range(4)):
            assert (ops.matmul(mp.tensor(a[:, order]), b).numpy() == 2050).all()


# ---- sums that ops build up piece by piece ----


def halves(array):
    return mp.tensor(np.asarray(array, "float16"), requires_grad=True)


@pytest.mark.parametrize(("policy", "expected"), [(mp.MIXED, 1.0), (mp.FP16_REDUCTIONS, 0.5)])
def test_average_pooling(policy, expected):
    """4 096 ones: an FP16 accumulator stalls at 2 048."""
    with mp.use(policy):
        assert ops.avg_pool2d(halves(np.ones((1, 1, 64, 64))), 64).item() == expected


@pytest.mark.parametrize(("policy", "expected"), [(mp.MIXED, 5000), (mp.FP16_REDUCTIONS, 2048)])
def test_lookup_gradients(policy, expected):
    for lookup in (lambda w, i: ops.embedding(i, w), lambda w, i: w[i], lambda w, i: ops.index_select(w, 0, i)):
        w = halves(np.zeros((2, 1)))
        with mp.use(policy):
            lookup(w, mp.tensor(np.ones(5000, int))).backward(np.ones((5000, 1), "float16"))
        assert w.grad.tolist() == [[0], [expected]]


@pytest.mark.parametrize(("policy", "expected"), [(mp.MIXED, 4900), (mp.FP16_ACCUMULATE, 2048)])
def test_folded_products(policy, expected):
    """The centre of a transposed convolution meets 4 900 kernels."""
    with mp.use(policy):
        y = ops.conv_transpose2d(halves(np.ones((1, 1, 70, 70))), halves(np.ones((1, 1, 70, 70))))
    assert y.array[0, 0, 69, 69] == expected
