"""NVRTC compiles every kernel of the package for real GPUs: no GPU is needed for that.

    python -m gpu.test_nvrtc    # in tests/: writes counts.txt: instructions, and the widths of loads

NVRTC comes from its wheels (in the extra `test`): CUDA 12's is the last that knows Volta. Its assembler says how many
registers a kernel takes and how many bytes it moves out to memory because there were too few ("spills"): a kernel that
does so in its loops is slow, so more than `SPILLS` bytes fail here. So does one with so many registers that its largest
block could not start.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import pathlib
import re
import zlib
from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

import cuda_on_cpu
import tinymp as mp
from cuda_on_cpu.compile import declared_in
from kept import kept
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
SPILLS = 128  # bytes per thread. A few cost nothing that can be measured, and versions of NVRTC differ by tens
REGISTERS = 65536  # of a multiprocessor, for all threads of a block together

DEPRECATED = re.compile(r"nvrtc: warning: Architectures prior to .* are deprecated")  # Volta's, for which we want it
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.S,
)


class Compiled(NamedTuple):
    """The compiler's answer: whether it went well, all that it had to say, and the PTX."""

    done: bool
    log: str
    ptx: str


def package(architecture: str) -> int:
    """The version of CUDA that compiles for it."""
    return 12 if architecture.endswith("_70") else 13


@cache
def library(cuda: int) -> ctypes.CDLL | None:
    """The library of the wheel nvidia-cuda-nvrtc (CUDA 13) or nvidia-cuda-nvrtc-cu12 (CUDA 12); None without it."""
    found = importlib.util.find_spec("nvidia")
    folders = found.submodule_search_locations if found else None
    paths = [path for folder in folders or () for path in pathlib.Path(folder).glob(f"*/lib/libnvrtc.so.{cuda}")]
    return ctypes.CDLL(str(paths[0])) if paths else None


@cache
def version(cuda: int) -> tuple[int, int]:
    """NVRTC's."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library(cuda).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compiled(code: str, storage: str, architecture: str) -> Compiled:
    """A source for sm_80, say, with the assembler's words about every kernel; kept from the last time."""
    if library(cuda := package(architecture)) is None:
        pytest.skip(f"NVRTC of CUDA {cuda} is not installed (the extra dev)")
    options = [f"-DSTORAGE={storage}", f"-arch={architecture}", "-std=c++17"]
    options += ["--ptxas-options=-v"] if architecture.startswith("sm_") else []
    options += ["-ftz=true", "--device-as-default-execution-space"]  # what CuPy adds
    options += ["--fmad=false"] if '#line 1 "generated"' in code else []  # elementwise.OPTIONS
    on = (str(version(package(architecture))), *options, code)

    def make(path: pathlib.Path) -> None:
        path.write_bytes(zlib.compress(json.dumps(_compiled(code, options, architecture)).encode(), 1))

    return Compiled(*json.loads(zlib.decompress(kept("nvrtc", on, make).read_bytes())))


def _compiled(code: str, options: list[str], architecture: str) -> Compiled:
    nvrtc, program = library(package(architecture)), ctypes.c_void_p()
    given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None)
    try:
        result = nvrtc.nvrtcCompileProgram(program, len(options), given)
        log, ptx = (_text(nvrtc, program, what) for what in ("ProgramLog", "PTX"))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Compiled(result == 0, log, ptx)


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(max(size.value, 1))
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.value.decode(errors="replace")


def largest_blocks(code: str, names: Iterable[str]) -> dict[str, int]:
    """The threads per block that kernels are declared for: their __launch_bounds__, or what CUDA allows at most."""
    found = {}
    for name, (_, bounds) in declared_in(code, names).items():
        value = bounds.partition(",")[0].strip()
        while not value.isdecimal():  # a constant of the file
            defined = re.search(rf"\b{value}\s*=\s*(\w+)\s*;|#define\s+{value}\s+(\w+)", code)
            if not defined:
                raise ValueError(f"{name}: cannot read its __launch_bounds__")
            value = defined[1] or defined[2]
        found[name] = int(value)
    return found


class Kernel(NamedTuple):
    """The assembler's figures for one kernel."""

    registers: int
    spills: int
    shared: int


def used(log: str) -> dict[str, Kernel]:
    """Figures of each kernel, from the assembler's output."""
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
    blocks = largest_blocks(code, found)
    for name, kernel in found.items():
        assert kernel.spills <= SPILLS, f"{name} spills {kernel.spills} bytes with {kernel.registers} registers"
        assert kernel.registers * blocks[name] <= REGISTERS, (
            f"{name} takes {kernel.registers} registers: a block of {blocks[name]} threads cannot start; "
            "declare __launch_bounds__"
        )
    return found


COMPILATIONS = [(*one, architecture) for one in product(FILES, COMPILED) for architecture in COMPILED[one[1]]]


@pytest.mark.parametrize(("file", "storage", "architecture"), COMPILATIONS)
def test_every_kernel_compiles(file, storage, architecture):
    check(kernels.source(FILES[file]), storage, architecture)


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
    assert found.keys() == noted.keys(), "python -m gpu.test_nvrtc (in tests/) notes them anew"
    worse = {n: (found[n], noted[n]) for n in noted if found[n][0] > MORE * noted[n][0] or found[n][1] < noted[n][1]}
    assert not worse, "python -m gpu.test_nvrtc (in tests/) notes them anew"


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


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("constexpr int THREADS = 1024;" + CROWDED, r"crowded spills \d+ bytes"),
        (CROWDED.replace("__launch_bounds__(THREADS)", ""), "a block of 1024 threads cannot start"),
        (SCALE.replace("{", "{ int unused;"), "never referenced"),
        (SCALE.replace("void", "__noinline__ void"), r"\['scale'\], Kernels.launch would find \[\]"),
    ],
)
def test_what_is_planted_is_found(tmp_path, code, said):
    (tmp_path / "planted.cu").write_text(code)
    with pytest.raises(AssertionError, match=said):
        check(kernels.source(tmp_path / "planted.cu"), "half", "sm_80")


@pytest.mark.parametrize(("rows", "architecture"), [(8, "sm_120"), (510, "sm_70"), (510, "sm_90")])
def test_a_rule_compiles_with_room_for_many_parameters(rows, architecture, gpu):
    """510 rows of Adam are 32,640 bytes of arguments, all that there is room for."""
    p = mp.MIXED.cast(mp.nn.Parameter(mp.tensor(np.ones(3, "float32"), device="gpu")))
    optimizer, p.grad_array = mp.optim.Adam([p]), p.array
    arrays = traced._arrays(optimizer, optimizer.param_groups[0], p)
    many = traced._traced(optimizer, optimizer.param_groups[0], p, arrays).many
    real, shim = (path.read_text() for path in (kernels.HERE / "hardware.cuh", cuda_on_cpu.HARDWARE))
    assert _most(gpu.xp, len(many.columns) + len(many.counts)) == 510
    done, log, ptx = compiled(kernels.with_headers(many.text(rows)).replace(shim, real), "half", architecture)
    assert done, log
    assert not re.search(r"\.local", ptx), "the table is copied to local memory"


def note() -> None:
    """Write counts.txt."""
    lines = [f"{name} {n} {width}" for name, (n, width) in sorted(counted().items())]
    COUNTS.write_text("\n".join(["kernel, instructions, bytes of the widest load", *lines]) + "\n")


if __name__ == "__main__":
    note()
