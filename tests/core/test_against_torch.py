"""Every op of the core against PyTorch in float64: on a real GPU on sizes of real networks, elsewhere on tiny ones.

    |y - e| <= u |e| + c m + s + stored u max |e|

u       unit roundoff of the storage dtype: one rounding
s       the distance of its smallest numbers (FP32: what CuPy's -ftz=true makes zero)
m       the size of what is summed: of products the sum of |a| |b|, by the same op on absolute values; else max |e|
c       of FP16 products: a Tensor Core aligns `products` products and the accumulator to the largest, keeps `bits`
        bits, and cuts off the rest and then the sum (tinymp/study/tensor_core.py). k terms are off by no more than
        ceil(k / products) ((products + 1) 2^-bits + 2^-23). Of FP32 products: k 2^-24. Of all other sums of k terms: no
        thread of ours or of CuPy's adds more than 256 terms, or sums of terms, one after the other, and those of all
        threads are added in pairs: (256 + 2 log2 k) 2^-24 at most. And 16 2^-24 for exp and its like, and what is
        around them.
stored  how many stored results an op of several parts reads on its way; of a gradient 4 more

TEST_SIZES=tiny takes the tiny sizes on a real GPU, too, for compute-sanitizer.
"""

import math
import os
from typing import Any, NamedTuple

import numpy as np
import pytest

import tinymp as mp
from benchmarks import peers
from tinymp import backend, ops
from tinymp.study.tensor_core import ARCHITECTURES as UNITS

torch = peers.torch
ROUNDOFF = {"float16": 2.0**-11, "float32": 2.0**-24}
SMALLEST = {"float16": 2.0**-24, "float32": 2.0**-126}
GENERATIONS = {100: "blackwell", 90: "hopper", 89: "ada", 80: "ampere", 75: "turing", 70: "volta"}  # from this sm on


def generation():
    """The name of the GPU's generation in `mp.tensor_core`."""
    capability = backend.gpu.compute_capability()
    return GENERATIONS[max(sm for sm in GENERATIONS if sm <= capability)]


class Ints(NamedTuple):
    """Integers below a bound."""

    below: int
    shape: tuple[int, ...]


class Positive(NamedTuple):
    """Numbers from 0.1 on."""

    shape: tuple[int, ...]


class Case(NamedTuple):
    """A call of either library's function, `call(library, *tensors)`, and what the tensors are.

    terms: the length of its sums. products: whether it is linear in each argument, and sums products.
    """

    call: Any
    given: tuple
    terms: int = 1
    products: bool = False
    stored: int = 0


IMAGES, ROWS, VECTOR = (64, 256, 56, 56), (4096, 1000), (1000,)
BINARY = "add", "sub", "mul", "maximum", "lt"
SUMS = "sum", "mean", "var", "std", "logsumexp", "cumsum"
POSITIVE = "log sqrt rsqrt reciprocal"
UNARY = f"abs exp neg square sigmoid tanh sin cos sign relu silu gelu leaky_relu {POSITIVE}"


def _named(name, *given, **rest):
    return Case(lambda o, *x: getattr(o, name)(*x), given, **rest)


