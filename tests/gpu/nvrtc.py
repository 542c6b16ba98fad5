"""NVRTC, from its wheels: CUDA 12's is the last that knows Volta. What it says of a source is kept."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import pathlib
import re
import zlib
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from cuda_on_cpu.compile import declared_in
from kept import kept


class Compiled(NamedTuple):
    """What the compiler gave: whether it went well, all that it had to say, and the PTX."""

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
