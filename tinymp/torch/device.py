"""torch.device: the name of a device, with PyTorch's "cuda" for tinymp's "gpu"."""

from __future__ import annotations

import re
from typing import Any

from .. import backend

_NAME = re.compile(r"(cpu|cuda|gpu)(?::(\d+))?")


class device(str):
    """A device, by PyTorch's name ("cpu", "cuda", "cuda:0", 0); wherever tinymp takes a name it is "cpu" or "gpu".
    type: "cpu" or "cuda"; index: 0 for "cuda:0", else None. ValueError for another index. As a context, new tensors lie
    on it.
    """

    type: str
    index: int | None  # type: ignore[assignment]  # str has a method of this name
    _entered: list[Any]

    def __new__(cls, type: Any, index: int | None = None) -> device:
        if isinstance(type, device):
            return type
        found = _NAME.fullmatch(f"cuda:{type}" if isinstance(type, int) else str(type))
        if found is None or (found[2] or index) not in (None, "0", 0):
            raise ValueError(f"device: expected 'cpu', 'cuda' or 'cuda:0', got {type!r}; tinymp uses one GPU")
        self = super().__new__(cls, "cpu" if found[1] == "cpu" else "gpu")
        self.type = "cpu" if found[1] == "cpu" else "cuda"
        self.index = 0 if found[2] or index == 0 else None
        return self

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return f"device(type={self.type!r}" + (f", index={self.index})" if self.index is not None else ")")

    def __reduce__(self) -> Any:
        return device, (str(self),)

    def __enter__(self) -> device:
        vars(self).setdefault("_entered", []).append(backend.device(self + ""))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


def install() -> None:
    """Have Tensor.device give such names, and all of tinymp take PyTorch's."""
    backend.cpu.name, backend.gpu.name = device("cpu"), device("cuda")
    for name in ("cuda", "cuda:0"):
        backend.add(name, lambda: backend.get("gpu"))
