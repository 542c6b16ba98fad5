"""A plugin for pytest: every array on the GPU is an allocation of its own, so that compute-sanitizer sees its ends.

compute-sanitizer python -m pytest -p benchmarks.no_pool --backend gpu tests/gpu
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_pool(gpu: Any) -> Iterator[None]:  # gpu: of tests/conftest.py
    import cupy

    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(None)
    yield
    cupy.cuda.set_allocator(before)
