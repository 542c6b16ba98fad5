"""An LSTM and a GRU: whole layers against the definitions on a CPU, and their traced steps against their own.

In FP16 a value that T steps computed may have gone through k T other roundings than the definition's: each is worth
u_s = 2^13 u_w of a magnitude of 1 or so, and enters as so many terms of a sum. See test_recurrent.py for k.
"""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import check_both_ways, launches, on_device
from oracle import STORAGE, WORK, randn
from tinymp import fast_path, ops
from tinymp.ops import lstm_layer

pytestmark = pytest.mark.usefixtures("gpu")

T, B, D = 4, 3, 5
PACKED = 12  # how much one step of the op stores, forward and backward
LENGTHS = [2, 4, 1]
SIZES = [1, 6, 9]


def lstm_inputs(h, p=None, t=T, b=B, scale=0.5):
    """x, W_ih, W_hh, b_ih, b_hh, h, c (, W_hr), in float64."""
    n = p or h
    shapes = [(4 * h, D), (4 * h, n), (4 * h,), (4 * h,), (b, n), (b, h)] + ([(p, h)] if p else [])
    return [randn(t, b, D), *[scale * randn(*s, seed=i + 3) for i, s in enumerate(shapes)]]


def joined(results, used=(0, 1, 2)):
    """One tensor of those results that are used: all get their gradients at once."""
    return ops.cat([y.reshape(-1) for i, y in enumerate(results) if i in used])


def lstm(used=(0, 1, 2), **options):
    def op(x, w_ih, w_hh, b_ih, b_hh, h, c, w_hr=None):
        return joined(lstm_layer(x, (h, c), w_ih, w_hh, b_ih, b_hh, w_hr, **options), used)

    return op


def hold(op, *inputs, t=T):
    longest = t * B * (4 * max(x.shape[-1] for x in inputs) + 8)
    for dtype in ("float16", "float32"):
        length = longest + PACKED * t * STORAGE[dtype] / WORK[dtype] / 2  # check_both_ways doubles it
        bounds = {"length": length, "magnitude": 1.0, "inherited": PACKED * t, "grad_length": longest}
        check_both_ways(op, *inputs, dtypes=(dtype,), mixed=dtype == "float16", **bounds)


WAYS = [{"lengths": lengths, "reverse": reverse} for lengths in (None, LENGTHS) for reverse in (False, True)]


@pytest.mark.parametrize(("h", "way"), [(h, way) for h in SIZES for way in (WAYS if h == 6 else WAYS[-1:])], ids=str)
def test_lstm(h, way):
    hold(lstm(**way), *lstm_inputs(h))


@pytest.mark.parametrize("way", WAYS[::3], ids=str)
@pytest.mark.parametrize("p", [2, 3])
def test_lstm_with_a_projection(p, way):
    hold(lstm(**way), *lstm_inputs(6, p))


@pytest.mark.parametrize("given", ["ih", "hh", ""])
def test_without_biases_and_states(given):
    x, w_ih, w_hh, bias, *_ = lstm_inputs(6)
    biases = {f"bias_{part}": bias for part in ("ih", "hh") if part == given}
    names = list(biases)
    op = lambda x, w_ih, w_hh, *b: joined(lstm_layer(x, None, w_ih, w_hh, **dict(zip(names, b))))  # noqa: E731
    hold(op, x, w_ih, w_hh, *biases.values())


def test_the_sum_of_two_biases_is_not_rounded():
    """1024 - 0.25 is no FP16 number, and 1024 - 0.25 - 1023 is one."""
    filled = lambda shape, value: np.full(shape, value)  # noqa: E731
    inputs = filled((1, 1, 1), 1.0), filled((4, 1), -1023.0), filled((4, 1), 0.0), filled(4, 1024.0), filled(4, -0.25)
    check_both_ways(lambda x, *w: lstm_layer(x, None, *w)[0], *inputs, dtypes=("float16",), gradient=False)


@pytest.mark.parametrize("used", [[0], [1], [2]])
def test_a_gradient_from_one_of_the_results(used):
    """Outputs alone; or a last state alone, and then the steps get nothing from outside."""
    hold(lstm(used), *lstm_inputs(6))


def test_arrays_that_lie_otherwise():
    """Batch first, and a gradient between two pairs."""
    hold(lambda x, *v: lstm()(x.transpose(0, 1), *v), randn(B, T, D), *lstm_inputs(6)[1:])
    hold(lambda *v: (lambda y: ops.cat([y[:1], y]))(lstm()(*v)), *lstm_inputs(6))


