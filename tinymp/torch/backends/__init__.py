"""torch.backends: settings of libraries, which change no result here, and whether they are there."""

from __future__ import annotations

import sys as _sys
from types import ModuleType as _ModuleType
from types import SimpleNamespace as _SimpleNamespace
from typing import Any


def _module(name: str, **settings: Any) -> _ModuleType:
    made = _sys.modules[f"{__name__}.{name}"] = _ModuleType(f"{__name__}.{name}")
    vars(made).update(settings)
    return made


_no = {"is_available": lambda: False, "allow_tf32": False}
cudnn = _module("cudnn", enabled=True, benchmark=False, deterministic=True, **_no)
cuda = _module("cuda", matmul=_SimpleNamespace(allow_tf32=False), is_built=lambda: True)
mps = _module("mps", is_available=lambda: False, is_built=lambda: False)
mkldnn = _module("mkldnn", enabled=False, is_available=lambda: False)
