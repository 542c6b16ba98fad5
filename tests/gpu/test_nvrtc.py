"""NVRTC compiles every kernel of the package for real GPUs: no GPU is needed for that.

    python -m gpu.test_nvrtc      # in tests/: prints registers, spills and shared memory of every kernel
    python -m gpu.test_nvrtc --counts    # writes counts.txt: instructions, and the widths of loads, which a test holds

NVRTC comes from its wheels (in the extra `test`): CUDA 12's is the last that knows Volta. Its assembler says how many
registers a kernel takes and how many bytes it moves out to memory because there were too few ("spills"): a kernel that
does so in its loops is slow, so more than `SPILLS` bytes fail here. So does one with so many registers that its largest
block could not start.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

import cuda_on_cpu
import tinymp as mp
from gpu import nvrtc
from tinymp.gpu import kernels
from tinymp.gpu import optimizer as traced
from tinymp.gpu.many import _most

pytestmark = pytest.mark.cpu  # NVRTC compiles for any GPU on any machine: no stand-in takes its place

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = (pathlib.Path(kernels.__file__).parents[1], ROOT / "tests" / "gpu")
FILES = {str(path.relative_to(folder.parent)): path for folder in FOLDERS for path in sorted(folder.rglob("*.cu"))}
# Volta's compiler, of CUDA 12, sees the kernels for halves, some of which have special instructions from sm_80 on; else
# a source is the same text for all
COMPILED = {"half": ("sm_70", "sm_90"), "float": ("sm_90",)}
ALL = ("sm_70", "sm_75", "sm_80", "sm_90", "sm_120")  # Volta, ..., GeForce Blackwell: by hand
SPILLS = 128  # bytes per thread. A few cost nothing that can be measured, and versions of NVRTC differ by tens
REGISTERS = 65536  # of a multiprocessor, for all threads of a block together

DEPRECATED = re.compile(r"nvrtc: warning: Architectures prior to .* are deprecated")  # Volta's, for which we want it
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.S,
)


class Kernel(NamedTuple):
    """What the assembler says of one kernel."""

    registers: int
    spills: int
    shared: int


def compiled(code: str, storage: str, architecture: str) -> nvrtc.Compiled:
    """nvrtc.compiled; skips where its wheel is not installed."""
    if nvrtc.library(cuda := nvrtc.package(architecture)) is None:
        pytest.skip(f"NVRTC of CUDA {cuda} is not installed (the extra dev)")
    return nvrtc.compiled(code, storage, architecture)


def used(log: str) -> dict[str, Kernel]:
    """What each kernel takes, from the assembler's words."""
    return {
        m["name"]: Kernel(int(m["registers"]), int(m["stores"]) + int(m["loads"]), int(m["shared"] or 0))
        for m in ENTRY.finditer(log)
    }


def check(code: str, storage: str, architecture: str) -> dict[str, Kernel]:
    """Compile, and hold every kernel to what can be launched and runs fast; returns what each takes."""
    done, log, _ = compiled(code, storage, architecture)
    assert done, log
    assert "warning" not in DEPRECATED.sub("", log), log
    found = used(log)
    read = kernels.signatures(code, storage).keys()
    assert found.keys() == read, f"NVRTC compiled {sorted(found)}, Kernels.launch would find {sorted(read)}"
    blocks = nvrtc.largest_blocks(code, found)
    for name, kernel in found.items():
        assert kernel.spills <= SPILLS, f"{name} spills {kernel.spills} bytes with {kernel.registers} registers"
        assert kernel.registers * blocks[name] <= REGISTERS, (
            f"{name} takes {kernel.registers} registers: a block of {blocks[name]} threads cannot start; "
            "declare __launch_bounds__"
        )
    return found


def compilations() -> Iterator[tuple[str, str, str]]:
    for file, (storage, architectures) in product(FILES, COMPILED.items()):
        yield from ((file, storage, architecture) for architecture in architectures)


@pytest.mark.parametrize(("file", "storage", "architecture"), list(compilations()))
def test_every_kernel_compiles(file, storage, architecture):
    for name, kernel in check(kernels.source(FILES[file]), storage, architecture).items():
        print(f"{name}: {kernel}")


