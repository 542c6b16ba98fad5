"""Sampled softmax: the sampler against its distribution, the loss against its oracle and against the full softmax."""

from functools import partial
from itertools import permutations

import numpy as np
import pytest

import tinymp as mp
from examples.paper.sampled_softmax import (
    Sample,
    SampledLogits,
    SampledSoftmax,
    SampledSoftmaxLoss,
    log_uniform_sample,
    sampled_softmax_loss,
    smallest,
)
from oracle import check, host, randn, rng
from tinymp import SparseRows, nn, ops, optim

N, D, V = 6, 5, 12
TARGET = np.array([0, 3, 11, 3, 7, 1])
CLASSES = np.array([0, 1, 3, 8])  # 0, 1 and 3 (twice) are hits
EXPECTED = np.linspace(1, 0.05, V)
NO_BIAS = np.zeros(V)


def sample(classes=CLASSES, expected=EXPECTED):
    return Sample(mp.tensor(classes), mp.tensor(expected.astype("float32")))


def inputs(dtype="float32", requires_grad=True):
    arrays = randn(N, D), randn(V, D, seed=1), randn(V, seed=2)
    return [mp.tensor(a.astype(dtype), requires_grad=requires_grad) for a in arrays]


def log_sum_exp(z):
    top = z.max(1, keepdims=True)
    return (np.log(np.exp(z - top).sum(1, keepdims=True)) + top)[:, 0]


def oracle_of_loss(t, s, reduction="none"):
    log_q = np.log(EXPECTED.astype("float32").astype("float64"))
    own, others = t - log_q[TARGET], s - log_q[CLASSES]
    others = np.where(TARGET[:, None] == CLASSES, -np.inf, others)
    loss = log_sum_exp(np.concatenate([own[:, None], others], 1)) - own
    return loss if reduction == "none" else getattr(loss, reduction)()


def oracle_of_logits(x, w, b=NO_BIAS):
    t = (x * w[TARGET]).sum(1) + b[TARGET]
    return np.concatenate([t[:, None], x @ w[CLASSES].T + b[CLASSES]], 1)


# -------------------------------------------------------------------------------------------------------- the sampler


def probability(classes):
    c = np.arange(classes)
    return np.log((c + 2) / (c + 1)) / np.log(classes + 1)


def draws(n, classes, times, **options):
    return [log_uniform_sample(n, classes, **options) for _ in range(times)]


def test_a_sample():
    s = log_uniform_sample(50, 1000)
    classes, expected = s.classes.numpy(), s.expected.numpy()
    assert classes.dtype == "int64" and expected.dtype == "float32" and expected.shape == (1000,)
    assert (np.diff(classes) > 0).all() and set(classes.tolist()) <= set(range(1000))
    assert (np.diff(expected) < 0).all() and 0 < expected[-1] < expected[0] <= 1


def test_it_is_drawing_until_there_are_n_distinct_classes():
    """How often each class is in a sample, against the sum over all orders in which n classes can come first."""
    classes, n, times = 6, 3, 4000
    p, exact = probability(classes), np.zeros(classes)
    for order in permutations(range(classes), n):
        weight, left = 1.0, 1.0
        for c in order:
            weight, left = weight * p[c] / left, left - p[c]
        exact[list(order)] += weight
    mp.manual_seed(1)
    seen = sum(np.bincount(s.classes.numpy(), minlength=classes) for s in draws(n, classes, times)) / times
    assert exact.sum() == pytest.approx(n)
    assert (abs(seen - exact) < 4.5 * np.sqrt(exact * (1 - exact) / times)).all()


@pytest.mark.parametrize("n", [1, 8, 39])
def test_sums_over_a_sample_are_unbiased(n):
    classes, times = 40, 3000
    f = 1 + rng(3).random(classes)
    mp.manual_seed(2)
    sums = [(f[c.numpy()] / e.numpy()[c.numpy()]).sum() for c, e in draws(n, classes, times)]
    assert abs(np.mean(sums) - f.sum()) < 4.5 * np.std(sums) / np.sqrt(times)


def test_all_classes():
    classes, expected = log_uniform_sample(7, 7)
    assert classes.tolist() == list(range(7)) and expected.tolist() == [1] * 7


