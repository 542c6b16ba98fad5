"""The PTX that NVRTC makes of every kernel, run by the interpreter; and what the interpreter finds."""

import pathlib
import re
from itertools import product

import numpy as np
import pytest

import cuda_on_cpu
from cuda_on_cpu import KernelError
from cuda_on_cpu.compile import preprocessed
from gpu import test_nvrtc, units
from gpu.both_ways import check_both_ways, on_device
from oracle import randn
from ptx import costs, nvrtc, program, select
from tinymp import Tensor, ops
from tinymp.backend import gpu
from tinymp.gpu import conv, kernels

pytestmark = pytest.mark.cpu
ARCHITECTURES = "70", costs.ARCHITECTURE


@pytest.fixture(autouse=True)
def _compilers():
    if why := cuda_on_cpu.problem():
        pytest.skip(why)
    for cuda in (12, 13):
        if nvrtc.library(cuda) is None:
            pytest.skip(f"NVRTC of CUDA {cuda} is not installed (the extra dev)")


# What tinymp never launches with one of the storages, and why
NEVER = {
    "half": {
        "cast_stochastic", "draw_uniform",  # whose arguments have the same types under both
        "add_rows", "columns_to_images",  # which add FP32
    },
    "float": set(),
}  # fmt: skip


def expected() -> set[tuple[str, str]]:
    """The kernels that tinymp launches, with their storage."""
    cores = "arrange", "correlate_", "weight_gradient_", "sum_parts", "attention_"  # Tensor Cores take FP16
    pairs = product(select.known(), kernels.STORAGE.values())
    return {(n, s) for n, s in pairs if n not in NEVER[s] and not (s == "float" and n.startswith(cores))}


def seen(code: str, architecture: str) -> list[str]:
    """What a compiler sees of a source, in parts, without the functions that nothing in it names."""
    text = re.sub(r"(?m)^# .*\n|^\s*\n", "", preprocessed(code, f"-D__CUDA_ARCH__={architecture}0"))
    parts = re.split(r"(?m)^(?=template|struct|(?<!>\n)__device__)", text)
    named = [re.match(r"(?:template.*\n)?__device__[^(]*?(\w+)\(", part) for part in parts]
    return [p for p, m in zip(parts, named) if m is None or len(re.findall(rf"\b{m[1]}\b", text)) > 1]


def test_other_sources_are_the_same_text_on_all_architectures():
    """So that the PTX for 90 stands for what is not compiled."""
    differ = set()
    for path in test_nvrtc.FILES.values():
        code = kernels.source(path)
        assert set(re.findall(r"\b__(?:CUDA|NV)\w+", code)) == {"__CUDA_ARCH__"}  # all that is told apart by
        volta, turing, ampere, hopper = (seen(code, architecture) for architecture in ("70", "75", "80", "90"))
        if volta != ampere:
            differ.add(path.stem)
        assert volta == turing and ampere == hopper and nvrtc.special(code) == (path.stem in differ)
    assert differ == {*select.SPECIAL, "units"}


def test_every_kernel_is_as_its_definition():
    """Tests which together run each, in a process of their own; `pytest --ptx 80` runs all of them."""
    done, rows = select.run(costs.ARCHITECTURE, *select.selected())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    found, needed = costs.registers(costs.ARCHITECTURE, costs.counted(rows)), expected()
    missing = {f"{name} {storage}" for name, storage in needed} - found.keys()
    assert not missing, f"not run: {sorted(missing)}: python -m ptx.select (in tests/) selects other tests"
    said = costs.dearer(found)
    assert not said, f"{said}: python -m ptx.costs (in tests/) writes limits that fit"


def test_a_cost_beyond_its_limit_is_said():
    (name, limit), *_ = costs.limits().items()
    assert costs.dearer({f"{name} half": limit}) == []
    assert costs.dearer({f"{name} half": limit | {"bytes": limit["bytes"] * 1.01}}) != []
    assert costs.dearer({"unknown half": limit}) == ["unknown half: has no limit"]


