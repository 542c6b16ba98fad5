"""mp.info()."""

import subprocess
import sys

import tinymp as mp


def test_info():
    info = mp.info()
    assert info["tinymp"] == mp.__version__
    assert all(isinstance(value, str) for value in info.values())
    assert str(info).split()[:2] == ["tinymp", mp.__version__]


def test_memory_is_retuned_for_the_process_only_on_request():
    code = """
import tinymp as mp
print(mp.info()["freed memory"])
mp.backend.cpu.keep_freed_memory()
print(mp.info()["freed memory"])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = run.stdout.splitlines()
    assert before == "returned to the system"
    assert after in (before, "kept for reuse")  # the latter with glibc
