"""Fast paths are found by name, take what their definitions take, and can be switched off."""

import importlib
import pathlib

import pytest

import tinymp as mp
from calls import CALLS
from tinymp import fast_path
from tinymp.gpu import kernels

PACKAGE = pathlib.Path(mp.__file__).parent
HELPERS = {"__init__", "capture", "checks", "columns", "cublas", "elementwise", "kernels", "layout", "philox"}
HELPERS |= {"blas", "machine", "many", "memory", "recording", "row_sums", "rows", "sums", "symbols", "threads"}
FILES = [path for folder in ("fast/cpu", "gpu") for path in PACKAGE.glob(f"{folder}/*.py") if path.stem not in HELPERS]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_file_registers_something_for_a_file_of_its_name(path):
    importlib.import_module(".".join(["tinymp", *path.relative_to(PACKAGE).with_suffix("").parts]))
    registered = [d for d, device in fast_path._found if device == path.parent.name]
    assert any(d.__module__.rpartition(".")[2] == path.stem for d in registered)


@pytest.fixture(scope="module")
def kernels_of_ops():
    """The kernels that belong to a file of ops/; the others are of the device's primitives."""
    ours = [path for path in PACKAGE.glob("gpu/*.cu") if (PACKAGE / "ops" / f"{path.stem}.py").exists()]
    files = [*ours, PACKAGE / "gpu" / "columns.cu"]
    return {name for path in files for name in kernels.signatures(kernels.source(path), "half")}


@pytest.mark.parametrize("name", CALLS)
def test_every_op_runs_without_a_kernel(name, gpu, kernels_of_ops, monkeypatch):
    if not hasattr(gpu.xp, "launched"):
        pytest.skip("only the stand-in tells what was launched")
    monkeypatch.setattr(fast_path, "off", {"forward", "backward", "columns", "fold", "unit", "unit_backward"})
    before = len(gpu.xp.launched)
    with mp.device("gpu"):
        results = CALLS[name]()
        for y in results if isinstance(results, (tuple, list)) else [results]:
            if y.requires_grad:
                y.backward(mp.ones(*y.shape, dtype=y.dtype), retain_graph=True)
    assert len(kernels_of_ops) > 20
    assert not kernels_of_ops & set(gpu.xp.launched[before:])