COUNTS = pathlib.Path(__file__).with_name("counts.txt")
MORE = 1.1  # times as many instructions as are noted: versions of NVRTC differ
INSTRUCTION = re.compile(r"^\s+(?:@!?%p\d+ )?([a-z]\w*(?:\.\w+)*)\s", re.M)
WIDTH = re.compile(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.\w*?(\d+)$")


def counted() -> dict[str, tuple[int, int]]:
    """{kernel: (instructions of its PTX for sm_90 and halves, bytes of its widest load from global memory)}."""
    found = {}
    for path in FILES.values():
        if "tests" in path.parts:
            continue
        ptx = compiled(kernels.source(path), "half", "sm_90").ptx
        for name, body in re.findall(r"\.entry (\w+)\(.*?\n\{\n(.*?)\n\}\n", ptx, re.S):
            instructions = INSTRUCTION.findall(body)
            loads = [int(m[1] or 1) * int(m[2]) // 8 for one in instructions if (m := WIDTH.match(one))]
            found[name] = (len(instructions), max(loads, default=0))
    return found


def test_no_kernel_has_more_instructions_or_narrower_loads():
    noted = {name: (int(n), int(width)) for name, n, width in map(str.split, COUNTS.read_text().splitlines()[1:])}
    found = counted()
    assert found.keys() == noted.keys(), "python -m gpu.test_nvrtc --counts (in tests/) notes them anew"
    worse = {n: (found[n], noted[n]) for n in noted if found[n][0] > MORE * noted[n][0] or found[n][1] < noted[n][1]}
    assert not worse, "python -m gpu.test_nvrtc --counts (in tests/) notes them anew"


@pytest.mark.parametrize("file", ["attention", "conv", "loss", "norm", "pool", "softmax"])
def test_what_an_observer_hears_compiles(file):
    """FP16 storage whose results stay in FP32."""
    code = kernels.source(pathlib.Path(kernels.__file__).parent / f"{file}.cu")
    done, log, _ = compiled("#define RESULT float\n" + code, "half", "compute_90")
    assert done, log


# ---------------------------------------------------------------------------------------------- the check is checked

SCALE = 'extern "C" __global__ void scale(T* x, float f) { store(x + threadIdx.x, f * widen(x[threadIdx.x])); }'
# 200 values that are all needed to the end, and at most 64 registers (1024 threads)
CROWDED = """
extern "C" __global__ void __launch_bounds__(THREADS) crowded(float* x) {
    float v[200];
    for (int i = 0; i < 200; i++) v[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 200; i++) x[i * 1024 + threadIdx.x] = v[i] * v[199 - i] + v[(i * 7) % 200];
}
"""


def whole(tmp_path: pathlib.Path, code: str) -> str:
    path = tmp_path / "planted.cu"
    path.write_text(code)
    return kernels.source(path)


def test_what_the_assembler_says_is_read(tmp_path):
    found = check(whole(tmp_path, SCALE), "half", "sm_90")
    assert list(found) == ["scale"]
    assert 4 < found["scale"].registers < 40
    assert found["scale"].spills == found["scale"].shared == 0
    block = "__shared__ float s[64]; s[threadIdx.x] = *x; __syncthreads(); *x = s[63 - threadIdx.x];"
    found = check(whole(tmp_path, f'extern "C" __global__ void turn(float* x) {{ {block} }}'), "float", "sm_75")
    assert found["turn"].shared == 256


def test_spills_are_found(tmp_path):
    code = "constexpr int THREADS = 1024;" + CROWDED
    with pytest.raises(AssertionError, match=r"crowded spills \d+ bytes"):
        check(whole(tmp_path, code), "half", "sm_80")


def test_a_block_that_cannot_start_is_found(tmp_path):
    code = CROWDED.replace("__launch_bounds__(THREADS)", "")
    with pytest.raises(AssertionError, match="a block of 1024 threads cannot start"):
        check(whole(tmp_path, code), "half", "sm_80")
    code = "#define THREADS 256\n" + CROWDED  # that many do fit
    assert check(whole(tmp_path, code), "half", "sm_80")["crowded"].registers > 64


def test_errors_and_warnings_are_shown(tmp_path):
    with pytest.raises(AssertionError, match=r'planted\.cu.*identifier "y" is undefined'):
        check(whole(tmp_path, SCALE.replace("T* x", "T* z")).replace("widen(x", "widen(y"), "half", "sm_90")
    with pytest.raises(AssertionError, match="never referenced"):
        check(whole(tmp_path, SCALE.replace("{", "{ int unused;")), "half", "sm_90")


@pytest.mark.parametrize("architecture", ALL)
@pytest.mark.parametrize("rows", [8, 510])
def test_a_rule_compiles_with_room_for_many_parameters(rows, architecture, gpu):
    """510 rows of Adam are 32,640 bytes of arguments, all that there is room for."""
    p = mp.MIXED.cast(mp.nn.Parameter(mp.tensor(np.ones(3, "float32"), device="gpu")))
    optimizer, p.grad_array = mp.optim.Adam([p]), p.array
    arrays = traced._arrays(optimizer, optimizer.param_groups[0], p)
    many = traced._traced(optimizer, optimizer.param_groups[0], p, arrays).many
    real, shim = (path.read_text() for path in (kernels.HERE / "hardware.cuh", cuda_on_cpu.HARDWARE))
    assert _most(gpu.xp, len(many.columns) + len(many.counts)) == 510
    code = kernels.with_headers(many.text(rows)).replace(shim, real)
    done, log, ptx = compiled(code, "half", architecture)
    assert done, log
    assert not re.search(r"\.local", ptx), "the table is copied to local memory"


def test_kernels_that_launch_would_not_find_are_noticed(tmp_path):
    code = SCALE.replace('extern "C" __global__', 'extern "C" __global__ __noinline__')
    with pytest.raises(AssertionError, match=r"compiled \['scale'\], Kernels.launch would find \[\]"):
        check(whole(tmp_path, code), "half", "sm_90")


def table() -> None:
    """Print what every kernel takes on every architecture."""
    by = [f"{name} (NVRTC {'.'.join(map(str, nvrtc.version(nvrtc.package(name))))})" for name in ALL]
    print(f"Registers, and bytes spilled, on {', '.join(by)}\n")
    for file, path in FILES.items():
        for storage in kernels.STORAGE.values():
            found = []
            for architecture in ALL:
                done, log, _ = compiled(kernels.source(path), storage, architecture)
                found.append(used(log))
                if not done:
                    print(log)
            for name in found[0]:
                takes = [kernels_of[name] for kernels_of in found]
                registers = " ".join(f"{k.registers:>4}" for k in takes)
                spills = " ".join(f"{k.spills:>3}" for k in takes)
                print(f"{file:<24} {name:<40} {storage:<5} {registers}   {spills}")


def note() -> None:
    """Write counts.txt."""
    lines = [f"{name} {n} {width}" for name, (n, width) in sorted(counted().items())]
    COUNTS.write_text("\n".join(["kernel, instructions, bytes of the widest load", *lines]) + "\n")


if __name__ == "__main__":
    note() if "--counts" in sys.argv else table()