@pytest.mark.cpu
def test_a_seed_draws_the_same_again():
    mp.manual_seed(5)
    first, second = (log_uniform_sample(8192, 793_471) for _ in range(2))
    mp.manual_seed(5)
    again = log_uniform_sample(8192, 793_471)
    assert (first.classes.numpy() == again.classes.numpy()).all() and (
        first.expected.numpy() == again.expected.numpy()
    ).all()
    assert (first.classes.numpy() != second.classes.numpy()).any()
    assert first.expected.numpy().sum() == pytest.approx(8192, rel=0.05)  # 4 standard deviations


@pytest.mark.parametrize("n", [1, 7, 500, 999, 1000])
def test_of_equal_times_those_of_the_first_classes_are_taken(n):
    """On every machine: NumPy's partition takes any of them, others with other instructions."""
    time = rng(0).integers(0, 9, 1000).astype("float32")
    np.testing.assert_array_equal(smallest(time, n), np.argsort(time, kind="stable")[:n])


@pytest.mark.parametrize("n", [0, 6])
def test_refused_samples(n):
    with pytest.raises(ValueError, match=r"log_uniform_sample: expected `n` in \[1, 5\], the number of classes, got"):
        log_uniform_sample(n, 5)


# ----------------------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("bias", [True, False])
def test_logits(bias):
    def logits(x, w, *b):
        t, s = SampledLogits.apply(x, w, *(b or [None]), mp.tensor(TARGET), mp.tensor(CLASSES), sparse=False)
        return ops.cat([t.reshape(-1, 1), s], 1)

    arrays = randn(N, D), randn(V, D, seed=1), *([randn(V, seed=2)] if bias else [])
    # the longest sums: D terms in a logit and N + 2 in a row of dw, of up to |x||w|
    check(
        logits,
        oracle_of_logits,
        *arrays,
        length=D,
        grad_length=2 * N,
        magnitude=lambda x, w, b=NO_BIAS: (x @ w.T).max() + b.max(),
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_loss(reduction):
    def loss(t, s):
        return SampledSoftmaxLoss.apply(
            t, s, mp.tensor(TARGET), mp.tensor(CLASSES), _like(sample().expected, t), reduction=reduction
        )

    # logits of size up to m lose digits when their maximum is subtracted
    check(
        loss,
        partial(oracle_of_loss, reduction=reduction),
        8 * randn(N),
        8 * randn(N, len(CLASSES), seed=1),
        length=len(CLASSES) + N,
        magnitude=lambda t, s: max(t.max(), s.max()) * (N if reduction == "sum" else 1),
        grad_length=64,
        result="float32",
    )


def _like(expected, t):
    return expected.double() if t.dtype == "float64" else expected


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_function_is_the_loss_of_the_logits(dtype):
    x, w, b = inputs(dtype)
    loss = sampled_softmax_loss(x, mp.tensor(TARGET), w, b, len(CLASSES), sampled=sample(), reduction="none")
    logits = oracle_of_logits(*[a.numpy().astype("float64") for a in (x, w, b)])
    np.testing.assert_allclose(loss.numpy(), oracle_of_loss(logits[:, 0], logits[:, 1:]), rtol=1e-5)
    assert loss.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sparse_gradients_are_the_rows_of_the_dense_ones(dtype):
    grads = []
    for sparse in (True, False):
        x, w, b = inputs(dtype)
        sampled_softmax_loss(x, mp.tensor(TARGET), w, b, 4, sampled=sample(), sparse=sparse).backward()
        grads.append([x.grad_array, w.grad_array, b.grad_array])
    touched = sorted({*TARGET.tolist(), *CLASSES.tolist()})
    for s, d in zip(grads[0][1:], grads[1][1:], strict=True):
        assert isinstance(s, SparseRows) and s.dtype == dtype and sorted(set(host(s.indices).tolist())) == touched
        np.testing.assert_array_equal(host(s.dense()), host(d))
    np.testing.assert_array_equal(host(grads[0][0]), host(grads[1][0]))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_with_all_classes_it_is_the_full_softmax(dtype):
    results = []
    for loss in (
        lambda x, w, b: sampled_softmax_loss(x, mp.tensor(TARGET), w, b, V, sparse=False),
        lambda x, w, b: ops.cross_entropy(ops.linear(x, w, b), mp.tensor(TARGET)),
    ):
        leaves = inputs(dtype)
        y = loss(*leaves)
        y.backward()
        results.append([y.numpy(), *[host(p.grad) for p in leaves]])
    tolerance = 2.0**-9 if dtype == "float16" else 1e-5  # the FP16 gradients of logits lie apart by a rounding or two
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6 if dtype == "float32" else 1e-3)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 8)


