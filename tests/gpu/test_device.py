"""The device of CuPy's arrays (backend/gpu.py) against the CPU's, and what an audit hears of a network on it."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import launches, on_device
from tinymp import backend, fast_path, nn
from tinymp.backend.gpu import LONG
from tinymp.precision import gemm, reduce


def test_no_more_terms_than_promised_are_added_at_once(monkeypatch):
    """CuPy, where no kernel sums, shares a sum among 16 threads or more: an axis longer than LONG is cut."""
    monkeypatch.setattr(fast_path, "off", {"reduce"})
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
    rows = {f"{name}_{phase}" for name in ("softmax", "log_softmax") for phase in ("forward", "backward")}
    others = {f"{name}_norm_{phase}" for name in ("batch", "layer") for phase in ("forward", "backward")}
    others |= {"images_to_columns", "columns_to_images"} if policy is mp.FP32 else set()
    assert launches() is None or rows | others <= set(launches()[before:])
    if policy is mp.MIXED:
        rounded = {(row["op"], row["phase"]) for row in audit.as_dict()["ledger"] if row["rounded"]}
        for op in ("conv2d", "batch_norm", "layer_norm", "softmax", "log_softmax", "linear"):
            assert {(op, "forward"), (op, "backward")} <= rounded


def test_a_bias_is_no_second_rounding():
    """1 + 2^-11 + 2^-11: rounded to FP16 before the bias is added it would be 1 + 2^-10 less one step."""
    a = on_device(np.array([[1, 2.0**-11]], "float16"))
    b = on_device(np.array([[1], [1]], "float16"))
    assert gemm(a, b, on_device(np.array([2.0**-11], "float16"))).get() == 1 + 2.0**-10


def test_making_a_network_compares_nothing_on_the_gpu(gpu):
    """CuPy compiles a kernel for each operation; a value is checked where it lies, by a maximum and a minimum."""
    if not hasattr(gpu.xp, "foreign"):
        pytest.skip("only the stand-in counts")
    before = len(gpu.xp.foreign)
    with mp.device("gpu"):
        mp.MIXED.cast(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Linear(64, 64)))
    done = {what.partition(" ")[0] for what in gpu.xp.foreign[before:]}
    assert done <= {"__setitem__", "asarray", "astype", "copy", "full_like", "max", "min", "zeros"}, done


def test_labels_are_checked_by_a_minimum(gpu, monkeypatch):
    """CuPy would compile a kernel for `all`. A batch without labels is right."""
    monkeypatch.setattr(fast_path, "off", {"require"})
    good = gpu.xp.ones((2, 3), bool)
    gpu.require(good, ValueError, "no")
    gpu.require(good[:0], ValueError, "no")
    good[1, 2] = False
    with pytest.raises(ValueError, match=r"no, got 5 at index \(1, 2\)"):
        gpu.require(good, ValueError, "no", gpu.xp.arange(6).reshape(2, 3))
