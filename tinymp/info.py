"""mp.info(): what tinymp runs on here."""

from __future__ import annotations

import platform

from . import backend
from .extras import __version__


class Info(dict):
    """A dict that prints as a table."""

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{key:<{width}}  {value}" for key, value in self.items())

    __repr__ = __str__


def info() -> Info:
    """Versions and the backend's state as a dict of strings; `print(mp.info())` shows a table."""
    system = {"tinymp": __version__, "python": platform.python_version(), "system": platform.platform(terse=True)}
    return Info(system | backend.cpu.info() | backend.gpu.info())
