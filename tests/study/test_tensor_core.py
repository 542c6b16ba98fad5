"""Tensor Cores are held to results of real GPUs, and to mmasim, a model that others fitted to theirs.

tensor_cores.npz has 200 sums of each GPU and format from `model_validation/` of
github.com/north-numerical-computing/MATLAB-tensor-core (Khattak and Mikaitis; BSD-2-Clause: tensor_cores.LICENCE), as
bits: operands a and b, the FP32 accumulator c, and the results d_fp32 and, from c in FP16, d_fp16.
"""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tinymp as mp
from tinymp import ops
from tinymp.study.formats import E4M3, E5M2, FORMATS
from tinymp.study.tensor_core import ARCHITECTURES, tensor_core

pytestmark = pytest.mark.cpu
DTYPES = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "fp32": np.float32,
}
OF = {"V100": "volta", "A100": "ampere", "L40S": "ada", "Ada": "ada", "H100": "hopper", "B200": "blackwell"}
VECTORS = np.load(Path(__file__).parent / "tensor_cores.npz")
SETS = [name.split("_d_") for name in VECTORS.files if "_d_" in name]  # "H100_fp16", "fp32"


def vectors(name, result):
    """a, b, c, d, and the name of the architecture, as `tensor_core` takes it."""
    gpu, kind = name.split("_")
    a, b = (VECTORS[f"{name}_{x}"].view(DTYPES[kind.lower()]) for x in "ab")
    c, d = VECTORS[f"{name}_c"].view("f4").astype(DTYPES[result]), VECTORS[f"{name}_d_{result}"].view(DTYPES[result])
    architecture = OF[gpu]
    if kind[0] == "E" and gpu == "H100" and result == "fp32":
        c = np.zeros_like(c)  # these were made by wgmma, without an accumulator
    elif kind[0] == "E" and gpu in ("H100", "B200"):
        architecture += "-mma"
    return a[:, None], b[:, :, None], c[:, None, None], d[:, None, None], architecture


def bits(x):
    return np.where(np.isnan(x), x.dtype.type(np.nan), x).view(f"u{x.itemsize}")


@pytest.mark.parametrize(("name", "result"), SETS, ids=map("_".join, SETS))
def test_it_has_the_bits_of_real_gpus(name, result):
    a, b, c, d, architecture = vectors(name, result)
    found = tensor_core(a, b, c, architecture, name.split("_")[1].lower(), result)
    assert found.dtype == d.dtype
    np.testing.assert_array_equal(bits(found), bits(d))


# ---- mmasim ----


def mmasim_of(architecture, kind, result):
    """The instruction of mmasim that has these sums."""
    nv = pytest.importorskip("mmasim.nv_ptx", reason="needs the extra peer")
    d, t = {"fp32": "f32", "fp16": "f16"}[result], {"fp16": "f16"}.get(kind, kind)
    k = ARCHITECTURES[architecture][kind, result].products
    if architecture == "blackwell":
        family = {"fp16": "f16", "bf16": "f16", "tf32": "tf32"}.get(kind, "f8f6f4")
        return nv.TCGen05MMA("Blackwell", f"m64n8k{k}.kind::{family}.{d}.{t}.{t}")
    if architecture == "hopper":
        return nv.WGMMA("Hopper", f"m64n8k{k}.{d}.{t}.{t}")
    shape = {"volta": "m8n8k4", "turing": "m16n8k8"}.get(architecture, f"m16n8k{2 * k}")
    name = {"ada": "Ada Lovelace"}.get(architecture, architecture.capitalize())
    return nv.MMA(name, f"{shape}.{d}.{t}.{t}.{d}")


