"""The base (ops/base.py, backend/gpu.py) against the definitions on the CPU, on a GPU or its stand-in."""

import numpy as np
import pytest

import tinymp as mp
from fast.both_ways import channels_last, check_both_ways, launches, on_device
from oracle import randn
from ptx import nvrtc
from tinymp import backend, nn, ops
from tinymp.backend.gpu import HERE, LONG, Gpu, joined
from tinymp.ops import base, conv
from tinymp.precision import gemm, reduce

pytestmark = pytest.mark.usefixtures("gpu")
INF, NAN = np.inf, np.nan
ROWS = [(7,), (1, 1), (3, 5), (33, 9), (2, 3, 64), (2, 255), (2, 1025), (1, 8200)]


@pytest.mark.parametrize("shape", ROWS)
def test_softmax_of_rows(shape):
    n, kernels = shape[-1], {"softmax_rows", "softmax_rows_backward"}
    sizes = {"length": 12 + n, "grad_length": 40 + 4 * n, "inherited": 8}
    check_both_ways(lambda x: ops.softmax(x, -1), 3 * randn(*shape), kernels=kernels, **sizes)


@pytest.mark.parametrize("shape", ROWS)
def test_log_softmax_of_rows(shape):
    n, kernels = shape[-1], {"log_softmax_rows", "log_softmax_rows_backward"}
    sizes = {"length": 30 + n, "grad_length": 60 + 4 * n, "inherited": 8, "magnitude": 12}
    check_both_ways(lambda x: ops.log_softmax(x, -1), 3 * randn(*shape), kernels=kernels, **sizes)


@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax])
def test_other_axes_views_and_nothing(op):
    """Where rows are no runs of memory the definition works on CuPy's arrays; views are copied."""
    sizes = {"length": 60, "grad_length": 200, "inherited": 8, "magnitude": 12}
    for dim, view in ((0, lambda x: x), (-1, lambda x: x[:, 1:]), (-1, lambda x: x.T)):
        check_both_ways(lambda x, dim=dim, view=view: op(view(x), dim), randn(5, 18), mixed=False, **sizes)
    check_both_ways(lambda x: op(x, 0), np.array(2.0), mixed=False, **sizes)
    check_both_ways(lambda x: op(x, 1), randn(0, 3), mixed=False)


@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax])
def test_infinities_and_nan(op):
    rows = [[6, 0, -6], [-INF, 0, 0], [-INF, -INF, -INF], [INF, 0, 0], [-INF, INF, 0], [0, NAN, -INF]]
    x = np.array(rows).repeat([1, 40, 1], axis=1)
    check_both_ways(lambda x: op(x, -1), x, length=60, grad_length=200, inherited=8, magnitude=12)


@pytest.mark.parametrize("shape", [(2, 3), (4, 33), (2, 3, 5, 4), (3, 1, 700)])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(shape, affine):
    given = [1 + randn(shape[-1]).astype("float32"), randn(shape[-1]).astype("float32")] if affine else []
    check_both_ways(
        lambda x, *wb: ops.layer_norm(x, x.shape[-1], *wb),
        *(randn(*shape), *given),
        kernels={"layer_norm_rows", "layer_norm_rows_backward"},
        length=40 * shape[-1],
        grad_length=100 * shape[-1],
        magnitude=8,
    )


@pytest.mark.parametrize("shape", [(4, 3), (8, 2, 3, 3), (2, 5, 40, 3), (3, 2, 7)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("chwn", [True, False])
def test_batch_norm(shape, affine, chwn):
    n = np.prod(shape) // shape[1]
    given = [1 + randn(shape[1]).astype("float32"), randn(shape[1]).astype("float32")] if affine else []
    check_both_ways(
        lambda x, *wb: ops.batch_norm(x, None, None, *wb, training=True),
        *(randn(*shape), *given),
        kernels={"batch_norm_channels", "batch_norm_channels_backward"},
        length=40 * n,
        grad_length=200 * n,
        magnitude=8,
        chwn=chwn,
    )


def test_running_statistics_are_those_of_the_definition():
    x = randn(8, 3, 4, 4).astype("float16")
    layers = []
    for tensor in (mp.Tensor(x), mp.Tensor(on_device(x))):
        with mp.device(tensor.device):
            layers.append(mp.MIXED.cast(nn.BatchNorm2d(3)))
        layers[-1](tensor)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        one, other = (getattr(layer, name).numpy() for layer in layers)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


GEOMETRIES = [
    conv.Geometry((3, 3)),
    conv.Geometry((1, 1)),
    conv.Geometry((1, 1), stride=(2, 2)),
    conv.Geometry((3, 2), (2, 1), ((1, 0), (0, 2)), (1, 2)),
    conv.Geometry((5, 5), (3, 2), ((2, 2), (4, 1))),
    conv.Geometry((3, 3), (1, 1), ((1, 1), (1, 1)), (2, 2), groups=2),
]


@pytest.mark.parametrize("g", GEOMETRIES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_columns_and_their_sums_have_the_bits_of_the_definition(g, dtype):
    x = randn(4, 9, 8, 3).astype(dtype)
    host = conv.columns(np, x, g)
    device = conv.columns(backend.gpu.xp, on_device(x), g)
    assert device.shape == host.shape
    np.testing.assert_array_equal(device.get(), host)
    wide = randn(*host.shape).astype("float32")
    host = conv.fold(np, wide, x.shape, g, like=x)
    device = conv.fold(backend.gpu.xp, on_device(wide), x.shape, g, like=on_device(x))
    np.testing.assert_array_equal(device.get(), host)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (2, 1)}], ids=str)
