"""Formats are held to ml_dtypes and gfloat, at all values and between them; scales to gfloat and their definition."""

import ml_dtypes
import numpy as np
import pytest

from tinymp.study.formats import FORMATS, LOSSES, SCALED

PEERS = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:.*encountered in cast")]


def same(x, y):
    """Bit for bit, but all NaN are one."""
    x, y = (np.where(np.isnan(v), np.float32(np.nan), v).view(np.uint32) for v in (x, y))
    np.testing.assert_array_equal(x & 0x7FFFFFFF, y & 0x7FFFFFFF)
    np.testing.assert_array_equal((x ^ y) & (x << 1 > 0) & (x & 0x7FC00000 != 0x7FC00000), 0)


@pytest.mark.parametrize("name", PEERS)
def test_numbers_are_rounded_as_ml_dtypes_does(name):
    f, special = FORMATS[name], np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38])
    random = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near_1 = np.float32(np.arange(-64, 65) / 32)  # ties among them
    x = np.concatenate([random, near_1 * np.float32(f.smallest), near_1, special])
    theirs = x.astype(PEERS[name]).astype(np.float32)
    if name == "e2m1":  # no NaN in it: ml_dtypes saturates, and makes NaN a number
        same(f.round(x, saturate=True)[np.isfinite(x)], theirs[np.isfinite(x)])
        assert np.isnan(f.round(x, saturate=True)[~np.isfinite(x)]).all()
        return
    same(f.round(x), theirs)
    assert ml_dtypes.finfo(PEERS[name]).max == f.largest and f.infinities == np.isinf(theirs).any()


def gfloat_info(name):
    formats = pytest.importorskip("gfloat.formats")
    infos = {"fp16": "binary16", "bf16": "bfloat16", "e4m3": "ocp_e4m3", "e5m2": "ocp_e5m2", "e2m1": "ocp_e2m1"}
    if name != "tf32":
        return getattr(formats, f"format_info_{infos[name]}")
    gfloat = pytest.importorskip("gfloat")  # TF32: BF16 with FP16's fraction
    flags = {"is_signed": True, "has_nz": True, "has_subnormals": True, "is_twos_complement": False}
    domain = gfloat.Domain.Extended
    return gfloat.FormatInfo("tf32", 19, 11, bias=127, domain=domain, num_high_nans=2**10 - 1, **flags)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_all_numbers_and_what_lies_between_are_rounded_as_gfloat_does(name, saturate):
    gfloat, f, info = pytest.importorskip("gfloat"), FORMATS[name], gfloat_info(name)
    if saturate or name != "e2m1":
        assert (f.largest, f.smallest, f.smallest_normal) == (info.max, info.smallest_subnormal, info.smallest_normal)
    if f.bits <= 16:
        values = np.array([gfloat.decode_float(info, i).fval for i in range(2**f.bits)])
    else:
        values = np.random.default_rng(1).integers(0, 2**19, 50_000).astype(np.uint32) << 13
        values = values.view(np.float32).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    same(f.round(values.astype(np.float32)), values.astype(np.float32))
    with np.errstate(all="ignore"):
        ties = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf)), random])
    x = x[np.isfinite(x)]  # saturated, infinities stay infinities: the loss scaler must hear of them
    if name == "e2m1" and not saturate:
        x = x[abs(x) <= f.largest]  # it has no NaN to become
    theirs = gfloat.round_ndarray(info, x.astype(np.float64), gfloat.RoundMode.TiesToEven, sat=saturate)
    same(f.round(x, saturate=saturate), theirs.astype(np.float32))


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_blocks_are_those_of_gfloat(name):
    """Where it saturates: MX leaves that open."""
    gfloat, formats = pytest.importorskip("gfloat"), pytest.importorskip("gfloat.formats")
    info, mode = getattr(formats, f"format_info_mxfp8_{name}"), gfloat.RoundMode.TiesToEven
    x = np.random.default_rng(4).standard_normal((50, 32)) * 10.0 ** np.arange(-25, 25)[:, None]
    x = x.astype(np.float32)
    y = SCALED["mxfp8" if name == "e4m3" else "mxfp8-e5m2"].round(x)
    for block, found in zip(x.astype(np.float64), y):
        scale = gfloat.compute_scale_amax(info.etype.emax, block)
        theirs = [gfloat.round_float(info.etype, v / scale, mode, sat=True) * scale for v in block]
        np.testing.assert_array_equal(found, np.float32(theirs))


def test_blocks_of_nvfp4():
    x = np.random.default_rng(0).standard_normal((8, 16)) * 10.0 ** np.arange(-2, 6)[:, None]
    x = x.astype(np.float32)
    y = SCALED["nvfp4"].round(x)
    whole = abs(x).max() / (448 * 6)
    for row, found in zip(x, y):
        s = np.float32(abs(row).max() / (6 * whole)).astype(PEERS["e4m3"]).astype(np.float32) * np.float32(whole)
        if s == 0:
            assert not found.any()  # the scale itself has vanished
            continue
        theirs = np.clip(row / s, -6, 6).astype(PEERS["e2m1"]).astype(np.float32) * s
        np.testing.assert_allclose(found, theirs, rtol=1e-6)


@pytest.mark.parametrize("name", SCALED)
def test_losses_are_counted(name):
    f, rng = SCALED[name], np.random.default_rng(3)
    x = (rng.standard_normal(1000) * 10.0 ** rng.integers(-12, 6, 1000)).astype(np.float32)
    x[::7] = 0
    x[5], x[6] = np.inf, np.nan
    y = f.round(x).astype(np.float64)
    found = dict(zip(LOSSES, f.loss(x)))
    known = np.isfinite(x)
    kept = known & np.isfinite(y)
    exact = x[kept].astype(np.float64)
    assert found["elements"] == (known & (x != 0)).sum()
    assert found["zero"] == (known & (y == 0) & (x != 0)).sum()
    if f.scaling == "none":
        assert found["beyond"] == (known & ~np.isfinite(y)).sum()
        assert found["subnormal"] == (kept & (y != 0) & (abs(y) < f.format.smallest_normal)).sum()
    assert found["error"] == pytest.approx((y[kept] - exact).sum(), rel=1e-4)
    assert found["noise"] == pytest.approx(((y[kept] - exact) ** 2).sum(), rel=1e-4)
    assert found["signal"] == pytest.approx((exact**2).sum())


def test_on_a_gpu(gpu):
    x = np.random.default_rng(2).standard_normal(100).astype(np.float32)
    for f in SCALED.values():
        np.testing.assert_array_equal(f.round(gpu.xp.asarray(x)).get(), f.round(x), err_msg=f.name)
