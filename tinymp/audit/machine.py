"""`mp.info()` describes the machine on which a program runs."""

from __future__ import annotations

from platform import platform, python_version

from ..backend import __version__, cpu, gpu
from ..fast_path import enabled


class Info(dict):
    """A dict that prints as a table."""

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{key:<{width}}  {value}" for key, value in self.items())

    __repr__ = __str__


def info() -> Info:
    """Versions and the backend's state as a dict of strings; `print(mp.info())` shows a table."""
    system = {"tinymp": __version__, "python": python_version(), "system": platform(terse=True)}
    return Info(system | {"fast paths": ", ".join(sorted(enabled)) or "none"} | cpu.info() | gpu.info())