# ------------------------------------------------------------------------------------------- special instructions


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_special_instruction(architecture):
    """Of hardware.cuh, exhaustively: all 65,536 halves, ties and edges, fragments, zero fill."""
    with program.installed(architecture):
        wrong = units.check()
    assert len(wrong) == (3 if architecture == "70" else 8) and not any(wrong.values()), wrong


def units_with(old: str, new: str, architecture: str = "80") -> dict[str, int]:
    text = kernels.HEADERS[0].read_text() + pathlib.Path(units.__file__).with_suffix(".cu").read_text()
    assert text.count(old) == 1, old
    with program.installed(architecture, faults=((old, new),)):
        return {name: wrong for name, wrong in units.check().items() if wrong}


BOTH = {"ldmatrix.trans + mma", "ldmatrix + mma"}
COPIES = {"cp.async, 4 bytes", "cp.async, 8 bytes", "cp.async, 16 bytes"}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('"r"(a[0]), "r"(a[1]), "r"(a[2])', '"r"(a[0]), "r"(a[2]), "r"(a[1])', BOTH),  # a swapped asm operand
        ("m8n8.x4.trans.shared", "m8n8.x4.shared", {"ldmatrix.trans + mma"}),
        ("2 * t + i % 2] = sum", "2 * t + (i + 1) % 2] = sum", BOTH),  # a wrong lane of a fragment
        ('asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");', "", COPIES),  # a missing wait
        ('"r"(valid ? 16 : 0)', '"r"(valid ? 15 : 0)', {"cp.async, 16 bytes"}),  # off by one in the zero fill
        ('"r"(valid ? BYTES : 0)', '"r"(BYTES)', {"cp.async, 4 bytes", "cp.async, 8 bytes"}),
        ("cvt.rn.f16.f32", "cvt.rz.f16.f32", None),
        ('asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits))', "y = x.bits", {"widen (cvt.f32.f16)"}),
    ],
)
def test_planted_faults_are_found(old, new, found):
    if found is None:
        with pytest.raises(KernelError, match=r"not modelled: cvt\.rz\.f16\.f32"):
            units_with(old, new)
    else:
        assert set(units_with(old, new)) == found


@pytest.mark.parametrize(("old", "new"), [("cp_async_wait<1>();\n    __syncthreads();", "cp_async_wait<1>();")])
def test_a_missing_barrier_is_found(old, new):
    with pytest.raises(
        KernelError, match="kernel copy_4: thread 0 reads shared memory that thread 63 wrote, without a b"
    ):
        units_with(old, new)


# ------------------------------------------------------------------------------------------- subnormal numbers

SMALL = """
extern "C" __global__ void small(const float* x, const half* u, float* y, half* v) {
    float a = x[0], b = x[1], c = x[2];  // 1e-30, 1e-10, 1e-40
    y[0] = a * b;
    y[1] = -a * b;
    y[2] = fmaf(1.5f, x[3], -x[3]);  // normal ones, whose difference is not
    y[3] = c * 1e20f;
    y[4] = c > 0.0f ? 1.0f : 2.0f;
    y[5] = 2.0f * c - c;
    y[6] = floorf(-c);
    y[7] = c;
    y[8] = a / 1e10f;
    y[9] = x[4] * 1e-40f;
    y[10] = expf(-90.0f * b * 1e10f);
    y[11] = 1.5f * x[3] - x[3];
    v[0] = round_to_half(widen(u[0]));
}
"""


@pytest.mark.parametrize("architecture", ["70", "90"])
def test_subnormal_numbers_are_zeros(tmp_path, architecture):
    """Where the instruction says .ftz: not where they are only moved, and not FP16's."""
    path = tmp_path / "small.cu"
    path.write_text(SMALL)
    compiled = program.Program(kernels.source(path), {"STORAGE": "float"}, f"compute_{architecture}", False)
    x = np.array([1e-30, 1e-10, 1e-40, 2.0**-126, 1e20], np.float32)
    u, y, v = np.array([6e-8], np.float16), np.full(12, np.nan, np.float32), np.zeros(1, np.float16)
    compiled.launch("small", 1, 1, [x, u, y, v])
    assert y.tolist() == [0, 0, 0, 0, 2, 0, 0, x[2], 0, 0, 0, 0]
    assert np.signbit(y).nonzero()[0].tolist() == [1, 6]
    assert v == u > 0


