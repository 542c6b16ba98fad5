"""Files that take long to make (compiled kernels, what a browser says of a report), kept by what they depend on.

They lie in a folder of the user, so that a fresh checkout finds them: tinymp-tests in XDG_CACHE_HOME, or in ~/.cache.
What was not used for a month goes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable

MONTH = 30 * 86400  # seconds


@functools.cache
def folder() -> pathlib.Path:
    """Where files are kept; a folder of this process where the user's cannot be written."""
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    found = pathlib.Path(home) / "tinymp-tests"
    try:
        found.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=found).close()
    except OSError:
        return pathlib.Path(tempfile.mkdtemp(prefix="tinymp-tests-"))
    for path in found.iterdir():
        if path.is_file() and path.stat().st_mtime < time.time() - MONTH:
            path.unlink(missing_ok=True)
    return found


def kept(name: str, on: Iterable[str], make: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """The file that `make` writes to the path that it is given; made once for all that it depends `on`.

    Several processes may do this at the same time: a file appears whole.
    """
    key = hashlib.sha256("\0".join(on).encode()).hexdigest()[:24]
    stem, dot, end = name.partition(".")
    target = folder() / f"{stem}-{key}{dot}{end}"
    try:
        os.utime(target)
    except FileNotFoundError:
        with tempfile.TemporaryDirectory(dir=folder()) as own:
            make(made := pathlib.Path(own) / name)
            os.replace(made, target)
    return target
