"""mp.info(), and a life without NumKong."""

import subprocess
import sys

import tinymp as mp


def test_info():
    info = mp.info()
    assert info["tinymp"] == mp.__version__
    assert all(isinstance(value, str) for value in info.values())
    assert str(info).split()[:2] == ["tinymp", mp.__version__]


def test_without_numkong_numpy_casts_and_info_says_so():
    code = """
import sys
sys.modules["numkong"] = None  # its import fails
import numpy as np, tinymp as mp
x = mp.tensor(np.linspace(0, 70000, 1000, dtype="float32")).half()
assert x.dtype == np.float16 and np.isinf(x.data[-1]), x
print(mp.info()["FP16 casts"])
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert "numkong is not installed" in run.stdout
