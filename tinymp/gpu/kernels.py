"""Loading and launching the CUDA kernels that lie beside the ops: `softmax.py` has its kernels in `softmax.cu`.

A .cu file holds functions `extern "C" __global__ void name(arguments)`. Each is compiled by itself with NVRTC (through
CuPy, which keeps the result on disk) at its first use, once per storage dtype: `T` is half or float. Every source is
preceded by hardware.cuh and common.cuh, and then by the files beside it that it names in lines such as
`#include "rows.cuh"`. Nothing is included from the CUDA toolkit.

CuPy makes NVRTC flush subnormal FP32 numbers (below 2^-126) to zero; FP16's subnormal numbers are normal ones in FP32.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..backend.gpu import require_one_gpu
from ..events import here

HERE = pathlib.Path(__file__).parent
HEADERS = [HERE / "hardware.cuh", HERE / "common.cuh"]  # tests/cuda_on_cpu puts its own first one here
OPT_IN = 48 * 1024  # bytes of shared memory, of both kinds, beyond which a kernel has to ask for the dynamic ones
NULL = np.uint64(0)  # a pointer
STORAGE = {np.dtype(np.float16): "half", np.dtype(np.float32): "float"}

# C type of a kernel's argument -> the dtypes of the arrays (behind a pointer) or of the number that it takes
TYPES = {
    kind: tuple(map(np.dtype, names.split()))
    for kind, names in {
        "half": "float16",
        "float": "float32",
        "double": "float64",
        "int": "int32",
        "unsigned int": "uint32",
        "long long": "int64",
        "unsigned long long": "uint64",
        "short": "int16",
        "unsigned short": "uint16",
        "signed char": "int8",
        "unsigned char": "uint8 bool",
        "bool": "bool",
        "Many": "",  # many.cuh
    }.items()
}
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.M)
_KERNEL = r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\('
_DECLARATION = _KERNEL + r"([^)]*)\)\s*\{"


class Argument(NamedTuple):
    """One argument of a kernel: `const T* x` is Argument("x", (float16,), True, True) where T is half; constant: only
    read.
    """

    name: str
    dtypes: tuple[np.dtype, ...]
    pointer: bool
    constant: bool


def joined(paths: Iterable[pathlib.Path]) -> str:
    """The texts of CUDA sources as one, in which the compiler's messages name the files."""
    return "\n".join(f'#line 1 "{path.name}"\n{path.read_text(encoding="utf-8")}' for path in paths)


def source(path: pathlib.Path) -> str:
    """The whole translation unit of a .cu file, with the text of what it includes."""
    included = [path.parent / name for name in _INCLUDE.findall(path.read_text(encoding="utf-8"))]
    return _INCLUDE.sub("", joined([*HEADERS, *included, path]))


def with_headers(code: str) -> str:
    included = [HERE / name for name in _INCLUDE.findall(code)]
    return f'{joined([*HEADERS, HERE / "elements.cuh", *included])}\n#line 1 "generated"\n{_INCLUDE.sub("", code)}'