# --------------------------------------------------------------------------------- barriers and waits of the package

FORWARD = {"dtypes": ("float16",), "gradient": False}


def convolution():  # 5 stages of the sum
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv, "TILES", [tile for tile in conv.TILES if tile.rows == tile.columns == 64])
        conv.schedule.cache_clear()
        check_both_ways(
            lambda x, w: ops.conv2d(x, w, None, 1, 1), randn(8, 17, 3, 3), randn(16, 17, 3, 3), length=153, **FORWARD
        )
    conv.schedule.cache_clear()


def attention():  # three tiles, backward as well
    x = Tensor(on_device(randn(1, 130, 32).astype("float16"))).requires_grad_()
    y = ops.scaled_dot_product_attention(x, x, x)
    y.backward(y.array)


def norm():  # a block for a row
    check_both_ways(lambda x: ops.layer_norm(x, 3000), randn(2, 3000), length=3000, **FORWARD)


def loss():
    check_both_ways(ops.cross_entropy, randn(40, 5), np.arange(40) % 5, length=40, **FORWARD)


RUNS = {  # a test: its source, and the kernels of it that run (the others need not be compiled)
    convolution: ("gpu/conv.cu", {"arrange", "correlate_64x64"}),
    attention: ("gpu/attention.cu", {"attention_32", "attention_queries_32", "attention_keys_32"}),
    norm: ("gpu/norm.cu", {"layer_norm_forward"}),
    loss: ("gpu/loss.cu", {"cross_entropy_forward"}),
}
DEFINED = re.compile(r'^extern "C" __global__ [^{]*?(\w+)\([^)]*\) \{(?:[^\n]*\}$|.*?^\}$)', re.M | re.S)
BARRIER = "__syncthreads();"


def run_alone(run, *faults, needed=frozenset(), architecture="80"):
    code = kernels.source(pathlib.Path(kernels.__file__).parents[1] / RUNS[run][0])
    others = [(m[0], "") for m in DEFINED.finditer(code) if m[1] not in RUNS[run][1] | needed]
    assert all(code.count(old) == 1 for old, _ in (*faults, *others))
    with program.installed(architecture, faults=(*others, *faults)):
        run()
        gpu.synchronize()  # what nobody waits for runs now


@pytest.mark.parametrize("run", RUNS)
def test_no_barrier_is_missing(run):
    run_alone(run)


READS, WRITES = "reads shared memory that .* wrote", "writes shared memory that .* read"


@pytest.mark.parametrize(
    ("run", "old", "new", "found"),
    [
        (convolution, BARRIER + "  // all copies of this step are there", "//", READS),
        (convolution, "cp_async_wait<STAGES - 2>();", "", "got np.float64.nan."),  # what nobody wrote
        (convolution, "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();", WRITES),  # the copy comes late
        (convolution, "cp_async_commit();  // also", "if (s + 2 < steps) cp_async_commit(); //", "beyond tolerance"),
        (convolution, BARRIER + "  // shared memory is free again", "", WRITES),
        (convolution, BARRIER + "\n    if (p >= positions)", "if (p >= positions)", READS),
        (attention, BARRIER + "  // all have read the keys", "//", WRITES),
        (attention, BARRIER + "\n        float s[ROWS / 8][4] = {}, h", "float s[ROWS / 8][4] = {}, h", READS),
        (attention, "__syncwarp();  // it may still be read from the last time", "", WRITES),
        (attention, "});\n    __syncwarp();", "});", READS),
        (norm, "member(a, i);\n    " + BARRIER, "member(a, i);", READS),  # rows.cuh
    ],
)
def test_a_barrier_or_a_wait_less_is_found(run, old, new, found):
    with pytest.raises((RuntimeError, AssertionError), match=found):
        run_alone(run, (old, new))
