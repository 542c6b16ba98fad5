"""The contract of bits (docs/precision.md): losses, weights and buffers of four programs are these, to the last bit.

Who changes a line knowingly runs `python -m tests.four_programs`, puts in what it prints, and says why in the commit.
"""

import ast
import os
import platform
import re
import subprocess
import sys

import numpy as np
import pytest

from four_programs import ROOT, environment

pytestmark = pytest.mark.cpu
NUMPY = "2.4.6"  # with the OpenBLAS of its wheels; constraints.txt and .ci/run have it

BITS = {
    "readme FP32": "loss 0.2253, scale 2^0; losses b1d061b3cac9, weights 724e9019e4e8, buffers e3b0c44298fc",
    "readme MIXED": "loss 0.2342, scale 2^19; losses 2a303b6d5438, weights 81afe1c99bc7, buffers e3b0c44298fc",
    "mnist FP32": "loss 1.0957, scale 2^0; losses e93fa56ece18, weights 02a3eaa9b25a, buffers 512131652201",
    "mnist MIXED": "loss 0.9533, scale 2^17; losses b00d7d5081f5, weights adcec13a7a0a, buffers b5e2bd8b3109",
    "lstm FP32": "loss 5.9651, scale 2^0; losses 14844380f623, weights 3d49f338927d, buffers e3b0c44298fc",
    "lstm MIXED": "loss 6.0381, scale 2^21; losses 3a4d425c9cd3, weights 636badc8dfb2, buffers e3b0c44298fc",
    "dcgan FP32": "loss 2.2858, scale 2^0; losses c689a422d0e0, weights 0bf4211fcb15, buffers e301b6bb2e72",
    "dcgan MIXED": "loss 2.1929, scale 2^17; losses da3e9bdc259d, weights 222da7eb43c4, buffers 281fca0dac84",
}  # fmt: skip


def other_machine():
    """The reason why this machine may compute other bits, or None."""
    from numpy._core._multiarray_umath import __cpu_features__

    if np.__version__ != NUMPY:
        return f"the bits are those of NumPy {NUMPY}, and {np.__version__} is installed: pip install numpy=={NUMPY}"
    if np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"] != "scipy-openblas":
        return f"the bits are those of the OpenBLAS in NumPy's wheels: pip install numpy=={NUMPY}"
    if (sys.platform, platform.machine()) != ("linux", "x86_64") or not __cpu_features__["AVX2"]:
        return "the bits are those of Linux on an x86-64 CPU with AVX2"
    return None


# The sums of a convolution have another order in its fast path: tests/fast/test_cpu_conv.py holds them to bounds.
@pytest.mark.parametrize(
    ("options", "names"),
    [([], BITS), (["--without", "numkong"], BITS), (["--definitions", "readme", "lstm"], ("readme", "lstm"))],
    ids=["with NumKong", "without NumKong", "definitions"],
)
def test_losses_weights_and_buffers_are_those_of_before(options, names):
    if why := other_machine():
        pytest.skip(why)
    if not options:
        pytest.importorskip("numkong")
    done = subprocess.run(
        [sys.executable, "-m", "tests.four_programs", "--here", *options],
        cwd=ROOT,
        env=os.environ | environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = {name: line for name, line in BITS.items() if name.startswith(tuple(names))}
    assert ast.literal_eval("{" + done.stdout + "}") == expected


@pytest.mark.parametrize(
    ("path", "line"), [("constraints.txt", rf"^numpy=={NUMPY}( |$)"), (".ci/run", rf"'numpy=={NUMPY}'")]
)
def test_that_numpy_is_installed_where_all_tests_run(path, line):
    assert re.search(line, (ROOT / path).read_text(encoding="utf-8"), re.M)
