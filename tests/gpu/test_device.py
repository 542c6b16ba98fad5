"""The device of CuPy's arrays (backend/gpu.py) asks CuPy for the right things."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import on_device
from tinymp import fast_path, nn
from tinymp.precision import gemm


def test_a_bias_is_no_second_rounding():
    """1 + 2^-11 + 2^-11: rounded to FP16 before the bias is added it would be 1 + 2^-10 less one step."""
    a = on_device(np.array([[1, 2.0**-11]], "float16"))
    b = on_device(np.array([[1], [1]], "float16"))
    assert gemm(a, b, on_device(np.array([2.0**-11], "float16"))).get() == 1 + 2.0**-10


def test_making_a_network_compares_nothing_on_the_gpu(gpu):
    """CuPy compiles a kernel for each operation; a value is checked where it lies, by a maximum and a minimum."""
    if not hasattr(gpu.xp, "foreign"):
        pytest.skip("only the stand-in counts")
    before = len(gpu.xp.foreign)
    with mp.device("gpu"):
        mp.MIXED.cast(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Linear(64, 64)))
    done = {what.partition(" ")[0] for what in gpu.xp.foreign[before:]}
    assert done <= {"__setitem__", "asarray", "astype", "copy", "full_like", "max", "min", "zeros"}, done


def test_labels_are_checked_by_a_minimum(gpu, monkeypatch):
    """CuPy would compile a kernel for `all`. A batch without labels is right."""
    monkeypatch.setattr(fast_path, "off", {"require"})
    good = gpu.xp.ones((2, 3), bool)
    gpu.require(good, ValueError, "no")
    gpu.require(good[:0], ValueError, "no")
    good[1, 2] = False
    with pytest.raises(ValueError, match=r"no, got 5 at index \(1, 2\)"):
        gpu.require(good, ValueError, "no", gpu.xp.arange(6).reshape(2, 3))