def test_it_comes_close_to_the_full_softmax_as_the_sample_grows():
    mp.manual_seed(3)
    classes, rows = 400, 64
    x, w = (mp.tensor(randn(n, 16, seed=n).astype("float32") / 2) for n in (rows, classes))
    target = mp.tensor(rng(4).integers(0, classes, rows))
    full = ops.cross_entropy(ops.linear(x, w), target).item()
    errors = []
    for n in (4, 40, 200, 400):
        each = [sampled_softmax_loss(x, target, w, None, n).item() for _ in range(40)]
        errors.append(np.abs(np.array(each) - full).mean())
    assert errors == sorted(errors, reverse=True) and errors[3] < 1e-5 < 0.5 < errors[0], errors


@pytest.mark.cpu
@pytest.mark.parametrize("corrected", [True, False])
def test_training_on_samples_finds_the_distribution(corrected):
    """Targets are rarest where samples are most frequent: without the correction, such classes come out too rare."""
    mp.manual_seed(0)
    classes, n = 12, 4
    p = np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()
    b, x = nn.Parameter(np.zeros(classes, "float32")), mp.tensor(np.zeros((300, 1), "float32"))
    optimizer = optim.Adagrad([b], lr=0.3)
    for k in range(400):
        drawn = log_uniform_sample(n, classes)
        drawn = drawn if corrected else Sample(drawn.classes, ops.ones(classes))
        target = mp.tensor(rng(k).choice(classes, 300, p=p))
        sampled_softmax_loss(x, target, ops.zeros(classes, 1), b, n, sampled=drawn).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = np.exp(b.numpy()) / np.exp(b.numpy()).sum()
    assert abs(found / p - 1).max() < 0.25 if corrected else (found / p)[0] < 0.5


def test_a_sample_of_hits_alone_teaches_nothing():
    x, w, b = inputs()
    s = sample(np.array([3]))
    loss = sampled_softmax_loss(x, mp.tensor(np.full(N, 3)), w, b, 1, sampled=s)
    loss.backward()
    assert loss.item() == 0 and not host(x.grad).any() and not host(w.grad.dense()).any()


def test_mixed_precision():
    """FP16 logits and gradients, an FP32 loss, FP32 sums: an FP16 one of 5 000 halves stalls at 1024."""
    x, w, b = inputs("float16")
    loss = sampled_softmax_loss(x, mp.tensor(TARGET), w, b, 4, sampled=sample())
    assert loss.dtype == "float32"
    loss.backward()
    assert {x.grad.dtype, w.grad.dtype, b.grad.dtype} == {np.dtype("float16")}
    many = mp.tensor(np.ones((5000, 1), "float16"))
    b = mp.tensor(np.zeros(3, "float16"), requires_grad=True)
    w = mp.tensor(np.zeros((3, 1), "float16"), requires_grad=True)
    s = Sample(mp.tensor([1]), mp.tensor(np.ones(3, "float32")))
    sampled_softmax_loss(many, mp.tensor(np.zeros(5000, int)), w, b, 1, sampled=s, reduction="sum").backward()
    assert host(b.grad.dense()).tolist() == [-2500, 2500, 0] and host(w.grad.dense())[:, 0].tolist() == [-2500, 2500, 0]


