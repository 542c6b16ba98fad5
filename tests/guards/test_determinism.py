"""The ops keep the promises of bits in tests/determinism.py (docs/precision.md)."""

import contextlib
import importlib

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

import bits_of_ops
import tinymp as mp
from determinism import EXACT, KINDS, MORE, RUNS, depends, names
from docs import layers
from tinymp.autograd import Op
from tinymp.fast.cpu import threads


def op_classes(base=Op):
    """Every Op of the package that people call: of those with subclasses, the ones that are ops themselves."""
    for name in layers.files().keys() - {"tinymp", "__main__"}:
        importlib.import_module(f"tinymp.{name.replace('/', '.')}")
    for cls in base.__subclasses__():
        names = cls.name, f"{cls.name}_layer"
        called = any(callable(getattr(mp.ops, n, None)) for n in names) or not cls.__subclasses__()
        if called and cls.__module__.startswith("tinymp."):
            yield cls
        yield from op_classes(cls)


OPS = {f"{op.__module__}.{op.__qualname__}": op for op in op_classes() if hasattr(op, "kind")}
# a hook, two devices, a scaler, processes; a program's own, the outputs of a backward pass
NOT_CALLED = {"BackwardHook", "Move", "ScaleLoss", "_Call", "_Outputs"}

SHOWN = {"threads": "conv2d", "BLAS": "matmul", "NumPy": "exp"}  # where else nothing was measured
pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def measured():
    """The ops whose bits changed, and their calls, by what had changed: "" for nothing but the time."""
    switched_off = " ".join(feature for feature in __cpu_dispatch__ if __cpu_features__[feature])
    usual, kernels, loops = bits_of_ops.elsewhere(
        {}, {"OPENBLAS_CORETYPE": "Nehalem"}, {"NPY_DISABLE_CPU_FEATURES": switched_off}
    )
    found = {"BLAS": bits_of_ops.differing(usual, kernels), "NumPy": bits_of_ops.differing(usual, loops)}
    with bits_of_ops.blas_threads(1) if threads._set else contextlib.nullcontext():
        one = bits_of_ops.run()
    with bits_of_ops.blas_threads(2) if threads._set else contextlib.nullcontext():
        two, again = bits_of_ops.run(), bits_of_ops.run()
    found["threads"], found[""] = bits_of_ops.differing(one, two), bits_of_ops.differing(two, again)
    found["ran"] = {(op, name) for name, ran in one.items() for op, *_ in ran}
    return found


@pytest.mark.parametrize("changed", ["", "threads", "BLAS", "NumPy"])
def test_on_a_cpu_bits_depend_on_nothing_that_is_not_declared(measured, changed):
    may = {changed} if changed else RUNS
    assert sorted((op, call) for op, call in measured[changed] if not {*depends(OPS[op], 0)} & may) == []
    if changed and threads._set and __cpu_features__["AVX2"]:  # the OpenBLAS of NumPy's wheels, on x86-64
        assert SHOWN[changed] in {OPS[op].name for op, _ in measured[changed]}


def test_every_op_is_declared_and_called(measured):
    assert {kind.name for op in OPS.values() for kind in (op.kind, op.gradient) if kind} <= KINDS.keys()
    assert {*" ".join([EXACT, *MORE]).split()} <= {name for op in OPS.values() for name in names(op)}
    called = {op for op, _ in measured["ran"]}
    assert {op.__qualname__ for name, op in OPS.items() if name not in called} == NOT_CALLED
