"""What a MemoryError says: what ran, what it asked for, who holds the memory now, and what would help.

NumPy and CuPy say how much could not be had. The rest is looked for when it has happened, and costs nothing before: the
objects that live in the process are known by what their classes define, for this module lies below them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from . import backend
from .dtypes import float32
from .events import Update, here
from .grad_mode import is_grad_enabled

# {what only its class defines: what an object is}
MARKS = {"master_nbytes": "parameter", "grad_scale": "tensor", "run_backward": "op", "state_dtype": "optimizer"}
ROLES = ("weights", "masters", "gradients", "optimizer state", "activations kept for backward", "other tensors")


def explain(error: Exception, what: Any = None, arguments: Iterable[Any] = (), ways: Iterable[str] = ()) -> None:
    """Raise a MemoryError that explains `error`, if that says that a memory is full and is not explained already.

    what       that which ran: an Op, an Update or text; by default what runs in this thread
    arguments  the arrays that it was given
    ways       what would help, by default what does for an op and for an Update
    """
    what = here.running if what is None else what
    if type(error) is MemoryError and error.__cause__ is not None and _is_full(error.__cause__):
        return  # explained already
    if not _is_full(error):
        return
    device: backend.Device = backend.gpu if backend.gpu.is_out_of_memory(error) else backend.cpu
    full = "the memory is full" if device is backend.cpu else "the GPU's memory is full"
    text = f"{_name(what)}: {full} ({str(error) or 'how much was asked for is not known'})"
    try:
        given = [f"{x.dtype} {x.shape}" for x in (getattr(x, "values", x) for x in arguments) if hasattr(x, "shape")]
        sizes, free = held(device), device.free_memory()
        text += f", given {', '.join(given)}" if given else ""
        text += f"; {', or '.join(ways or _ways(what, sizes))}. "
        text += f"Held now: {', '.join(f'{role} {amount(n)}' for role, n in sizes.items())}; free, as the system says: "
        text += "not known" if free is None else amount(free)
    except MemoryError:
        pass  # then there is not even enough for that
    raise MemoryError(text) from error


def _is_full(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or backend.gpu.is_out_of_memory(error)


@contextmanager
def explained(what: Any = None, *ways: str) -> Iterator[None]:
    """Within the block, or the function that it decorates, a memory that is full is explained: see `explain`."""
    try:
        yield
    except Exception as error:
        explain(error, what, ways=ways)
        raise


def amount(nbytes: int) -> str:
    """Bytes as text."""
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.2f} MiB"


def held(device: backend.Device) -> dict[str, int]:
    """{role: bytes} of the arrays on a device that tensors, graphs and optimizers hold, each array in its first role.

    What an op works with besides its arguments and results is in none of them, nor are arrays that no tensor holds.
    """
    found: dict[str, list] = {what: [] for what in MARKS.values()}
    kinds: dict[type, str | None] = {}
    for x in gc.get_objects():
        if type(x) not in kinds:
            defined = {name for base in type(x).__mro__ for name in vars(base)}
            kinds[type(x)] = next((what for mark, what in MARKS.items() if mark in defined), None)
        if kind := kinds[type(x)]:
            found[kind].append(x)
    parameters, tensors = found["parameter"], found["parameter"] + found["tensor"]
    states = [state for o in found["optimizer"] for state in getattr(o, "state", {}).values()]
    by_role: tuple[Iterable[Any], ...] = (
        (getattr(p, "array", None) for p in parameters),
        (p.master for p in parameters if hasattr(p, "policy") and p.master_nbytes),
        (getattr(t, "grad_array", None) for t in tensors),
        (x for state in states for name, x in state.items() if name != "step"),
        kept_by(found["op"]).values(),
        (getattr(t, "array", None) for t in tensors),
    )
    seen: set[int] = set()
    sizes = dict.fromkeys(ROLES, 0)
    for role, arrays in zip(ROLES, by_role, strict=True):
        for x in (getattr(x, "values", x) for x in arrays):
            if hasattr(x, "nbytes") and backend.of(x) is device:
                owner = backend.owner_of(x)
                sizes[role] += 0 if id(owner) in seen else owner.nbytes
                seen.add(id(owner))
    return sizes


def kept_by(ops: Iterable[Any]) -> dict[int, Any]:
    """{owner's id: array} of the arrays that ops keep until backward, activations and statistics: one per memory block.

    Leaves that require gradients (weights) are left out, and so are ops whose backward has run.
    """
    kept: dict[int, Any] = {}
    leaves: set[int] = set()
    for op in ops:
        if op.saved is None:
            continue
        leaves |= {id(backend.owner_of(edge.array)) for edge in op.edges if hasattr(edge, "array")}
        for value in vars(op).values():  # `saved`, `statistics`, and other attributes that forward has set
            for x in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(x, "nbytes") and hasattr(x, "strides"):
                    kept[id(backend.owner_of(x))] = x
    return {owner: x for owner, x in kept.items() if owner not in leaves}


def _name(what: Any) -> str:
    if isinstance(what, Update):
        return f"{type(what.optimizer).__name__}, parameter {what.optimizer.label(what.parameter)} and its state"
    if hasattr(what, "run_backward"):
        return f"{what.name}, backward" if what.phase == "backward" else what.name
    return what if isinstance(what, str) else "backward"


def _ways(what: Any, sizes: dict[str, int]) -> Iterator[str]:
    """What would help."""
    if isinstance(what, Update):
        yield "use a rule that keeps less (per parameter Adam keeps two FP32 arrays, SGD with momentum one, SGD none)"
        yield "a smaller model"
        return
    yield "use a smaller batch"
    if getattr(what, "storage", None) == float32:
        yield "mixed precision (tinymp.MIXED), which halves the activations"
    if getattr(what, "phase", None) == "forward":
        if is_grad_enabled() and sizes["activations kept for backward"]:
            yield "tinymp.no_grad() where no gradient is wanted (evaluation)"
        if sizes["gradients"]:
            yield "optimizer.zero_grad() before the forward pass, which frees the gradients"