CASES: dict[str, Case] = {
    **{n: _named(n, Positive(IMAGES) if n in POSITIVE.split() else IMAGES) for n in UNARY.split()},
    **{n: _named(n, IMAGES, IMAGES) for n in BINARY},
    "div": _named("div", IMAGES, Positive(IMAGES)),
    "pow": Case(lambda o, x: o.pow(x, 3), (IMAGES,)),
    "a bias": _named("add", ROWS, VECTOR, terms=4096),
    **{n: Case(lambda o, x, n=n: getattr(o, n)(x, 1), (ROWS,), 1000) for n in SUMS},
    **{n: Case(lambda o, x, n=n: getattr(o, n)(x, 1), (ROWS,)) for n in ["amax", "amin", "argmax", "argmin"]},
    "sum of a channel": Case(lambda o, x: o.sum(x, (0, 2, 3)), (IMAGES,), 64 * 56 * 56),
    "embedding": _named("embedding", Ints(10000, (64, 64)), (10000, 1024), terms=64),
    "matmul": _named("matmul", (1760, 1760), (1760, 1000), terms=1760, products=True),
    "linear": _named("linear", (4096, 1024), (1000, 1024), VECTOR, terms=1024, products=True),
    "conv2d 3x3": Case(lambda o, x, w: o.conv2d(x, w, padding=1), ((32, 128, 28, 28), (128, 128, 3, 3)), 1152, True),
    "conv2d 1x1": _named("conv2d", IMAGES, (64, 256, 1, 1), terms=256, products=True),
    "conv2d 7x7": Case(
        lambda o, x, w: o.conv2d(x, w, None, 2, 3), ((64, 3, 224, 224), (64, 3, 7, 7)), 147, True
    ),
    "conv2d, groups": Case(
        lambda o, x, w, b: o.conv2d(x, w, b, 2, 1, 1, 4), ((32, 8, 56, 56), (128, 2, 3, 3), (128,)), 18, True
    ),
    "conv_transpose2d": Case(
        lambda o, x, w: o.conv_transpose2d(x, w, None, 2, 1), ((128, 256, 8, 8), (256, 128, 4, 4)), 1024, True
    ),
    "max_pool2d": Case(lambda o, x: o.max_pool2d(x, 3, 2, 1), (IMAGES,), 9),
    "batch_norm": Case(
        lambda o, x, w, b: o.batch_norm(x, None, None, w, b, True), (IMAGES, (256,), (256,)), 64 * 3136, stored=1
    ),
    **{n: Case(lambda o, x, n=n: getattr(o, n)(x, -1), (ROWS,), 1000) for n in ("softmax", "log_softmax")},
    "cross_entropy": _named("cross_entropy", ROWS, Ints(1000, (4096,)), terms=4096),
    **{n: _named(n, ROWS, ROWS, terms=4096000) for n in ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")},
    "binary_cross_entropy_with_logits": Case(
        lambda o, x, y: o.binary_cross_entropy_with_logits(x, o.sigmoid(y)), (ROWS, ROWS), 4096000, stored=2
    ),
}  # fmt: skip


class Torch:
    """torch.nn.functional, and what is in torch alone."""

    def __getattr__(self, name):
        return getattr(torch.nn.functional, name, None) or getattr(torch, name)


@pytest.fixture(scope="session")
def real(request):
    """True if sizes are real."""
    return request.config.getoption("--backend") == "gpu" and os.environ.get("TEST_SIZES") != "tiny"


def needs_torch():
    """Skip what follows the launches."""
    if torch is None:
        pytest.skip("PyTorch is not installed: nothing to compare with")


def small(x):
    """Sizes of at most 8."""
    if isinstance(x, Ints):
        return Ints(min(x.below, 8), small(x.shape))
    return Positive(small(x.shape)) if isinstance(x, Positive) else tuple(min(n, 8) for n in x)


def values(given, dtype, seed):
    """Random numbers, a million over and over."""
    rng, shape = np.random.default_rng(seed), getattr(given, "shape", given)
    if isinstance(given, Ints):
        return rng.integers(0, given.below, shape)
    some = rng.standard_normal(min(math.prod(shape), 1 << 20)).astype(dtype)
    return np.resize(np.abs(some) + some.dtype.type(0.1) if isinstance(given, Positive) else some, shape)


def seen(x, real):
    """An array of ours as a tensor of PyTorch's, in float64 unless it holds integers or booleans."""
    if x.dtype == bool:
        return seen(x.view("uint8"), real)
    y = peers.shared(x) if real else torch.from_numpy(np.array(backend.to_cpu(x), order="C"))
    return y.double() if y.is_floating_point() else y


def coefficient(terms, products, dtype):
    """c of the head of this file."""
    if not products:
        return (min(terms, 256) + 2 * math.ceil(math.log2(terms + 1)) + 16) * 2.0**-24
    if dtype == "float32":
        return (terms + 16) * 2.0**-24
    unit = UNITS[generation() if backend.gpu.array_type else "volta"]["fp16", "fp32"]
    return math.ceil(terms / unit.products) * ((unit.products + 1) * 2.0**-unit.bits + 2.0**-23) + 16 * 2.0**-24


def compare(what, y, e, dtype, c, m=None, stored=0):
    """The largest error in parts of what is tolerated, which is at most 1."""
    assert y.shape == e.shape, what
    if not e.is_floating_point():
        assert bool((y == e.to(y.dtype)).all()), what
        return 0.0
    most, u = e.abs().max(), ROUNDOFF[dtype]
    bound = u * e.abs() + c * (most if m is None else m) + SMALLEST[dtype] + stored * u * most
    worst = float(((y.double() - e).abs() / bound).max())
    assert worst <= 1, f"{what}: an error {worst:.3g} times as large as is tolerated"
    return worst


def run(case, library, tensors, dy):
    """An op, forward and backward: its result, and the gradients of the tensors (None where one has none)."""
    y = case.call(library, *tensors)
    if y.requires_grad:
        y.backward(dy(y))
    return y, [getattr(x, "grad", None) for x in tensors]


@pytest.mark.parametrize("dtype", ROUNDOFF)
@pytest.mark.parametrize("name", CASES)
def test_op(name, dtype, real, record_property):
    case = CASES[name]
    arrays = [values(g if real else small(g), dtype, i) for i, g in enumerate(case.given)]
    tensors = [mp.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]

    y, gradients = run(case, ops, tensors, lambda y: values(y.shape, y.dtype.name, 99))
    needs_torch()
    kind, dy = y.dtype.name, values(y.shape, y.dtype.name, 99)  # FP16's losses are FP32

    def theirs(change):
        wide = [torch.from_numpy(change(x)).to("cuda" if real else "cpu") for x in arrays]
        wide = [x.double().requires_grad_() if x.is_floating_point() else x for x in wide]
        return run(case, Torch(), wide, lambda y: torch.from_numpy(np.array(change(dy))).to(y.device).double())

    e, expected = theirs(lambda x: x)
    sizes, sums = theirs(np.abs) if case.products else (None, [None] * len(arrays))
    c, m = coefficient(case.terms, case.products, dtype), None if sizes is None else sizes.detach()
    worst = [compare("y", seen(y.array, real), e.detach(), kind, c, m, case.stored)]
    for i, (g, x) in enumerate(zip(gradients, expected, strict=True)):
        if g is not None and x is not None:
            terms = y.numel() * case.terms // arrays[i].size if case.products else case.terms
            c, stored = coefficient(max(terms, 1), case.products, dtype), case.stored + 4 * (not case.products)
            worst.append(compare(f"gradient {i}", seen(g.array, real), x, dtype, c, sums[i], stored))
    record_property("error, in parts of what is tolerated", [round(x, 3) for x in worst])


@pytest.fixture
def long(gpu, real):
    """FP16 random numbers in any shape, on the device; rows and their length, of more than 2^31 elements together."""
    if real and gpu.xp.cuda.runtime.memGetInfo()[0] < 50 << 30:
        pytest.skip("it takes 50 GiB of the GPU's memory")

    def array(*shape):
        some = gpu.xp.asarray(np.random.default_rng(0).standard_normal(1 << 20 if real else 1000).astype("float16"))
        out = gpu.xp.empty(math.prod(shape), "float16")
        for i in range(0, out.size, some.size):
            out[i : i + some.size] = some[: out.size - i]
        return out.reshape(shape)

    yield array, (1 << 21) + 1 if real else 33, 1024 if real else 32
    if real:
        gpu.xp.get_default_memory_pool().free_all_blocks()


ENDS = {  # what the first and the last rows depend on: their own, alone
    "relu": Case(lambda o, x: o.relu(x), ()),
    "add": Case(lambda o, x: o.add(x, x), ()),
    "softmax": Case(lambda o, x: o.softmax(x, 1), (), 1024),
    "matmul": Case(lambda o, x, w: o.matmul(x, w), ((1024, 64),), 1024, True),
    "conv2d": Case(lambda o, x, w: o.conv2d(x, w, padding=1), ((8, 64, 3, 3),), 576, True),  # its columns
}


@pytest.mark.parametrize("name", ENDS)
def test_more_elements_than_an_int_counts(name, long, real):
    (array, rows, width), case = long, ENDS[name]
    x = array(*((96, 64, 224, 224) if real else (3, 64, 4, 4)) if name == "conv2d" else (rows, width))
    given = [array(*(s if name == "conv2d" else (width, 64))) for s in case.given]
    with mp.no_grad():
        y = case.call(ops, mp.Tensor(x), *map(mp.Tensor, given)).array
    needs_torch()
    for part in (slice(2), slice(-2, None)):
        inputs = [seen(v, real) for v in (x[part], *given)]
        m = case.call(Torch(), *[v.abs() for v in inputs]) if case.products else None
        c = coefficient(case.terms, case.products, "float16")
        compare(str(part), seen(y[part], real), case.call(Torch(), *inputs), "float16", c, m)