def operands(how, shape, kind, g):
    """Numbers of a format: of similar sizes, of many, all bit patterns, or those on which rules differ."""
    dtype = np.dtype(DTYPES[kind])
    if how == "all bits":
        return g.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8).view(dtype)[..., 0]
    spread = {"near": 1, "wide": 2 ** (FORMATS.get(kind, FORMATS["tf32"]).exponent - 1) // 2}.get(how, 2)
    x = np.ldexp(g.standard_normal(shape), g.integers(-spread, spread + 1, shape))
    f = FORMATS.get(kind, FORMATS["tf32"])
    if how == "cancelling":  # the second half of a sum takes away the first, but for its last bits
        x[..., shape[-1] // 2 :] = x[..., : shape[-1] - shape[-1] // 2] * (1 + 2.0**-f.fraction)
    if how == "one huge":
        x[..., 0] *= 2.0 ** min(f.bias // 2, 14)
    if how == "alternating":
        x = abs(x) * (-1.0) ** np.arange(shape[-1])
    if how == "ties":
        x = np.sign(x) * np.exp2(g.integers(-12 if kind[0] != "e" else -4, 1, shape))
    if how == "subnormal":
        x = np.ldexp(x, -f.bias - g.integers(0, f.fraction + 2, shape) if kind in ("e4m3", "e5m2", "fp16") else -126)
    return np.clip(x, -f.largest, f.largest).astype(dtype)


CASES = int(os.environ.get("TINYMP_TENSOR_CORE_CASES", 900))  # 100,000 were run, see docs/formats.md
HOW = ["cancelling", "ties", "one huge", "subnormal", "alternating", "near", "wide", "all bits"]
UNITS = [(name, *key) for name, units in ARCHITECTURES.items() if "-" not in name for key in units]


@pytest.mark.filterwarnings("ignore:.*encountered in cast")
@pytest.mark.parametrize(("architecture", "kind", "result"), UNITS, ids=map("-".join, UNITS))
def test_it_has_the_bits_of_mmasim(architecture, kind, result):
    torch = pytest.importorskip("torch", reason="needs the extra peer")
    theirs, g = mmasim_of(architecture, kind, result), np.random.default_rng(0)
    k = ARCHITECTURES[architecture][kind, result].products * 2
    types = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

    def to_torch(x, kind):
        kind = types.get(kind) or {2: torch.float16, 4: torch.float32}[x.itemsize]
        return torch.from_numpy(x.view(f"i{x.itemsize}")).view(kind)

    for how in HOW:
        n = CASES // 3
        a, b = operands(how, (n, k), kind, g), operands("wide" if how == "one huge" else how, (n, k), kind, g)
        c = operands("near" if how in ("cancelling", "alternating", "ties") else how, (n, 1), result, g)[:, 0]
        expected = theirs.dpa(to_torch(a, kind), to_torch(b, kind), to_torch(c, result)).numpy()
        found = tensor_core(a[:, None], b[:, :, None], c[:, None, None], architecture, kind, result)[:, 0, 0]
        np.testing.assert_array_equal(bits(found), bits(expected), err_msg=how)


# ---- arguments ----


def randn(*shape, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def test_shapes_and_steps():
    a, b = randn(3, 1, 5, 37), randn(2, 37, 4, seed=1)
    y = tensor_core(a, b)
    assert y.shape == (3, 2, 5, 4) and y.dtype == np.float32
    filled = np.zeros((3, 1, 5, 48), "f2"), np.zeros((2, 48, 4), "f2")  # 37 is no multiple of 16
    filled[0][..., :37], filled[1][:, :37] = a, b
    np.testing.assert_array_equal(tensor_core(*filled), y)
    np.testing.assert_array_equal(tensor_core(a.astype("f8"), b.astype("f4")), y)  # the numbers count, not the dtype
    c = randn(4, dtype=np.float32)
    np.testing.assert_array_equal(tensor_core(a, b, c)[2, 1], tensor_core(a[2, 0], b[1], np.tile(c, (5, 1))))
    assert tensor_core(np.ones((2, 0)), np.ones((0, 3))).tolist() == [[0] * 3] * 2


# ---- policies ----

PRODUCTS = {
    "FP16_AMPERE": ("ampere", "fp16", "fp32"),
    "FP16_SUMS_HOPPER": ("hopper", "fp16", "fp16"),
    "BF16_HOPPER": ("hopper", "bf16", "fp32"),
    "TF32_AMPERE": ("ampere", "tf32", "fp32"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_product_of_a_policy_is_such_a_sum(name):
    policy, unit = mp.POLICIES[name], PRODUCTS[name]
    x, w = (policy.cast(mp.tensor(randn(*s, dtype=np.float32, seed=i))) for i, s in enumerate(((6, 50), (3, 50))))
    dy = policy.cast(mp.tensor(randn(6, 3, dtype=np.float32, seed=2)))
    x.requires_grad = w.requires_grad = True
    with mp.use(policy):
        y = ops.linear(x, w)
        y.backward(dy)

    def product(a, b):
        a, b = (np.asarray(v.array) for v in (a, b))
        if unit[1] == "tf32":  # the policy rounds as cuBLAS does, to nearest, before the instruction cuts off
            a, b = (((v.view("u4") + 0x1000) & np.uint32(0xFFFFE000)).view("f4") for v in (a, b))
        return tensor_core(a, b, None, *unit).astype(y.array.dtype)

    np.testing.assert_array_equal(y.array, product(x.detach(), w.detach().T))
    np.testing.assert_array_equal(x.grad.array, product(dy, w.detach()))
    np.testing.assert_array_equal(w.grad.array, product(dy.T, x.detach()))


@pytest.mark.parametrize("name", ["FP8_HOPPER_FAST", "FP8_BLACKWELL"])
def test_fp8_operands_are_multiplied_scaled(name):
    """Activations of 12 decades, so that E4M3's subnormal numbers are among them, and the gradient's are in E5M2."""
    policy, architecture = mp.POLICIES[name], name.split("_")[1].lower()
    g = np.random.default_rng(0)

    def wide(*shape, least=-20):
        return policy.cast(mp.tensor(np.ldexp(g.standard_normal(shape), g.integers(least, 1, shape)).astype("f4")))

    x, w, dy = wide(6, 70), wide(70, 3), wide(6, 3, least=-36)
    x.requires_grad = w.requires_grad = True
    with mp.use(policy):
        y = ops.matmul(x, w)
        y.backward(dy)
    scaled = {}
    for key, v, kind in (("x", x, E4M3), ("w", w, E4M3), ("dy", dy, E5M2)):
        wide_v = np.float32(v.detach().float().array)
        scale = kind.power_for(abs(wide_v).max())
        scaled[key] = kind.round(wide_v * scale, saturate=True), scale

    def product(a, b, turn_a, turn_b, kinds):
        (va, sa), (vb, sb) = scaled[a], scaled[b]
        z = tensor_core(va.T if turn_a else va, vb.T if turn_b else vb, None, architecture, kinds)
        return (z / (np.float64(sa) * sb)).astype("f4").astype(ml_dtypes.bfloat16)

    np.testing.assert_array_equal(y.array, product("x", "w", False, False, "e4m3"))
    np.testing.assert_array_equal(x.grad.array, product("dy", "w", False, True, ("e5m2", "e4m3")))
    np.testing.assert_array_equal(w.grad.array, product("x", "dy", True, False, ("e4m3", "e5m2")))


def test_sums_on_hopper_stall_and_are_promoted():
    """With 13 bits behind the point 1 no longer moves 2^14. A promotion every 128 products mends it (DeepSeek-V3)."""
    ones = mp.BF16.cast(mp.ones(1, 2**16))
    with mp.use(mp.FP8_HOPPER_FAST):
        assert ops.matmul(ones, ones.T).item() == 2**14
    with mp.use(mp.FP8_HOPPER):
        assert ops.matmul(ones, ones.T).item() == 2**16
