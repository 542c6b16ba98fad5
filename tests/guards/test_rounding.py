"""Every line of the package that may round says so: rounding.py finds them, docs/precision.md has the table."""

import shutil

import pytest

import rounding
from rounding import ROOT, sites, unmarked


@pytest.mark.parametrize("path", rounding.files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_whatever_may_round_says_so(path):
    found = unmarked(sites(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()))
    assert not found, "\n".join(["add `# rounds: ...` (// in CUDA) with the reason, or `rounds: never, ...`:", *found])


def test_the_whole_package_is_searched():
    names = {p.relative_to(ROOT).as_posix() for p in rounding.files()}
    assert {p.relative_to(ROOT).as_posix() for p in (ROOT / "tinymp").rglob("*.py")} <= names
    assert {"tinymp/precision.py", "tinymp/backend/devices.py", "tinymp/gpu/common.cuh"} <= names
    assert {"tinymp/gpu/norm.cu", "examples/paper/nmt.py", "course/grader/race.py"} <= names


def test_ops_and_layers_leave_rounding_to_the_primitives():
    """Outside the files that carry the primitives out, no mark excuses a cast, a sum or a product."""
    carry = ("tinymp/precision.py", "tinymp/backend/", "tinymp/fast/", "tinymp/gpu/", "tinymp/study/", "tinymp/audit/")
    moved = ("with a dtype", "[...] =", "out=", ".copyto()")  # values put into an array, constants made into one
    assert not [s for s in rounding.all_sites() if not s.path.startswith(carry) and not s.found.endswith(moved)]


PLANTED = {
    "tinymp/ops/softmax.py": "y = x.astype(d)",
    "tinymp/backend/devices.py": "y = np.add(a, b, out=y)",
    "tinymp/fast/cpu/devices.py": "numkong.astype(x, 'float16')",
    "tinymp/gpu/devices.py": "y[...] = x",
    "tinymp/audit/sketch.py": "y = x.sum()",
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
        "x.astype(d)", "f = x.astype", "c = a @ b", "a @= b", "np.dot(a, b)", "a.dot(b)", "self.xp.vdot(a, b)",
        "xp.inner(a, b)", "f = np.matmul", "np.tensordot(a, b)", "np.einsum('ij,jk', a, b)", "einsum('ij,jk', a, b)",
        "vecdot(a, b)", "from numpy import matmul", "from numpy import float32", "np.sum(x)", "x.sum()",
        "self.xp.sum(x)",
        "xp.mean(x)", "(a * b).var()", "x.array.std(0)", "np.prod(x)", "np.cumsum(x)", "np.add.reduce(x)",
        "np.add.accumulate(x)", "np.add.reduceat(x, i)", "np.zeros(3, dtype=np.float16)", "y = self.xp.float64",
        "np.zeros(3, dtype='float32')", "np.zeros(3, 'f2')", "np.asarray(x, float32)", "x.view(float16)",
        "np.empty_like(x, dtype=float64)", "x.view('half')", "store(np.float32(2) * x, like=x)",
        "zeros(3, dtype=float16)",
        "np.array(x, dtype=d)", "xp.asarray(x, y.dtype)", "xp.ascontiguousarray(x, d)", "np.add(a, b, out=c)",
        "np.add(a, b, casting='unsafe')", "np.copyto(a, b)", "a[...] = b", "np.add.at(a, i, b)",
        "backend.of(x).cast(x, d)", "device.cast_stochastic(x)", "device.gemm(a, b)",
        "device.scatter_add_rows(n, i, x)",
    ],
)  # fmt: skip
def test_a_way_around_the_primitives_is_found(line):
    source = f"import numpy as np\nfrom ..precision import store, float16\nfrom .create import zeros\n\n{line}\n"
    (found,) = unmarked(sites(source))
    assert found.startswith("planted.py:5: ")
    assert found.endswith(f": {line}")


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
        (3, "Softmax.forward", ".sum()", "a sum"),
        (7, "Softmax.backward", ".astype", "never, exact"),
    ]
    cuda = "template <class E>\n__device__ inline void save(E* to) {\n    store(to, 1.0f);  // rounds: one\n}\n"
    assert [tuple(s)[1:5] for s in sites(cuda, "planted.cuh")] == [(3, "save", "a store", "one")]


@pytest.mark.parametrize(
    "line",
    [
        "y = ops.matmul(a, b)", "y = ops.einsum('ij,jk', a, b)", "def matmul(a, b): ...", "y = matmul(a, b)",
        "n = sum(sizes)",
        "y = ops.sum(x, 0)", "n = math.prod(shape)", "from math import prod", "y = reduce(x, 0, 'sum')",
        "if x.dtype == float16: ...",
        "y = to_dtype(x, float32)", "y = x.to(float16)", "self.mean = mean", "print('float32 stays float32')",
        "y = self.xp.zeros(shape, widen(x).dtype)", "message = 'a.astype(b) @ c'", "y = x.mean_",
        "@decorated\ndef f(): ...",
        "y[...] = store(x, like=y)", "y[...] = 0", "x = np.asarray(x, 'int64')", "x = xp.asarray(1, x.dtype)",
        "xp.exp(x, out=x)", "model = policy.cast(model)", "y = gemm(a, b)",
    ],
)  # fmt: skip
def test_innocent_code_passes(line):
    source = (
        "import math\nfrom . import ops\nfrom .dot import matmul\nfrom .precision import float16, reduce, to_dtype\n"
    )
    assert not sites(source + line)
