"""An LSTM: whole layers against their definitions, then single steps, which are held tighter.

In FP16 a value that T steps computed may have gone through k T other roundings than the definition's: each is worth
u_s = 2^13 u_w of a magnitude of 1 or so, and enters as so many terms of a sum. See test_recurrent.py for k.
"""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import check_both_ways, launches, on_device
from oracle import STORAGE, WORK, assert_close, randn, tolerance
from tinymp import ops
from tinymp.fast.cpu import recurrent
from tinymp.gpu.recurrent import KERNELS as CUDA
from tinymp.ops import lstm_layer

pytestmark = pytest.mark.usefixtures("gpu")

T, B, D = 4, 3, 5
PACKED = 12  # how much one step of the op stores, forward and backward
LENGTHS = [2, 4, 1]
KERNELS = {"lstm_unit", "lstm_unit_backward"}
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
        check_both_ways(op, *inputs, kernels=KERNELS, dtypes=(dtype,), mixed=dtype == "float16", **bounds)


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


def test_what_no_kernel_may_do_is_left_to_the_definition():
    """FP64, and policies with other accumulators or another rounding."""
    inputs = lstm_inputs(6)
    for dtype, policy in (("float64", mp.MIXED), ("float16", mp.FP16_ACCUMULATE), ("float16", mp.STOCHASTIC_ROUNDING)):
        tensors = [mp.Tensor(on_device(v.astype(dtype)), requires_grad=True) for v in inputs]
        before = len(launches() or [])
        with mp.use(policy):
            lstm()(*tensors).sum().backward()
        assert not KERNELS & set((launches() or [])[before:])
        assert tensors[0].grad.shape == inputs[0].shape


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_step_is_one_product_and_one_kernel(dtype, gpu):
    if launches() is None:
        pytest.skip("a GPU keeps no list")

    def count(t):
        x, *weights = [mp.Tensor(on_device(v.astype(dtype)), requires_grad=True) for v in lstm_inputs(6, t=t)[:5]]
        before = len(launches()) + len(gpu.xp.foreign)
        y = lstm_layer(x, None, *weights)[0]
        y.backward(y.array)
        return len(launches()) + len(gpu.xp.foreign) - before

    assert count(5) - count(4) == 2  # products are not counted


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


# --------------------------------------------------------------------------------------------------------- single steps


# what NumPy reads widened, and kernels as it is stored
WIDENED = {"lstm_unit": {"a"}, "lstm_unit_backward": {"a", "c_before", "cell"}}


def launch(kernel, arrays):
    """The kernel on what the CPU's fast path takes, by name."""
    names = {"lstm_unit": "a m c a cell h", "lstm_unit_backward": "a cell c_before dh dy dc dz"}[kernel].split()
    dtype, (n, h) = arrays["cell"].dtype, arrays["cell"].shape
    CUDA.launch(kernel, np.dtype(dtype), -(-n * h // 128), 128, *[arrays[k] for k in names], n * h, h)


def step(kernel, by_cpu, dtype, arrays, results, magnitude):
    """One step by the CPU's fast path and by the kernel on the device; `results` are the arrays it writes.

    Arrays in float64 become dtype, those in float32 stay. Values of FP32 arithmetic, rounded once: neighbours at worst.
    """
    stored = {k: v.astype(dtype) if getattr(v, "dtype", None) == np.float64 else v for k, v in arrays.items()}
    host = {k: v if v is None else v.astype("float32") if k in WIDENED[kernel] else v.copy() for k, v in stored.items()}
    device = {k: v if v is None else on_device(v) for k, v in stored.items()}
    with np.errstate(all="ignore"):
        by_cpu(np, **host)
    launch(kernel, device)
    for name in results:
        got = mp.backend.to_cpu(device[name])
        assert got.dtype == stored[name].dtype
        with np.errstate(over="ignore"):
            e = host[name].astype(got.dtype)
        wide = e.astype("float64")
        # two tanh differ in the last bit; 1 - t^2 magnifies that by 2 t / (1 - t^2), which is 200 for a state of 3
        terms = 400 if kernel == "lstm_unit_backward" else 64
        bound = tolerance(e.dtype.name, wide, 2, terms, np.maximum(magnitude, abs(wide)))
        bound += 2.0**-24 if e.dtype == "float16" else 0
        assert_close(got, wide, bound, name)


def lstm_unit(n, h):
    return {
        "m": single(n, 4 * h),
        "c": randn(n, h, seed=1),
        "a": randn(n, 4 * h, seed=2),
        "cell": room(n, h),
        "h": room(n, h),
    }


def lstm_unit_backward(n, h, dy=True):
    a = 1 / (1 + np.exp(-randn(n, 4 * h)))
    a[:, 2 * h : 3 * h] = np.tanh(randn(n, h))
    states = {"a": a, "c_before": randn(n, h, seed=1), "cell": randn(n, h, seed=2)}
    gradients = {"dh": single(n, h, seed=3), "dy": single(n, h, seed=4) if dy else None, "dc": single(n, h, seed=5)}
    return states | gradients | {"dz": room(n, 4 * h)}


def single(*shape, seed=0):
    return randn(*shape, seed=seed).astype("float32")


def room(*shape):
    """What the kernel is to fill in."""
    return np.full(shape, -3.0)


STEPS = [
    pytest.param("lstm_unit", recurrent.lstm_gates, lstm_unit, ["a", "cell", "h"], id="forward"),
    pytest.param("lstm_unit_backward", recurrent.lstm_slopes, lstm_unit_backward, ["dz", "dc"], id="backward"),
]
both = pytest.mark.parametrize("dtype", ["float16", "float32"])
every_step = pytest.mark.parametrize(("kernel", "by_cpu", "build", "results"), STEPS)


@both
@every_step
@pytest.mark.parametrize(("n", "h"), [(1, 1), (3, 6), (2, 9), (5, 256), (2, 258), (2, 301)])
def test_step(kernel, by_cpu, build, results, n, h, dtype):
    step(kernel, by_cpu, dtype, build(n, h), results, 8.0)


@both
def test_backward_without_a_gradient_from_outside(dtype):
    step("lstm_unit_backward", recurrent.lstm_slopes, dtype, lstm_unit_backward(3, 6, False), ["dz", "dc"], 8.0)


@both
@every_step
@pytest.mark.parametrize("h", [6, 9])
def test_saturated_gates(kernel, by_cpu, build, results, h, dtype):
    """Infinite products saturate the gates, and nan stays nan, in its own unit."""
    special = np.array([np.inf, -np.inf, np.nan, 100.0, -100.0, 1.0, 0.5, 0.0, -0.0])
    arrays = build(len(special), h)
    for name in [k for k, v in arrays.items() if v is not None and v.ndim == 2]:
        values = arrays[name].copy()
        for unit in range(h):
            values[:, unit::h] = np.roll(special, unit)[:, None]
        step(kernel, by_cpu, dtype, arrays | {name: values}, results, 100.0)


def test_nan_stays_in_its_unit():
    arrays = lstm_unit(3, 6)
    arrays["m"][1, 8] = np.nan  # the forget gate of unit 2
    device = {k: on_device(v.astype("float32")) for k, v in arrays.items()}
    launch("lstm_unit", device)
    for name, places in (("a", [(1, 8)]), ("cell", [(1, 2)]), ("h", [(1, 2)])):
        assert np.argwhere(np.isnan(mp.backend.to_cpu(device[name]))).tolist() == [list(p) for p in places]
