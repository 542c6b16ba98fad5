"""Fast paths are found by name, take what their definitions take, and can be switched off."""

import importlib
import pathlib

import pytest

import tinymp as mp
from tinymp import fast_path

PACKAGE = pathlib.Path(mp.__file__).parent
HELPERS = {"__init__", "capture", "checks", "columns", "cublas", "elementwise", "kernels", "layout", "philox"}
HELPERS |= {"blas", "machine", "many", "memory", "recording", "row_sums", "rows", "sums", "symbols", "threads"}
FILES = [path for folder in ("fast/cpu", "gpu") for path in PACKAGE.glob(f"{folder}/*.py") if path.stem not in HELPERS]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_file_registers_something_for_a_file_of_its_name(path):
    importlib.import_module(".".join(["tinymp", *path.relative_to(PACKAGE).with_suffix("").parts]))
    registered = [d for d, device in fast_path._found if device == path.parent.name]
    assert any(d.__module__.rpartition(".")[2] == path.stem for d in registered)