def test_convolutions(groups, options):
    x, b, sizes = randn(2, 6, 7, 5), randn(6), {"length": 60, "grad_length": 800}
    w = randn(6, 6 // groups, 3, 3)
    for op in (ops.conv2d, ops.conv_transpose2d):
        check_both_ways(lambda x, w, b, op=op: op(x, w, b, groups=groups, **options), x, w, b, **sizes)


@pytest.mark.parametrize("groups", [1, 3])
def test_a_window_of_one_pixel_needs_no_columns(groups):
    """Each gradient is one product, whose result is rounded once. A shifted window is another case."""
    x, b, sizes = randn(2, 6, 4, 5), randn(6), {"length": 8, "grad_length": 80}
    for op in (ops.conv2d, ops.conv_transpose2d):
        before = len(launches() or ())
        check_both_ways(lambda x, w, b, op=op: op(x, w, b, groups=groups), x, randn(6, 6 // groups, 1, 1), b, **sizes)
        assert not {"images_to_columns", "columns_to_images"} & set((launches() or ())[before:])
    shifted = conv.Geometry((1, 1), pads=((1, -1), (0, 0)))
    assert not base.one_pixel(shifted, (4, 5)) and shifted.output(4, 5) == (4, 5)


def test_pointwise_ops_that_widen_nothing():
    """The bits of the definitions, also for infinities, NaN and zeros."""
    x = np.array([[-1, -0.0, 0, 2.0**-24, 3], [INF, -INF, NAN, 60000, 5]])
    y = np.array([[1, -0.0, -0.0, 2.0**-24, 2.0**-11], [INF, INF, 1, 60000, -5]])
    for dtype in ("float16", "float32", "float64"):
        a, b = x.astype(dtype), y.astype(dtype)
        for op in (lambda a, b: ops.relu(a), lambda a, b: a + b, lambda a, b: a + b[:1], lambda a, b: a + 1):
            host, device = (op(mp.Tensor(to(a)), mp.Tensor(to(b))).numpy() for to in (np.asarray, on_device))
            np.testing.assert_array_equal(host, device)
            np.testing.assert_array_equal(*(np.signbit(y[~np.isnan(y)]) for y in (host, device)))


@pytest.mark.parametrize("op", [ops.relu, lambda x: x + x, lambda x: x.float().half()])
def test_pointwise_ops_keep_the_memory_order(op):
    """Of a convolution's C, H, W, N: CuPy would write N, C, H, W, and read it far apart."""
    x = mp.Tensor(on_device(channels_last(randn(2, 3, 4, 5).astype("float16")))).requires_grad_()
    y = op(op(x))
    y.backward(mp.Tensor(on_device(channels_last(np.ones((2, 3, 4, 5), y.dtype)))))
    for array in (y.array, x.grad.array):
        assert sorted(range(4), key=lambda a: -array.strides[a]) == [1, 2, 3, 0]


# ------------------------------------------------------------------------------------------------ products and sums


@pytest.fixture
def calls():
    """What cuBLAS is called with; only the stand-in keeps a list."""
    from cupy_backends.cuda.libs import cublas

    if not hasattr(cublas, "calls"):
        pytest.skip("cuBLAS keeps no list of its calls")
    return cublas.calls


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_products_take_stored_operands_and_round_once(dtype, bias, calls):
    """FP16 operands reach cuBLAS as they are stored; a bias takes part in the one rounding."""
    a, b, c = (randn(*s).astype(dtype) for s in ((2, 5, 33), (33, 7), (7,)))
    before = len(calls)
    y = gemm(on_device(a), on_device(b), on_device(c) if bias else None).get()
    wide = a.astype(np.float64) @ b.astype(np.float64) + (c if bias else 0)
    unit = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}[dtype]
    sums = {"float64": 2.0**-53}.get(dtype, 2.0**-24)
    bound = unit * np.abs(wide) + 40 * sums * (np.abs(a).astype(float) @ np.abs(b).astype(float) + 4) + 2.0**-25
    assert (np.abs(y - wide) <= bound).all()
    (call,) = calls[before:]
    kinds = {"float16": (2, 2, 0 if bias else 2), "float32": (0, 0, 0), "float64": (1, 1, 1)}
    assert (call["types"], call["compute"]) == (kinds[dtype], {"float16": 68, "float32": 69, "float64": 70}[dtype])


def test_tf32_only_where_a_policy_asks_for_it(calls):
    a = on_device(randn(4, 4).astype("float32"))
    for policy, compute in ((mp.FP32, 69), (mp.TF32, 77)):
        with mp.use(policy):
            gemm(a, a)
        assert calls[-1]["compute"] == compute


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((2, 1, 3, 4), (1, 6, 4, 5)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
        ((6, 3, 4), (6, 4, 1)),
    ],
)
def test_shapes_of_products(a, b):
    check_both_ways(ops.matmul, randn(*a), randn(*b), length=8, grad_length=80, grad_roundings=4)


def test_operands_as_they_lie():
    """Transposed, with gaps, one row of each two, and neither rows nor columns contiguous."""
    for view in (lambda x: x.T, lambda x: x[:, :4], lambda x: x[::2], lambda x: x[:, ::2]):
        check_both_ways(lambda x, view=view: ops.matmul(view(x), view(x).T), randn(6, 8), length=8, grad_length=40)


@pytest.mark.parametrize("shape", [(3, 5), (LONG + 3,), (2, 3 * LONG + 5), (5, LONG, 2), (3, 70, 80)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sums(shape, dtype):
    x = np.abs(randn(*shape)).astype(dtype)
    for axis in [*range(len(shape)), tuple(range(len(shape)))]:
        for how in ("sum", "mean"):
            y, expected = (
                reduce(on_device(x), axis, how).get(),
                getattr(x.astype(np.float64), how)(axis, keepdims=True),
            )
            assert y.dtype == ("float64" if dtype == "float64" else "float32")
            np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_no_more_terms_than_promised_are_added_at_once(monkeypatch):
    """CuPy shares a sum among 16 threads or more: an axis longer than LONG is cut."""
    seen = []
    xp, whole = backend.gpu.xp, backend.gpu.xp.sum

    def watched(x, axis=None, **options):
        axes = axis if isinstance(axis, tuple) else (axis,)
        seen.append(np.prod([x.shape[a] for a in axes]))
        return whole(x, axis=axis, **options)

    monkeypatch.setattr(xp, "sum", watched, raising=False)
    reduce(xp.ones((3, 5 * LONG + 7, 60), "float16"), (0, 1, 2), "sum")
    assert max(seen) <= LONG < 5 * LONG


# ---------------------------------------------------------------------------------------------------------- observers


def network():
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten()),
        *(nn.Linear(36, 12), nn.LayerNorm(12), nn.Linear(12, 6), nn.Softmax(-1), nn.LogSoftmax(-1)),
    )


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED], ids=lambda p: p.name)
def test_an_audit_hears_what_trains_bit_for_bit(policy):
    """Losses, gradients and buffers are the same; the ledger has the rounding of every op."""

    def step():
        mp.manual_seed(3)
        with mp.device("gpu"):
            net = policy.cast(network())
            x = policy.cast(mp.randn(3, 2, 8, 8))
        scaler = mp.optim.StaticLossScaler(64.0)
        scaler.scale((net(x).float() ** 2).sum()).backward()
        return [p.grad.numpy() for p in net.parameters()] + [b.numpy() for b in net.buffers()]

    alone = step()
    before = len(launches() or ())
    with mp.audit() as audit:
        heard = step()
    for one, other in zip(alone, heard, strict=True):
        np.testing.assert_array_equal(one, other)
    rows = {f"{name}_rows{phase}" for name in ("softmax", "log_softmax", "layer_norm") for phase in ("", "_backward")}
    others = {"batch_norm_channels", "batch_norm_channels_backward", "images_to_columns", "columns_to_images"}
    assert launches() is None or rows | others <= set(launches()[before:])
    if policy is mp.MIXED:
        rounded = {(row["op"], row["phase"]) for row in audit.as_dict()["ledger"] if row["rounded"]}
        for op in ("conv2d", "batch_norm", "layer_norm", "softmax", "log_softmax", "linear"):
            assert {(op, "forward"), (op, "backward")} <= rounded


