"""The tests of this folder run on a GPU or its stand-in, but for those of the compiler and of CuPy itself."""

import pytest


@pytest.fixture(autouse=True)
def _on_a_gpu(request):
    if not request.path.name.startswith(("test_nvrtc", "test_real_cupy")):
        request.getfixturevalue("gpu")
