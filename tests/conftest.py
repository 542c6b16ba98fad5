"""Which device the tests run on.

    pytest                        everything on the CPU; CUDA kernels run on the CPU, too (tests/cuda_on_cpu)
    pytest --backend gpu          tensors are made on the GPU by default, and CUDA kernels run there
    pytest --backend cuda-on-cpu  as with a GPU, but on the stand-in for one: slow

Tests marked `cpu` make their tensors on the CPU under every backend: they are about NumPy's arrays, or about values
that only the CPU promises.
"""

import os
import pathlib
import sys

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as many processes as cores: their BLAS threads would only fight
sys.path.insert(0, str(pathlib.Path(__file__).parent))  # `from oracle import check`


def pytest_addoption(parser):
    parser.addoption("--backend", choices=("cpu", "gpu", "cuda-on-cpu"), default="cpu", help="device of the tests")


@pytest.fixture
def gpu(request):
    """A GPU: the real one under `--backend gpu`, else its stand-in. Skips, and says why, where there is neither."""
    import tinymp as mp

    device = mp.backend.gpu
    if request.config.getoption("--backend") == "gpu":
        if why := device.problem():
            pytest.skip(f"no GPU: {why}")
        device.require()
        yield device
        device.synchronize()  # raises here what a test left behind
        return
    import cuda_on_cpu

    if why := cuda_on_cpu.problem():
        pytest.skip(f"CUDA kernels cannot run on this CPU: {why}")
    with cuda_on_cpu.installed():
        yield device
        device.synchronize()


@pytest.fixture(autouse=True)
def _default_device(request):
    """Under `--backend gpu` and `cuda-on-cpu`, tensors are made on that device unless a test says otherwise."""
    import tinymp as mp

    if request.config.getoption("--backend") == "cpu" or request.node.get_closest_marker("cpu"):
        yield
        return
    request.getfixturevalue("gpu")
    with mp.device("gpu"):
        yield
