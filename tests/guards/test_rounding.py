"""Who asks for a rounding and who carries it out, as rounding.py finds them; docs/precision.md has the lists."""

import re
import shutil

import pytest

import rounding
from rounding import ROOT, sites, unmarked


@pytest.mark.parametrize(
    "path", [p for p in rounding.files() if p.suffix != ".py"], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_whatever_may_round_says_so(path):
    found = unmarked(sites(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()))
    assert not found, "\n".join(["add `# rounds: ...` (// in CUDA) with the reason, or `rounds: never, ...`:", *found])


PLANTED = {
    "tinymp/gpu/norm.cu": "__device__ half planted(float x) { return __float2half(x); }",
    "tinymp/gpu/rows.cuh": "__device__ void planted(T* to, float x) { store(to, x); }",
}


def test_unmarked_lines_in_a_copy_of_the_package_are_found(tmp_path):
    ends = {}
    for path in rounding.files():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for path, line in PLANTED.items():
        with (tmp_path / path).open("a", encoding="utf-8") as file:
            print(f"\n{line}", file=file)
        ends[path] = len((tmp_path / path).read_text(encoding="utf-8").splitlines())
    found = [tuple(s)[:2] for s in rounding.all_sites(tmp_path) if s.reason is None]
    assert dict(found) == ends
    assert len(found) == len(PLANTED)


@pytest.mark.parametrize(
    "line",
    [
        "*y = round_to_half(x);", "store(y + i, x);", 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));',
        "y = __float2half(x);", "y = __float22half2_rn(x);", "y = __float2half_rn(x);", "y = __floats2half2_rn(a, b);",
        "y = __double2float_rn(x);", "y = static_cast<float>(x);", "y = static_cast<T>(x);", "y = (half)x;",
        "mma_16816(d, a, b0, b1);", "wmma::mma_sync(d, a, b, d);", "x = warp_reduce<Sum>(x);",
        "InBlocks<Moments<V>, 2> all;", "atomicAdd(y, x);", "x += __shfl_xor_sync(all, x, 1);",
    ],
)  # fmt: skip
def test_a_line_of_cuda_is_found(line):
    (site,) = sites(f"__global__ void kernel(float* y) {{\n    {line}\n}}\n", "planted.cu")
    assert (site.line, site.function, site.reason) == (2, "kernel", None)


def test_a_mark_stands_at_the_end_or_above_and_names_the_function():
    source = """class Softmax(Op):
    def forward(self, x):
        return store(x / x.sum(0), like=x)  # why not  # rounds: a sum

    def backward(self, dy):
        # rounds: never, exact
        return dy.astype(d)
"""
    assert [tuple(s)[1:5] for s in sites(source)] == [
        (3, "Softmax.forward", "", "a sum"),
        (7, "Softmax.backward", "", "never, exact"),
    ]
    cuda = "template <class E>\n__device__ inline void save(E* to) {\n    store(to, 1.0f);  // rounds: one\n}\n"
    assert [tuple(s)[1:5] for s in sites(cuda, "planted.cuh")] == [(3, "save", "a store", "one")]


def test_every_head_of_a_cuda_function_is_one():
    """The functions that are named exist: a comment before one is none."""
    for site in rounding.all_sites():
        if not site.path.endswith(".py") and site.function:
            text = (ROOT / site.path).read_text(encoding="utf-8")
            assert re.search(rf"^(?!\s*//).*\b{site.function}\b", text, re.M), site
    source = "// sums in `term` (of rows)\n\n// and more\n__device__ void twice(float x) {\n    store(y, x);\n}\n"
    assert [s.function for s in sites(source, "planted.cu")] == ["twice"]


def test_who_asks_is_found():
    asks = rounding.asking()
    assert asks["tinymp/ops/softmax.py"]["Softmax.backward"] == {"store": 1, "reduce": 1}
    assert asks["tinymp/parameter.py"]["Weights.write"] == {"store": 1}
    assert not [path for path in asks if path.startswith(rounding.CARRIES)]