def test_an_audit_says_which_path_it_heard(fast_cuda):
    """Beside enabled fast paths it hears the base, bit for bit; the steps outside of it run them."""

    def step():
        mp.manual_seed(3)
        with mp.device("gpu"):
            net = mp.MIXED.cast(network())
            optimizer, scaler = mp.optim.SGD(net.parameters(), lr=0.1), mp.optim.StaticLossScaler(64.0)
            x = mp.MIXED.cast(mp.Tensor(on_device(randn(3, 2, 8, 8))))
        before = len(launches() or ())
        scaler.scale((net(x).float() ** 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return [p.master.get() for p in net.parameters()], set((launches() or ())[before:])

    alone, kernels = step()
    assert launches() is None or {"sgd", "batch_norm_forward"} <= kernels
    with mp.audit() as fast:
        heard, kernels = step()
    assert launches() is None or {"sgd", "batch_norm_forward"} <= kernels
    for one, other in zip(heard, alone, strict=True):
        np.testing.assert_array_equal(one, other)
    assert {"batch_norm", "conv2d"} <= {row.op for row in fast.ledger if row.rounded}
    mp.enable_fast("cuda", False)
    with mp.audit() as audit:
        step()
    assert "fast/cuda" in str(fast) and "fast/cuda" not in str(audit)
    mp.enable_fast("cuda")
    assert "fast/cuda" not in str(audit) and mp.info()["fast paths"] == "cpu, cuda"


def test_a_study_runs_the_definitions(monkeypatch):
    monkeypatch.setattr(base, "launch", None)
    with mp.use(mp.FP16_REDUCTIONS), mp.device("gpu"):
        x = mp.MIXED.cast(mp.randn(3, 5)).requires_grad_()
        ops.softmax(x, 1).sum().backward()


@pytest.mark.parametrize("architecture", ["sm_70", "sm_90"])
def test_nvrtc_compiles_what_an_observer_sees(architecture):
    """Results in FP32 of FP16 storage; tests/fast/test_nvrtc.py compiles the rest."""
    if nvrtc.library(nvrtc.package(architecture)) is None:
        pytest.skip("NVRTC is not installed (the extra dev)")
    code = "#define RESULT float\n" + joined([HERE / name for name in ("hardware.cuh", "common.cuh", "base.cu")])
    done, log, _ = nvrtc.compiled(code, "half", architecture)
    assert done, log


def test_a_bias_is_no_second_rounding():
    """1 + 2^-11 + 2^-11: rounded to FP16 before the bias is added it would be 1 + 2^-10 less one step."""
    a = on_device(np.array([[1, 2.0**-11]], "float16"))
    b = on_device(np.array([[1], [1]], "float16"))
    assert gemm(a, b, on_device(np.array([2.0**-11], "float16"))).get() == 1 + 2.0**-10


def test_channels_first_and_last_lie_as_they_are():
    x = on_device(channels_last(randn(2, 3, 4, 4).astype("float16")))
    y = ops.batch_norm(mp.Tensor(x), None, None, training=True)
    assert y.array.strides == x.strides
    assert isinstance(backend.gpu, Gpu)


def test_gradients_are_looked_at_with_one_wait(gpu):
    xp = gpu.xp
    arrays = [xp.ones(3, "float16"), np.ones(2, "float32"), xp.array([1, INF], "float16"), xp.array([NAN], "float32")]
    assert gpu.first_bad(arrays) == 2
    assert gpu.first_bad(arrays[:2]) is None
    assert gpu.first_bad([]) is None
    assert mp.backend.cpu.first_bad(arrays) == 2
    if hasattr(xp, "synchronisations"):
        before = len(xp.synchronisations)
        gpu.first_bad([arrays[0]] * 50)
        assert len(xp.synchronisations) == before + 1


def test_making_a_network_compares_nothing_on_the_gpu(gpu):
    """CuPy compiles a kernel for each operation; a value is checked where it lies, by a maximum and a minimum."""
    if not hasattr(gpu.xp, "foreign"):
        pytest.skip("only the stand-in counts")
    before = len(gpu.xp.foreign)
    with mp.device("gpu"):
        mp.MIXED.cast(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Linear(64, 64)))
    done = {what.partition(" ")[0] for what in gpu.xp.foreign[before:]}
    assert done <= {"__setitem__", "asarray", "astype", "copy", "full_like", "max", "min", "zeros"}, done


def test_labels_are_checked_by_a_minimum(gpu):
    """CuPy would compile a kernel for `all`. A batch without labels is right."""
    good = gpu.xp.ones((2, 3), bool)
    gpu.require(good, ValueError, "no")
    gpu.require(good[:0], ValueError, "no")
    good[1, 2] = False
    with pytest.raises(ValueError, match=r"no, got 5 at index \(1, 2\)"):
        gpu.require(good, ValueError, "no", gpu.xp.arange(6).reshape(2, 3))
