"""A MemoryError says what ran, what it asked for, what is held for it, and how to need less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..events import Update
from . import cpu, gpu, owner_of
from .gpu import is_out_of_memory

SMALLER_RULE = "use a rule that keeps less (per parameter Adam keeps two FP32 arrays, SGD with momentum one, SGD none)"


@contextmanager
def explained(what: Any, *ways: str) -> Iterator[None]:
    """Within the block, or the function that it decorates, a memory that is full is explained: see `explain`."""
    try:
        yield
    except Exception as error:
        explain(error, what, ways=ways)
        raise


def explain(error: Exception, what: Any, arguments: Iterable[Any] = (), ways: Iterable[str] = ()) -> None:
    """Raise a MemoryError that explains `error`, if that says that a memory is full and is not explained already.

    what       that which ran: an Op, an Update or text
    arguments  the arrays that it was given
    ways       how to need less, by default what helps an op or an update
    """
    device = gpu if is_out_of_memory(error) else cpu
    if (device is cpu and not isinstance(error, MemoryError)) or error.__cause__ is not None:
        return
    name = getattr(what, "name", what)
    backward = ", backward" if getattr(what, "phase", "") == "backward" else ""
    full = "the memory is full" if device is cpu else "the GPU's memory is full"
    text = f"{name}{backward}: {full} ({str(error) or 'how much was asked for is not known'})"
    try:
        given = ", ".join(f"{x.dtype} {x.shape}" for x in arguments if hasattr(x, "shape"))
        told = f"{', given ' if given else ''}{given}; {', or '.join(ways or _ways(what))}. "
        if hasattr(what, "edges"):
            told += f"Kept for backward in the graph behind it: {_amount(_kept(what))}. "
        text += f"{told}Free, as the system says: {_amount(device.free_memory())}"
    except MemoryError:
        pass  # then there is not even enough for that
    raise MemoryError(text) from error


def _ways(what: Any) -> Iterator[str]:
    """How an op or an update needs less memory."""
    if isinstance(what, Update):
        yield from (SMALLER_RULE, "a smaller model")
        return
    yield "use a smaller batch"
    if getattr(what, "storage", None) == np.float32:
        yield "mixed precision (tinymp.MIXED), which halves the activations"
    if getattr(what, "phase", None) == "forward":
        if what.needs:
            yield "tinymp.no_grad() where no gradient is wanted (evaluation)"
        yield "optimizer.zero_grad() before the forward pass, which frees the gradients"


def _kept(op: Any) -> int:
    """The bytes of the arrays that an op and those behind it keep for backward."""
    arrays = [x for one in behind(op) for x in (*(one.saved or ()), *one.statistics) if hasattr(x, "nbytes")]
    return sum({id(owner): owner.nbytes for owner in map(owner_of, arrays)}.values())


def behind(root: Any) -> set[Any]:
    """All ops that a backward pass from this one reaches, with itself; none behind a leaf (None)."""
    found = set() if root is None else {root}
    waiting = list(found)
    while waiting:
        new = {edge[0] for edge in waiting.pop().edges if isinstance(edge, tuple)} - found
        found |= new
        waiting += new
    return found


def _amount(nbytes: int | None) -> str:
    return "not known" if nbytes is None else f"{nbytes / 2**20:,.2f} MiB"
