"""Who asks for a rounding and who carries it out, as rounding.py finds them; docs/precision.md has the lists."""

import pytest

import rounding
from rounding import ROOT, sites, unmarked


@pytest.mark.parametrize(
    "path", [p for p in rounding.files() if p.suffix != ".py"], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_whatever_may_round_says_so(path):
    found = unmarked(sites(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()))
    assert not found, "\n".join(["add `# rounds: ...` (// in CUDA) with the reason, or `rounds: never, ...`:", *found])


@pytest.mark.parametrize(
    "line",
    [
        "store(y + i, x);", 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));', "y = __float22half2_rn(x);",
        "y = static_cast<float>(x);", "y = (half)x;", "mma_16816(d, a, b0, b1);", "InBlocks<Moments<V>, 2> all;",
        "atomicAdd(y, x);", "x += __shfl_xor_sync(all, x, 1);",
    ],
)  # fmt: skip
def test_a_line_of_cuda_is_found(line):
    (site,) = sites(f"__global__ void kernel(float* y) {{\n    {line}\n}}\n", "planted.cu")
    assert (site.line, site.function, site.reason) == (2, "kernel", None)


def test_who_asks_is_found():
    asks = rounding.asking()
    assert asks["tinymp/ops/softmax.py"]["Softmax.backward"] == {"store": 1, "reduce": 1}
    assert asks["tinymp/parameter.py"]["Weights.write"] == {"store": 1}
    assert not [path for path in asks if path.startswith(rounding.CARRIES)]
