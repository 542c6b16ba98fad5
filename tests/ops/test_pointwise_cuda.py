"""The CUDA twins of pointwise arithmetic against their definitions."""

import numpy as np
import pytest

import tinymp as mp
from oracle import randn, rng
from tinymp import ops
from twins import channels_last, check_twin, launches, on_device

pytestmark = pytest.mark.usefixtures("gpu")


def kernels(name):
    return {f"{name}_forward", f"{name}_backward"}


def positive(*shape):
    return np.abs(randn(*shape)) + 0.25


# ------------------------------------------------------------------------------------------------------- one operand

# op, its kernels, inputs, storage roundings of a saved y that the gradient sees
ONE = [
    (ops.neg, {"scale"}, randn, 0),
    (ops.abs, kernels("abs"), randn, 0),
    (ops.exp, kernels("exp"), randn, 2),
    (ops.log, kernels("log"), positive, 0),
    (ops.sqrt, kernels("sqrt"), positive, 2),
    (ops.rsqrt, kernels("rsqrt"), positive, 0),
    (ops.square, kernels("square"), randn, 0),
    (ops.reciprocal, kernels("reciprocal"), positive, 0),
    (lambda x: ops.clamp(x, -0.5, 1), kernels("clamp"), randn, 0),
    (lambda x: ops.clamp(x, min=0.25), kernels("clamp"), randn, 0),
    (lambda x: ops.clamp(x, max=0), kernels("clamp"), randn, 0),
]


@pytest.mark.parametrize(("op", "names", "inputs", "inherited"), ONE)
@pytest.mark.parametrize("shape", [(7, 11), (), (0, 3)], ids=str)
def test_one_operand(op, names, inputs, inherited, shape):
    x = inputs(*shape) if shape else np.array(0.625)
    check_twin(op, x, kernels=names, length=4, inherited=inherited)


@pytest.mark.parametrize(("op", "names", "inputs", "inherited"), ONE)
def test_extremes_of_one_operand(op, names, inputs, inherited):
    x = np.array([-np.inf, -65504, -1, -1e-7, -0.0, 0.0, 1e-7, 1, 65504, np.inf, np.nan])
    with np.errstate(all="ignore"):
        check_twin(op, x, kernels=names, length=4, inherited=inherited)


def test_clamp_with_tensors_is_left_to_the_definition():
    check_twin(ops.clamp, randn(3, 5), randn(3, 5, seed=1) - 1, randn(3, 5, seed=2) + 1)


# ------------------------------------------------------------------------------------------------------ two operands

TWO = [
    (ops.add, {"add_forward"}),
    (lambda x, y: ops.add(x, y, alpha=0.3), {"add_forward"}),
    (ops.sub, {"add_forward"}),
    (lambda x, y: ops.sub(x, y, alpha=-2), {"add_forward"}),
    (ops.mul, kernels("mul")),
    (ops.div, kernels("div")),
    (ops.maximum, kernels("maximum")),
    (ops.minimum, kernels("minimum")),
]
every_pair = pytest.mark.parametrize(("op", "names"), TWO)


def away_from_zero(*shape, seed):
    """Values that a quotient may be divided by, of both signs."""
    return positive(*shape) * rng(seed).choice([-1.0, 1.0], shape)


@every_pair
@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (3, 3), (5, 7), (2061,), (0, 3)], ids=str)
def test_equal_shapes(op, names, shape):
    check_twin(op, randn(*shape), away_from_zero(*shape, seed=1), kernels=names, length=4)


# Shapes of a large operand and a small one. Kept axes of the small one: none, the last, a middle one, several
BROADCAST = [
    ((5, 7), ()),
    ((5, 7), (1,)),
    ((5, 7), (7,)),
    ((5, 8), (1, 8)),
    ((5, 7), (5, 1)),
    ((3, 4, 7), (4, 1)),
    ((3, 4, 8), (4, 8)),
    ((9, 3, 2, 2), (1, 3, 1, 1)),
    ((8, 3, 2, 4), (3, 1, 1)),
    ((8, 3, 2, 4), (1, 3, 2, 4)),
    ((2, 3, 4, 4), (4,)),
    ((1, 1, 3), (3,)),
    ((1, 3), (3,)),
]
LARGEST = 300.0  # of the terms in the sums of gradients: |dz x / y^2| for |dz|, |x| < 4, |y| > 1/4


@pytest.mark.parametrize(("op", "names"), TWO[1:2] + TWO[4:])  # a difference is a sum with alpha
@pytest.mark.parametrize(
    ("large", "small", "chwn"), [(*pair, chwn) for pair in BROADCAST for chwn in {False, len(pair[0]) == 4}], ids=str
)
def test_one_operand_is_broadcast(op, names, large, small, chwn):
    x, y = away_from_zero(*large, seed=1), away_from_zero(*small, seed=2)
    for pair in ((x, y), (y, x)):
        check_twin(op, *pair, kernels=names, length=x.size, chwn=chwn, grad_magnitude=LARGEST, mixed=chwn)