@functools.cache
def signatures(code: str, storage: str, result: str | None = None) -> dict[str, tuple[Argument, ...]]:
    """The kernels in `code` and their arguments, read from their declarations, where `#define`d lists are expanded."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", code, flags=re.S).replace("\\\n", " ")
    lists = dict(re.findall(r"^#define[ \t]+(\w+)[ \t]+(.*)$", code, flags=re.M))
    found = {}
    for match in re.finditer(_DECLARATION, code):
        declared = match[2]
        while (expanded := re.sub(r"\w+", lambda word: lists.get(word[0], word[0]), declared)) != declared:
            declared = expanded
        arguments = [a for a in declared.split(",") if a.strip()]
        found[match[1]] = tuple(_argument(a, {"T": storage, "R": result or storage}) for a in arguments)
    return found


def alone(code: str, name: str) -> str:
    """`code` with one kernel: the others become templates, which the compiler reads, and leaves at that."""
    return re.sub(_KERNEL, lambda m: m[0] if m[1] == name else m[0].replace('extern "C"', "template <int>"), code)


def _argument(declaration: str, own: dict[str, str]) -> Argument:
    words = re.findall(r"\w+|\*", re.sub(r"\b(const|__restrict__|__grid_constant__|volatile)\b", " ", declaration))
    name, pointer = words[-1], "*" in words
    kind = " ".join(w for w in words[:-1] if w != "*")
    kind = own.get(kind, kind)
    if kind not in TYPES:
        raise TypeError(f"kernel argument `{declaration.strip()}`: unknown type {kind!r}")
    return Argument(name, TYPES[kind], pointer, re.search(r"\bconst\b", declaration) is not None)


class Plan:
    """A kernel for one storage dtype, as `launch` needs it. It is made once."""

    def __init__(self, kernel: Any, arguments: tuple[Argument, ...]) -> None:
        self.kernel, self.arguments = kernel, arguments
        self.pointers = [(i, a.dtypes) for i, a in enumerate(arguments) if a.pointer]
        self.numbers = [(i, a.dtypes[0].type) for i, a in enumerate(arguments) if not a.pointer]
        self.dynamic = OPT_IN - kernel.shared_size_bytes  # shared memory that a launch gets unasked


class Kernels:
    """Loads and launches the kernels of the .cu file next to a Python file: `KERNELS = Kernels(__file__)`.

    While an observer listens, they are compiled to leave their results in FP32 (R of common.cuh).
    """

    def __init__(self, python_file: str) -> None:
        self.path = pathlib.Path(python_file).with_suffix(".cu")
        self._plans: dict[tuple[Any, str, np.dtype, bool], Plan] = {}

    def launch(self, name: str, dtype: np.dtype, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Run kernel `name`, compiled for storage `dtype`, on `grid` blocks of `block` threads (each int or tuple).

        args: arrays, None (a null pointer), and numbers, which are checked against the kernel's declaration: TypeError
        for another count or dtype. shared: bytes of dynamic shared memory. RuntimeError on another GPU than before.
        """
        import cupy

        require_one_gpu(cupy)
        key = cupy, name, dtype, bool(here.inside)
        plan = self._plans.get(key) or self._plans.setdefault(key, Plan(*self.load(name, dtype)))
        if len(args) != len(plan.arguments):
            raise TypeError(f"{self.path.name}: {name} takes {len(plan.arguments)} arguments, got {len(args)}")
        values = [*args]
        for i, dtypes in plan.pointers:
            x = args[i]
            if x is None:
                values[i] = NULL
            elif (found := getattr(x, "dtype", None)) not in dtypes:
                argument, got = plan.arguments[i].name, found or type(x).__name__
                raise TypeError(f"{self.path.name}: {name} expects {dtypes[0]} behind `{argument}`, got {got}")
        for i, kind in plan.numbers:
            if type(x := args[i]) is not kind:
                values[i] = kind(x)
        if shared > plan.dynamic:
            plan.kernel.max_dynamic_shared_size_bytes = plan.dynamic = shared
        grid = grid if isinstance(grid, tuple) else (grid,)
        plan.kernel(grid, block if isinstance(block, tuple) else (block,), tuple(values), shared_mem=shared)

    def load(self, name: str, dtype: np.dtype) -> tuple[Any, tuple[Argument, ...]]:
        """Kernel `name` for storage `dtype`, compiled at its first use, and its arguments. ValueError without it."""
        import cupy

        storage = STORAGE[np.dtype(dtype)]
        result = "float" if here.inside else storage
        code, options = source(self.path), ("-std=c++17", f"-DSTORAGE={storage}", f"-DRESULT={result}")
        known = signatures(code, storage, result)
        if name not in known:
            raise ValueError(f"{self.path.name}: no kernel {name!r}; it has {', '.join(known)}")
        return cupy.RawModule(code=alone(code, name), options=options).get_function(name), known[name]
