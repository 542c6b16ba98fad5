"""BF16 as storage, on the CPU. Every op is held to its mathematics in it, too (oracle.EVERY); here is the rest."""

import copy
import pickle

import numpy as np
import pytest

import tinymp as mp
from job import Job, same
from tinymp import dtypes, nn
from tinymp.precision import store, to_dtype, widen

BF16 = dtypes.bfloat16
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(BF16 is None, reason="BF16 needs ml_dtypes")]


def bf16(*values):
    return mp.tensor(list(values)).bfloat16()


def test_the_primitives_round_to_nearest_even():
    from tinymp.study.formats import BF16 as FORMAT

    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), np.float32([1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, -0.0, 1e-40, np.inf])])
    x = x[~np.isnan(x)]
    stored = store(x, np.zeros(1, BF16))
    assert stored.dtype == BF16 and stored.nbytes == 2 * x.size
    np.testing.assert_array_equal(widen(stored).view(np.uint32), FORMAT.round(x).view(np.uint32))
    assert widen(stored).dtype == np.float32
    assert store(np.float32([1.0]), np.zeros(1, np.float16)).dtype == np.float16
    with pytest.raises(TypeError, match="store: float64 would be rounded to bfloat16"):
        store(np.ones(1), np.zeros(1, BF16))


def test_conversions():
    x = bf16(1.0, 1 + 2.0**-8, 3e38)
    assert x.tolist() == [1.0, 1.0, np.float32(3e38).astype(BF16).item()]
    assert x.float().dtype == np.float32 and x[:2].half().dtype == np.float16
    assert mp.tensor([65519.0, 2.0**-24]).half().bfloat16().tolist() == [65536.0, 2.0**-24]
    assert mp.tensor([1.0], dtype="bfloat16").dtype == mp.zeros(2, dtype=BF16).dtype == BF16
    assert repr(bf16(1.0, 0.1)) == "tensor([1.     0.1001], dtype=bfloat16, device=cpu)"
    with pytest.raises(ValueError, match="does not fit BF16"):
        mp.tensor([3.4e38], dtype=BF16)
    y = mp.tensor([2.0], requires_grad=True)
    (y.bfloat16() * 3).sum().backward()
    assert y.grad.dtype == np.float32 and y.grad.tolist() == [3.0]
    assert to_dtype(np.ones(1, np.float16), BF16).dtype == BF16


def test_a_model_has_masters_and_fp32_norms():
    model = mp.BF16.cast(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    assert [str(p.dtype) for p in model.parameters()] == ["bfloat16", "bfloat16", "float32", "float32"]
    weight = model[0].weight
    assert weight.master.dtype == np.float32
    np.testing.assert_array_equal(weight.array, weight.master.astype(BF16))
    exact = weight.master.copy()
    np.testing.assert_array_equal(mp.FP32.cast(model)[0].weight.array, exact)
    copied = copy.deepcopy(mp.BF16.cast(model))
    same(copied.state_dict(), model.state_dict())
    assert pickle.loads(pickle.dumps(copied))[0].weight.dtype == BF16


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_it_trains_without_a_loss_scale(rule):
    """Gradients that FP16 would flush to 0 are held: BF16 has FP32's range."""
    losses = []
    for policy, scale in ((mp.FP32, 1.0), (mp.BF16, 1.0), (mp.BF16, 2.0**16)):
        job = Job("cpu", rule, scale=scale, policy=policy, clip=True)
        losses.append([job.step(*job.batch())[0].item() for _ in range(6)])
    exact, plain, scaled = losses
    np.testing.assert_allclose(plain, exact, rtol=0.03, atol=0.02)
    np.testing.assert_allclose(scaled, plain, rtol=1e-2, atol=1e-2)
    assert (bf16(1.0) * 2.0**-60).item() == 2.0**-60
