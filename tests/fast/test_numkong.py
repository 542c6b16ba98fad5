"""A life without NumKong, or with a broken one: NumPy casts, and mp.info() says so."""

import os
import subprocess
import sys


def test_a_broken_numkong_is_said(tmp_path):
    (tmp_path / "numkong.py").write_text("raise ImportError('libfoo.so: cannot open shared object file')")
    code = "import tinymp as mp; print(mp.info()['FP16 casts'])"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "libfoo.so" in run.stdout
    assert "RuntimeWarning: tinymp: FP16 casts are slow: numkong is installed, but" in run.stderr


def test_without_numkong_numpy_casts_and_info_says_so():
    code = """
import sys
sys.modules["numkong"] = None  # its import fails
import numpy as np, tinymp as mp
x = mp.tensor(np.linspace(0, 70000, 1000, dtype="float32")).half()
assert x.dtype == np.float16 and np.isinf(x.array[-1]), x
print(mp.info()["FP16 casts"])
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert "numkong is not installed" in run.stdout
