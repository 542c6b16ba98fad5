"""The tests of CUDA's fast paths, test_cuda_*.py and test_order.py, use them; all others run what users run."""

import pytest


@pytest.fixture(autouse=True)
def _fast_paths(request):
    if request.path.name.startswith(("test_cuda_", "test_order")):
        request.getfixturevalue("fast_cuda")