# What kernels do not see as one run of memory that is repeated: the definition broadcasts
@pytest.mark.parametrize(
    ("left", "right", "chwn"),
    [
        ((5, 1), (1, 7), False),
        ((2, 3, 4, 4), (2, 1, 4, 4), False),
        ((2, 3, 4, 4), (2, 3, 1, 1), True),
        ((0, 3), (3,), False),
        ((0, 3), (1, 3), False),
    ],
)
def test_other_broadcasts_are_left_to_the_definition(left, right, chwn):
    before = len(launches() or ())
    x, y = randn(*left), randn(*right, seed=1)
    check_twin(ops.mul, x, y, length=x.size + y.size, chwn=chwn, grad_magnitude=16.0, mixed=False)
    assert "mul_forward" not in (launches() or [])[before:]


@pytest.mark.parametrize("number", [3, -0.1, True, float("inf")])
@pytest.mark.parametrize(
    ("op", "names"),
    [
        (ops.add, {"add_forward"}),
        (lambda x, y: ops.add(x, y, alpha=0.3), {"add_forward"}),
        (ops.sub, {"add_forward"}),
        (ops.mul, kernels("mul")),
        (ops.div, kernels("div")),
    ],
)
def test_a_number(op, names, number):
    x = away_from_zero(9, 2, 3, 1, seed=1)
    for chwn in (False, True):
        check_twin(lambda x: op(x, number), x, kernels=names, length=4, chwn=chwn, mixed=chwn)
        check_twin(lambda x: op(number, x), x, kernels=names, length=4, chwn=chwn, mixed=False)


@every_pair
def test_extremes_of_two_operands(op, names):
    values = np.array([-np.inf, -65504, -1, -0.0, 0.0, 2.0**-24, 1, 65504, np.inf, np.nan])
    with np.errstate(all="ignore"):
        check_twin(op, *np.meshgrid(values, values), kernels=names, length=4)


@pytest.mark.parametrize("op", [ops.maximum, ops.minimum])
def test_equal_values_share_the_gradient(op):
    check_twin(op, np.array([1.0, 2, -0.0, 3]), np.array([1.0, 3, 0.0, -3]), kernels=kernels(op.__name__), length=4)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)], ids=["left", "right"])
@pytest.mark.parametrize("op", [ops.mul, ops.div, ops.maximum])
@pytest.mark.parametrize("small", [(4, 6), (6,), ()], ids=str)
def test_one_gradient_is_wanted(op, wanted, small):
    """What it does not need is then not saved."""

    def run(x, y):
        return op(*[t if want else t.detach() for t, want in zip((x, y), wanted)])

    pair = [away_from_zero(*shape, seed=i) for i, shape in enumerate([(4, 6), small])]
    check_twin(run, *pair, kernels=kernels(op.__name__), length=24, grad_magnitude=LARGEST)


@pytest.mark.parametrize("op", [ops.add, ops.div])
@pytest.mark.parametrize(
    "parts", [(slice(1, None), slice(0, -1)), (slice(3, 11), slice(8, 16)), (slice(None, None, 2), slice(1, None, 2))]
)
def test_parts_of_a_larger_array(op, parts):
    """What begins between multiples of 16 bytes, or has gaps."""
    check_twin(
        lambda x: op(x[parts[0]], x[parts[1]]), away_from_zero(24, seed=3), kernels={f"{op.__name__}_forward"}, length=8
    )


@pytest.mark.parametrize("start", [1, 8])
def test_a_gradient_that_is_part_of_a_larger_array(start):
    x, y = away_from_zero(24, seed=3), away_from_zero(24, seed=4)
    check_twin(lambda x, y: ops.cat([x[:start], x / y]), x, y, kernels=kernels("div"), length=8)


@pytest.mark.parametrize("op", [ops.sub, ops.mul])
def test_operands_in_two_layouts(op):
    x, y, dz = (randn(5, 3, 2, 4, seed=i).astype("float16") for i in range(3))
    results = []
    for here in (lambda a: a, on_device):
        a, b = (mp.Tensor(here(v), requires_grad=True) for v in (channels_last(x), y))
        z = op(a, b)
        z.backward(here(dz))
        results.append([mp.backend.to_cpu(v) for v in (z.array, a.grad, b.grad)])
    for host, device in zip(*results):
        np.testing.assert_array_equal(device, host)


def test_the_layout_is_kept():
    x = mp.Tensor(on_device(channels_last(randn(8, 3, 2, 4).astype("float16"))))
    bias = mp.Tensor(on_device(randn(1, 3, 1, 1).astype("float16")))
    for y in (x + bias, bias * x, x + x, 2 / x, ops.exp(x)):
        assert y.array.strides == x.array.strides


def test_integers_are_left_to_the_definition():
    x, y = np.arange(6).reshape(2, 3), np.full((2, 3), 4)
    before = len(launches() or ())
    for op in (ops.add, ops.sub, ops.mul, ops.maximum):
        check_twin(op, x, y)
    check_twin(ops.neg, x)
    assert not {n for n in (launches() or [])[before:] if n.endswith("_forward") or n == "scale"}


@pytest.mark.parametrize("policy", [mp.FP16_ACCUMULATE, mp.FP16_REDUCTIONS], ids=str)
def test_kernels_stand_back_where_the_policy_asks_for_other_arithmetic(policy):
    x = mp.Tensor(on_device(randn(40).astype("float16")))
    before = len(launches() or ())
    with mp.use(policy):
        x * x
    assert "mul_forward" not in (launches() or [])[before:]
