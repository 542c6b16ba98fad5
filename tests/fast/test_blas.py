"""Settings before NumPy loads OpenBLAS, and their description in mp.info()."""

import os
import subprocess
import sys

import pytest

from tinymp.fast.cpu import blas

AVX512 = " ".join(sorted(blas.NEEDED))


def cpuinfo(vendor="AuthenticAMD", family="26", flags=AVX512):
    """As Linux tells it, of two cores."""
    core = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: x\nflags\t\t: fpu avx2 {flags}\n"
    )
    return f"{core}\n{core}"


@pytest.mark.parametrize(
    ("cpu", "kernels"),
    [
        (cpuinfo(), blas.RIGHT),  # Zen 5
        (cpuinfo(family="25"), None),  # Zen 4: OpenBLAS knows it
        (cpuinfo(flags=""), None),  # switched off, or hidden by a virtual machine
        (cpuinfo("GenuineIntel", "6"), None),
        ("", None),  # another system
    ],
)
def test_kernels(cpu, kernels):
    assert blas.settings(cpu, {}).get(blas.CORE) == kernels


def test_the_users_own_settings_stay():
    assert blas.settings(cpuinfo(), {}) == {blas.TIMEOUT: "20", blas.CORE: blas.RIGHT}
    assert blas.settings(cpuinfo(), {blas.CORE: "Haswell"}) == {blas.TIMEOUT: "20"}
    assert blas.settings(cpuinfo(), {blas.OFF: "0"}) == {}


@pytest.mark.parametrize(
    ("environment", "cure"),
    [
        ({}, "import tinymp before NumPy"),
        ({blas.CORE: "Haswell"}, "OPENBLAS_CORETYPE=Haswell is set in the environment: unset it"),
        ({blas.OFF: "0"}, "TINYMP_BLAS=0 is set: unset it"),
    ],
)
def test_what_lesser_kernels_cost(environment, cure):
    (said,) = blas.complaints("Haswell", cpuinfo(), environment)
    assert said.endswith(cure)
    assert "AVX-512" in said


def test_kernels_that_openblas_should_have_chosen():
    assert blas.complaints("Haswell", cpuinfo(family="25"), {})[0].endswith(
        "set OPENBLAS_CORETYPE=SkylakeX before Python starts"
    )


def test_no_complaint_where_there_is_none(monkeypatch):
    monkeypatch.setattr(blas, "too_late", False)
    assert blas.complaints("SkylakeX", cpuinfo(), {}) == []
    assert blas.complaints("Haswell", cpuinfo(flags=""), {}) == []


def run(code, **environment):
    """Output of a program that runs `code`."""
    clean = {name: value for name, value in os.environ.items() if name not in (blas.CORE, blas.TIMEOUT, blas.OFF)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the settings are known on Linux")
def test_import():
    pytest.importorskip("threadpoolctl")
    seen = "import tinymp as mp, os; print(os.environ.get('OPENBLAS_THREAD_TIMEOUT'), mp.info()['BLAS'])"
    assert run(seen).startswith("None ")  # it was set for NumPy alone
    assert "import tinymp before NumPy" in run(f"import numpy; {seen}")
    assert "Haswell" in run(seen, OPENBLAS_CORETYPE="Haswell") or "openblas" not in run(seen)


@pytest.mark.parametrize(
    ("numkong", "said", "warned"),
    [
        ("raise ModuleNotFoundError(name='numkong')", "numkong is not installed", ""),
        ("raise ImportError('libfoo.so: cannot open')", "libfoo.so", "FP16 casts are slow: numkong is installed, but"),
    ],
)
def test_without_numkong_numpy_casts_and_info_says_so(numkong, said, warned, tmp_path):
    (tmp_path / "numkong.py").write_text(numkong)
    code = "import tinymp as mp; assert mp.tensor([7e4]).half().isinf().item(); print(mp.info()['FP16 casts'])"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert said in done.stdout and warned in done.stderr and bool(done.stderr) == bool(warned)
