"""Where no thread and no process can be started, NumKong is absent and there is one core, as in a browser."""

import os
import subprocess
import sys

import pytest

import sizes

WITHOUT = """
import os, subprocess, sys, threading

def refuse(*args, **options):
    raise OSError(138, "this system does not support processes")

def no_thread(*args, **options):
    raise RuntimeError("can't start new thread")

class NoNumKong:
    def find_spec(self, name, path=None, target=None):
        if name == "numkong":
            raise ModuleNotFoundError("No module named 'numkong'", name="numkong")

threading.Thread.start, subprocess.Popen.__init__, os.fork, os.cpu_count = no_thread, refuse, refuse, lambda: 1
sys.meta_path.insert(0, NoNumKong())
"""
LOOP = "import re; exec(re.findall('```python\\n(.*?)```', open('README.md', encoding='utf-8').read(), re.S)[0])"
COMMANDS = {
    "README's loop": ["-c", LOOP],
    "info": ["-m", "tinymp", "info"],
    "explain": ["-m", "tinymp", "explain", "softmax"],
    "audit": ["-m", "tinymp", "audit", "--out", "OUT", "examples/cnn.py", "--steps", "3", "--out", "OUT"],
    "cnn": ["-m", "examples.cnn", "--steps", "3", "--out", "OUT"],
    "lstm": ["-m", "examples.lstm", "--steps", "2", "--data", "docs/audit.md", "--out", "OUT"],
    "lesson 1": ["course/01_numbers.py"],
}


@pytest.mark.cpu
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_it_runs(tmp_path, command):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    path = os.pathsep.join([str(tmp_path), str(sizes.ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    arguments = [str(tmp_path / "out") if part == "OUT" else part for part in command]
    done = subprocess.run([sys.executable, *arguments], cwd=sizes.ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
