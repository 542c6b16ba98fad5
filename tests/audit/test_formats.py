"""An audit says what other formats would have lost; tests/study/test_number_formats.py holds the formats themselves."""

import json

import numpy as np
import pytest

import tinymp as mp
from job import Job, same
from tinymp.audit.formats import SAMPLE, sample
from tinymp.study.formats import SCALED

pytestmark = pytest.mark.cpu


def losses(values, *names):
    """Losses of the formats for values that are cast to FP16."""
    with mp.audit(formats=names) as a:
        mp.MIXED.cast(mp.Tensor(np.asarray(values, "float32")))
    (row,) = a.formats.rows
    assert (row.op, row.phase) == ("cast", "cast") and row.caller.startswith("test_formats.py:")
    return [row.losses[name].as_dict() for name in names]


def test_losses_known_by_hand():
    """E4M3: 300 becomes 288, 2^-10 is a tie at 0, 3 * 2^-9 is subnormal, 500 is NaN; with a scale, of 2^-1, it is not.
    BF16 has 8 significant bits: 1 + 2^-9 becomes 1."""
    plain, scaled, bf16 = losses([300, 2.0**-10, 3 * 2.0**-9, 500, 1 + 2.0**-9], "e4m3", "e4m3-tensor", "bf16")
    assert [plain[n] for n in ("elements", "zero", "subnormal", "beyond")] == [5, 1, 1, 1]
    sent, error = 301 + 9 * 2.0**-10, -12 - 3 * 2.0**-10
    assert plain["bias"] == pytest.approx(error / sent)
    assert [scaled[n] for n in ("elements", "zero", "subnormal", "beyond")] == [5, 1, 1, 0]
    # 300 becomes 288, 500 512, 1 + 2^-9 1, 2^-10 0; 3 * 2^-9 is scaled to a tie, and becomes 2^-7
    assert scaled["bias"] == pytest.approx(-(2.0**-10) / (801 + 9 * 2.0**-10))
    assert [bf16[n] for n in ("elements", "zero", "subnormal", "beyond")] == [5, 0, 0, 0]
    assert bf16["bias"] == pytest.approx(-(2.0**-9) / 801, rel=1e-3)
    (exact,) = losses([1.0, 0.5, 0.0], "bf16")
    assert exact["snr"] == float("inf") and exact["elements"] == 2


def test_the_run_stays_as_it_is_and_every_rounding_is_there(tmp_path):
    jobs = [Job("cpu", clip=True) for _ in range(2)]
    with mp.audit(formats=list(SCALED), trace=tmp_path) as a:
        [jobs[0].step(*jobs[0].batch(i)) for i in range(3)]
    [jobs[1].step(*jobs[1].batch(i)) for i in range(3)]
    same(jobs[0].state(), jobs[1].state())
    lines = {(row.module, row.op, row.phase, row.caller, at) for row in a.ledger for at, r in row.roundings.items()}
    assert {(r.module, r.op, r.phase, r.caller, r.where) for r in a.formats.rows} == lines
    for row in a.formats.rows:  # FP16 as an other format: the ledger's own counts
        (own,) = (
            r for r in a.ledger if (r.module, r.op, r.phase, r.caller) == (row.module, row.op, row.phase, row.caller)
        )
        told, counted = row.losses["fp16"], own.roundings[row.where]
        assert (told.zero, told.beyond) == (counted.zero, counted.infinite)
        assert told.subnormal <= counted.subnormal  # numbers that were FP16's before are counted there, too
    assert json.dumps(a.as_dict()["formats"])
    assert a.formats.total("bf16").snr > a.formats.total("e4m3-tensor").snr > a.formats.total("nvfp4").snr


def cast_as(x, name):
    """Whole FP32 x in a scaled format, by its definition and ml_dtypes' casts."""
    dtypes = pytest.importorskip("ml_dtypes")
    e4m3, e5m2, e2m1 = dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.float4_e2m1fn
    rows = x.reshape(-1, {"nvfp4": 16, "mxfp8": 32, "mxfp8-e5m2": 32}.get(name, x.size)).astype(np.float64)
    most = abs(rows).max(axis=1, keepdims=True)
    dtype, largest = (e5m2, 57344.0) if "e5m2" in name else (e2m1, 6.0) if name == "nvfp4" else (e4m3, 448.0)
    if name == "nvfp4":
        unit = most.max() / (448 * 6)
        scale = (most / 6 / unit).astype(np.float32).astype(e4m3).astype(np.float64) * unit
    elif name.startswith("mxfp8"):
        scale = 2.0 ** (np.floor(np.log2(most)) - np.floor(np.log2(largest)))
    else:
        scale = 2.0 ** np.ceil(np.log2(most / largest))
    with np.errstate(divide="ignore", invalid="ignore"):
        lifted = np.clip(rows / scale, -largest, largest).astype(np.float32)
    return np.where(scale > 0, lifted.astype(dtype).astype(np.float64) * scale, 0).reshape(x.shape)


@pytest.mark.parametrize(("name", "outlier"), [("e5m2-tensor", 0.1), ("mxfp8", 1000.0), ("nvfp4", 1000.0)])
def test_a_sample_is_scaled_as_the_whole_array(name, outlier):
    """Far more numbers than are looked at, and one far larger than the rest: it is in no run of the sample."""
    x = 1e-3 * np.random.default_rng(0).standard_normal((1 << 10, 1 << 10)).astype("float32")
    x[512, 39] = outlier
    assert sample(x).size < x.size // 16 and outlier not in sample(x)
    (loss,), y = losses(x, name), cast_as(x, name)
    blocks = SAMPLE / 32  # which may become 0 as a whole
    p = (y == 0).mean()
    assert loss["zero"] / loss["elements"] == pytest.approx(p, abs=4 * (p * (1 - p) / blocks) ** 0.5 + 1e-9)
    x[512, 32:64] = y[512, 32:64] = 0  # its block
    sums = [(v**2).reshape(-1, 32).sum(axis=1) for v in (x.astype(np.float64), y - x)]  # of signal and noise, by block
    far = 4 * sum(s.std() / s.mean() for s in sums) / blocks**0.5
    snr = 10 * np.log10(sums[0].sum() / sums[1].sum())
    assert loss["snr"] == pytest.approx(snr, abs=10 * np.log10(1 + far))
