"""Programs and notebooks import tinymp before NumPy, which loads OpenBLAS: only then can it be set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinymp.fast.cpu import blas


def test_programs_import_tinymp_before_numpy():
    pytest.importorskip("PIL")
    for package in ("examples.paper.reproduce", "benchmarks.cpu", "tinymp.lab.cli"):  # the first imports all programs
        code = f"import {package}\nfrom tinymp.fast.cpu import blas\nprint(blas.too_late)"
        environment = {n: v for n, v in os.environ.items() if n not in (blas.CORE, blas.TIMEOUT, blas.OFF)}
        environment["PYTHONPATH"] = os.getcwd()
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "False\n", package


def test_notebooks_import_tinymp_first():
    notebooks = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
    assert notebooks
    for path in notebooks:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        assert first.startswith("import tinymp as mp"), path
