"""`import tinymp` loads the core at once, and each other public name when it is first used."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tinymp as mp
from tinymp.fast.cpu import blas

pytestmark = pytest.mark.cpu
HELD = mp._HELD


def run(code):
    """Output of a new process that has imported tinymp."""
    done = subprocess.run([sys.executable, "-c", f"import tinymp as mp\n{code}"], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", HELD)
def test_each_name_of_the_table_is_there_and_the_same_each_time(name):
    owner, _, short = f"tinymp.{name}".rpartition(".")
    owner = importlib.import_module(owner)
    assert short in dir(owner)
    assert getattr(owner, short) is getattr(owner, short)
    exec(f"from {owner.__name__} import {short}")


def test_import_brings_the_core_alone():
    code = "import sys; print(*[m.removeprefix('tinymp.') for m in sys.modules if m.startswith('tinymp.')])"
    elsewhere = {path.rpartition(".")[0] or path for path in HELD.values()} - {"ops"}  # mp.eye is ops.eye
    assert not elsewhere & set(run(code))


def test_the_audit_is_a_function_and_a_package():
    code = """
for again in range(2):
    with mp.audit() as a:
        mp.ops.exp(mp.ones(1))
    print(len(a.ledger))
    from tinymp.audit import Instrument
    import tinymp.audit
    assert tinymp.audit is mp.audit and mp.audit.Instrument is Instrument
"""
    assert run(code) == ["1", "1"]
    with pytest.raises(ValueError, match=r"^audit: expected "):
        mp.audit(every=0)


WITHOUT = {  # what is written, and how the error begins
    "mp.audit()": "AttributeError: tinymp.audit is not installed here: expected a folder",
    "mp.saved_nbytes": "AttributeError: tinymp.saved_nbytes is not installed here: expected a folder",
    "from tinymp import parallel": "ImportError: cannot import name 'parallel'",
    "mp.device('meta').__enter__()": "RuntimeError: device 'meta' is not installed here: expected a folder",
    "mp.data.DataLoader([1, 2], num_workers=1)": "AttributeError: tinymp.data.loader.LoadingThreads is not installed h",
    "mp.autocast": "AttributeError: tinymp has no attribute 'autocast'",
    "mp.tensr": "AttributeError: tinymp has no attribute 'tensr'; did you mean tensor",
    "mp.tensor([1.0]).exp_": "AttributeError: 'Tensor' object has no attribute 'exp_'",
}


def test_names_without_their_subpackage_say_so(tmp_path):
    less = shutil.ignore_patterns("__pycache__", "audit", "parallel", "sparse", "torch", "more")
    shutil.copytree(Path(mp.__file__).parent, tmp_path / "tinymp", ignore=less)
    code = f"""
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
import tinymp as mp
for use in {list(WITHOUT)}:
    try:
        exec(use)
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}".replace("\\n", " "))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    for line, error in zip(done.stdout.splitlines(), WITHOUT.values(), strict=True):
        assert line.startswith(error)


def test_programs_import_tinymp_before_numpy_and_so_do_notebooks():
    """NumPy loads OpenBLAS: only before that can it be set."""
    pytest.importorskip("PIL")
    for package in ("examples.paper.reproduce", "benchmarks.cpu", "tinymp.lab.cli"):  # the first imports all programs
        code = f"import {package}\nfrom tinymp.fast.cpu import blas\nprint(blas.too_late)"
        own = {n: v for n, v in os.environ.items() if n not in (blas.CORE, blas.TIMEOUT, blas.OFF)}
        own["PYTHONPATH"] = os.getcwd()
        done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
        assert done.stdout == "False\n", package
    for path in (Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        assert first.startswith("import tinymp as mp"), path
