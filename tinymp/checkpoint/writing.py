"""Complete files. tinymp writes each file next to its destination, syncs it, and then gives it its name."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room on the disk, in a quota, or for so large a file


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """A path, with the same name, for a file that becomes `path` when the block ends without an error.

    Until then, and if the disk is full, the block raises or the process dies, an existing file stays as it is. A new
    file has the usual permissions, or those of the file that it replaces; a link keeps its target. OSError if nothing
    can be written.

    The temporary file lives in a hidden folder next to `path`, with any temporaries that its writer creates. If the
    process is killed, that folder (.NAME.*.part) stays.
    """
    asked = Path(path)
    path = asked.resolve()
    if path.exists() and not path.is_file():
        number, got = (errno.EISDIR, "a folder") if path.is_dir() else (errno.EINVAL, "a device")  # or a pipe, a socket
        raise OSError(number, f"expected the name of a file, got {got}", str(asked))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "expected the folder of a new file to be there", str(asked))
    folder = path.with_name(f".{path.name[:32]}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with room_for(asked):
            folder.mkdir(exist_ok=True)
            temporary = folder / path.name
            temporary.touch()
            mode = (path if path.exists() else temporary).stat().st_mode
            yield temporary
            temporary.chmod(mode)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            with suppress(OSError):  # a system may not write the names in a folder to the disk
                os.fsync(descriptor := os.open(path.parent, os.O_RDONLY))
                os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)  # not in a `finally`, where an interrupt would leave the folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Within the block an OSError for lack of space names the file and a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(error.errno, f"{error.strerror}; make room, or write to another disk", str(path)) from error


def present(path: str | os.PathLike) -> Path:
    """The path of a file to read. OSError, with its name, if it cannot be opened."""
    open(path, "rb").close()  # Python's errors name the file; those of safetensors do not
    return Path(path)


def write(path: str | os.PathLike, content: str | bytes) -> None:
    """Write a file as a whole; see `replacing`. Text becomes UTF-8, in which a lone surrogate is written as \\udcff."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Write a JSON file as a whole."""
    write(path, json.dumps(content, indent=1) + "\n")


def write_figure(path: str | os.PathLike, figure: Any, dpi: int) -> None:
    """Write a figure of matplotlib as a whole, in the format that the suffix names; PNG without one."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, format=temporary.suffix[1:] or "png")


def check(folder: str | os.PathLike[str]) -> None:
    """Make a missing folder. OSError if files cannot be written to it: better before the work than after it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=os.fspath(folder)).close()


def printable(text: str) -> str:
    """`text` with characters that act on a terminal, or cannot be encoded, written as in a Python string."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