def test_a_gradient_that_repeats_its_memory():
    x, w_ih, w_hh, *_ = lstm_inputs(6)
    results = []
    for put in (np.asarray, on_device):
        leaf = mp.Tensor(put(x.astype("float32")), requires_grad=True)
        y = lstm_layer(leaf, None, *[mp.Tensor(put(w.astype("float32"))) for w in (w_ih, w_hh)])[0]
        one = put(np.full(1, 0.5, "float32"))
        y.backward(mp.backend.of(one).xp.broadcast_to(one, y.shape))
        results.append(leaf.grad.numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_other_dtypes_and_policies():
    """FP64, and policies with other accumulators or another rounding."""
    inputs = lstm_inputs(6)
    for dtype, policy in (("float64", mp.MIXED), ("float16", mp.FP16_ACCUMULATE), ("float16", mp.STOCHASTIC_ROUNDING)):
        tensors = [mp.Tensor(on_device(v.astype(dtype)), requires_grad=True) for v in inputs]
        with mp.use(policy):
            lstm()(*tensors).sum().backward()
        assert tensors[0].grad.shape == inputs[0].shape


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("layer", "gates", "most"), [(lstm_layer, 4, 2), (ops.gru_layer, 3, 3)])
def test_a_step_is_few_launches(layer, gates, most, dtype, gpu):
    if launches() is None:
        pytest.skip("a GPU keeps no list")

    def count(t):
        arrays = [v if i == 0 else v[: gates * 6] for i, v in enumerate(lstm_inputs(6, t=t)[:5])]
        x, *weights = [mp.Tensor(on_device(v.astype(dtype)), requires_grad=True) for v in arrays]
        before = len(launches()) + len(gpu.xp.foreign)
        y = layer(x, None, *weights)[0]
        y.backward(y.array)
        return len(launches()) + len(gpu.xp.foreign) - before

    assert count(5) - count(4) == most  # products are not counted


def test_an_audited_layer_has_the_same_bits():
    def run():
        tensors = [mp.Tensor(on_device(v.astype("float16")), requires_grad=True) for v in lstm_inputs(6, 2)]
        y = lstm(lengths=LENGTHS)(*tensors)
        y.backward(y.array)
        return [y.numpy(), *(t.grad.numpy() for t in tensors)]

    alone = run()
    with mp.audit() as audit:
        heard = run()
    for one, other in zip(alone, heard, strict=True):
        np.testing.assert_array_equal(one, other)
    rows = [row for row in audit.as_dict()["ledger"] if row["op"] == "lstm" and row["rounded"]]
    assert {row["phase"] for row in rows} == {"forward", "backward"}


def gru(x, w_ih, w_hh, b_ih, b_hh, h, **options):
    return ops.cat([y.reshape(-1) for y in ops.gru_layer(x, h, w_ih, w_hh, b_ih, b_hh, **options)])


def gru_inputs(h):
    x, w_ih, w_hh, b_ih, b_hh, state, _ = lstm_inputs(h)
    return x, w_ih[: 3 * h], w_hh[: 3 * h], b_ih[: 3 * h], b_hh[: 3 * h], state


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_gru(way):
    x, *rest = gru_inputs(6)
    for dtype in ("float16", "float32"):
        longest = T * B * 32
        length = longest + PACKED * T * STORAGE[dtype] / WORK[dtype] / 2
        bounds = {"length": length, "magnitude": 1.0, "inherited": PACKED * T, "grad_length": longest}
        op = lambda x, *v: gru(x, *v, **way)  # noqa: E731
        check_both_ways(op, x, *rest, dtypes=(dtype,), mixed=dtype == "float16", **bounds)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("h", [1, 6, 16])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("layer", "inputs"), [(lstm(), lstm_inputs), (gru, gru_inputs)], ids=["lstm", "gru"])
def test_steps_have_the_bits_of_their_definition(layer, inputs, dtype, h, special):
    """On the device, operation by operation; with infinite products, which saturate gates, and a nan in one unit."""
    arrays = [v.astype(dtype) for v in inputs(h)]
    if special:
        arrays[0][0, 0] = [np.inf, 100, -100, np.nan, 0]
        arrays[0][1, 1] = -np.inf

    def run():
        tensors = [mp.Tensor(on_device(v), requires_grad=True) for v in arrays]
        y = layer(*tensors)
        y.backward(y.array)
        return [y.numpy(), *(t.grad.numpy() for t in tensors)]

    traced = run()
    fast_path.off.update({"map", "map_into"})
    try:
        one_by_one = run()
    finally:
        fast_path.off.difference_update({"map", "map_into"})
    for one, other in zip(traced, one_by_one, strict=True):
        np.testing.assert_array_equal(one, other)
