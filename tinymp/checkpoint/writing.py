"""Files that are whole. Every file that tinymp writes is written beside its place, synced, and then takes its name."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room on the disk, in a quota, or for so large a file


@contextmanager
def replacing(path: str | os.PathLike, among: str = "") -> Iterator[Path]:
    """A path, with the same name, for a file that becomes `path` when the block ends without an error.

    Until then, and if the disk is full, the block raises or the process dies, what was there before stays whole. A new
    file has the permissions that are usual, or those of the file that it replaces; a link goes on to point where it
    did. What is a pipe, or a device such as /dev/stdout, stays that, and is given the content when the block ends.
    OSError where nothing can be written.

    It lies in a hidden folder beside `path`, with what those leave there who make the file (safetensors has a temporary
    file of its own). Where a process is killed the folder stays, until `path` is written the next time, or, where names
    change, as those of a loop's checkpoints do, another file with the same word for `among`.
    """
    path = Path(path)
    try:
        streamed = is_stream(path, "the name of a file", stat.S_ISFIFO, stat.S_ISCHR)
    except FileNotFoundError:
        streamed = False
    with room_for(path), _streamed(path) if streamed else _replaced(path, among) as temporary:
        yield temporary


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Within the block an OSError for want of room names the file, and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            what = f"{error.strerror}; make room, or write to another disk"
            raise OSError(error.errno, what, str(path)) from error
        raise


def is_stream(path: Path, expected: str, *kinds: Callable[[int], bool]) -> bool:
    """True if it is a pipe or device, of one of these kinds; else it is a file. OSError for what is neither."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) or any(kind(mode) for kind in kinds):
        return not stat.S_ISREG(mode)
    folder = stat.S_ISDIR(mode)
    got = "a folder" if folder else "a device or socket"
    raise OSError(errno.EISDIR if folder else errno.EINVAL, f"expected {expected}, got {got}", str(path))


@contextmanager
def reading(path: str | os.PathLike) -> Iterator[Path]:
    """A file to read: `path`, or of a pipe what comes through it. OSError, with its name, where there is no file."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "expected a file that is there", str(path))
    if not is_stream(path, "a file", stat.S_ISFIFO):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        with path.open("rb") as stream, (there := Path(folder, path.name)).open("wb") as content:
            shutil.copyfileobj(stream, content)
        yield there


@contextmanager
def _streamed(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield (temporary := Path(folder, path.name))
        with temporary.open("rb") as content, path.open("wb") as stream:
            shutil.copyfileobj(content, stream)


@contextmanager
def _replaced(asked: Path, among: str) -> Iterator[Path]:
    path = asked.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "expected the folder of a new file to be there", str(asked))
    mine = f".{(among or path.name)[:32]}.{_host()}"
    folder = path.with_name(f"{mine}-{os.getpid()}-{threading.get_ident()}.part")
    _remove_what_the_dead_left(path.parent, mine)
    try:
        folder.mkdir(exist_ok=True)
        temporary = folder / path.name
        temporary.touch()
        mode = (path if path.exists() else temporary).stat().st_mode
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync(path.parent)
        shutil.rmtree(folder, ignore_errors=True)  # not in a `finally`, where an interrupt would leave the folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _host() -> str:
    """The name of this machine: on others that share a folder, its numbers of processes mean nothing."""
    return re.sub(r"\W", "-", platform.node())[:32]


def _remove_what_the_dead_left(folder: Path, mine: str) -> None:
    """What processes of this machine that are no more were writing where this one is to write."""
    with suppress(OSError):  # where this cannot be done, it can wait
        for one in folder.iterdir():
            number = re.fullmatch(r"-(\d{1,9})-\d+\.part", one.name[len(mine) :]) if one.name.startswith(mine) else None
            if number and not _alive(int(number[1])):
                shutil.rmtree(one, ignore_errors=True)


def _alive(process: int) -> bool:
    """Whether there is such a process; True where that cannot be told."""
    if os.name == "posix":  # elsewhere signal 0 is no question
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's
            return True
    return True


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
    """Make a folder where it is missing. OSError where files cannot be written to it: better before than after work."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=os.fspath(folder)).close()


def printable(text: str) -> str:
    """`text` without what would act on a terminal or could not be encoded, which is written as in a Python string."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def _sync(folder: Path) -> None:
    """Have the names in a folder written to the disk, where the system can do so."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
