"""torch.backends: settings of libraries, which change no result here, and whether they are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def _space(**settings: Any) -> SimpleNamespace:
    return SimpleNamespace(**settings)


cudnn = _space(enabled=True, benchmark=False, deterministic=True, allow_tf32=False, is_available=lambda: False)
cuda = _space(matmul=_space(allow_tf32=False), is_built=lambda: True)
mps = _space(is_available=lambda: False, is_built=lambda: False)
mkldnn = _space(enabled=False, is_available=lambda: False)