@pytest.mark.cpu  # a GPU finds targets out of range later
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"negatives": 13}, ValueError, r"expected `n` in \[1, 12\], the number of classes, got 13"),
        ({"negatives": 0}, ValueError, r"expected `n` in \[1, 12\]"),
        ({"target": [0, 1, 2, 3, 4, 12]}, ValueError, r"a class in \[0, 11\], got 12 at index 5"),
        ({"target": [0, 1, 2, 3, 4, -1]}, ValueError, "got -1 at index 5"),
        ({"target": [0, 1]}, ValueError, r"`target` \(N,\), got .* and \(2,\)"),
        ({"hidden": np.zeros((2, 3, 5), "f4")}, ValueError, "flatten the axes of time and batch first"),
        ({"hidden": np.zeros((6, 4), "f4")}, ValueError, r"`hidden` \(N, D\), `weight` \(V, D\) .*, got \(6, 4\)"),
        ({"hidden": np.zeros((6, 5), "f2")}, TypeError, "`hidden` is float16, `weight` is float32"),
        ({"reduction": "max"}, ValueError, "expected `reduction` to be one of"),
        ({"hidden": np.zeros((0, 5), "f4"), "target": np.zeros(0, int)}, ValueError, "skip the empty batch"),
    ],
)
def test_refused(change, error, message):
    x, w, b = inputs()
    given = {k: mp.tensor(v) if isinstance(v, (list, np.ndarray)) else v for k, v in change.items()}
    arguments = {"hidden": x, "target": mp.tensor(TARGET), "weight": w, "bias": b, "negatives": 4, **given}
    with pytest.raises(error, match=message):
        sampled_softmax_loss(**arguments)


# --------------------------------------------------------------------------------------------------------- the module


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED], ids=str)
def test_the_module_trains_on_samples_and_evaluates_on_all_classes(policy):
    mp.manual_seed(0)
    layer = policy.cast(SampledSoftmax(D, V, 4))
    x = policy.cast(mp.tensor(randn(2, 3, D).astype("float32")))
    target = mp.tensor(TARGET.reshape(2, 3))
    state = mp.get_rng_state()
    loss = layer(x, target)
    mp.set_rng_state(state)
    again = sampled_softmax_loss(x.reshape(6, D), target.reshape(6), layer.weight, layer.bias, 4)
    assert loss.item() == again.item() and loss.dtype == "float32"
    loss.backward()
    assert isinstance(layer.weight.grad, SparseRows) and isinstance(layer.bias.grad, SparseRows)
    layer.eval()
    full = ops.cross_entropy(layer.logits(x).reshape(6, V), target.reshape(6))
    assert layer.logits(x).shape == (2, 3, V) and layer(x, target).item() == full.item()


def test_the_module_without_bias():
    layer = SampledSoftmax(D, V, 4, bias=False)
    assert repr(layer).startswith("SampledSoftmax(5, 12, bias=False, negatives=4)")
    layer(mp.tensor(randn(N, D).astype("float32")), mp.tensor(TARGET)).backward()
    assert [name for name, _ in layer.named_parameters()] == ["weight"]


# -------------------------------------------------------------------------------------------------------------- a GPU


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.cpu
def test_on_a_gpu_it_is_that_of_the_cpu(gpu, dtype):
    results = []
    for device in ("cpu", "gpu"):
        with mp.device(device):
            x, w, b = inputs(dtype)
            loss = sampled_softmax_loss(x, mp.tensor(TARGET), w, b, 4, sampled=sample())
            loss.backward()
            results.append([loss.numpy(), host(x.grad), host(w.grad.dense()), host(b.grad.dense())])
    rounding = 2.0**-9 if dtype == "float16" else 2.0**-20
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=rounding, atol=rounding)


@pytest.mark.cpu
def test_a_gpu_draws_its_samples_and_nothing_waits_for_it(gpu):
    import contextlib

    import cupy

    with mp.device("gpu"):
        layer = SampledSoftmax(D, V, 4)
        x, target = inputs()[0], mp.tensor(TARGET)
        layer(x, target).backward()
        with getattr(cupy, "no_synchronisation", contextlib.nullcontext)():
            samples = [log_uniform_sample(5, 100) for _ in range(2)]
            layer(x, target).backward()
        assert all(isinstance(s.classes.array, cupy.ndarray) for s in samples)
        a, b = (s.classes.numpy() for s in samples)
        assert len(set(a.tolist())) == 5 and (np.diff(a) > 0).all() and (a != b).any()
        layer(x, mp.tensor(np.full(N, V)))
        with pytest.raises(ValueError, match=r"a class in \[0, 11\] \(seen on the GPU in an earlier call\)"):
            mp.synchronize()
