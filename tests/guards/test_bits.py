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
    "mnist FP32": "loss 1.0957, scale 2^0; losses 7a367807e71a, weights 99942098b30e, buffers 2b0bbe56ff83",
    "mnist MIXED": "loss 0.9533, scale 2^17; losses 2219fd7973c8, weights 3a551f84aa48, buffers e13c7b8c5302",
    "lstm FP32": "loss 5.9651, scale 2^0; losses 14844380f623, weights d6337e170b86, buffers e3b0c44298fc",
    "lstm MIXED": "loss 6.0381, scale 2^21; losses 61763997b590, weights 48cb9ebe6a8a, buffers e3b0c44298fc",
    "dcgan FP32": "loss 2.2858, scale 2^0; losses b5faa66c55c1, weights 36a279fa1ee7, buffers ad8b12af4889",
    "dcgan MIXED": "loss 2.1929, scale 2^17; losses 7fc57fd327fd, weights 52ef8375cbd8, buffers b1360b7f98d1",
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
    [
        ([], BITS),
        (["--without", "numkong", "readme"], ["readme"]),
        (["--definitions", "readme", "lstm"], ["readme", "lstm"]),
    ],
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


def test_that_numpy_is_installed_where_all_tests_run():
    for path, line in (("constraints.txt", rf"^numpy=={NUMPY}( |$)"), (".ci/run", rf"'numpy=={NUMPY}'")):
        assert re.search(line, (ROOT / path).read_text(encoding="utf-8"), re.M)
