"""Loading: new values for many tensors, all or none."""

from __future__ import annotations

from collections.abc import Sequence

from .. import backend
from ..autograd import Array
from ..events import here, tell
from ..parameter import Parameter
from ..precision import MIXED, store, under
from ..tensor import Tensor


def overwrite(new: Sequence[tuple[Tensor, Array, Array | None]]) -> None:
    """Give parameters (their masters) and buffers new values, all or none: an exception halfway undoes all of it.

    A parameter keeps its arrays, and so does a buffer on a GPU: a captured CUDA graph finds them where they were. Their
    old values are swapped into the arrays that brought the new ones: there is never a third copy of the weights. A
    buffer on the CPU takes the new array: views of the old one keep their values.

    new: tensor, value, and for a parameter its working copy, or None: then that is rounded to nearest.
    """
    weights = [(p, value, rounded) for p, value, rounded in new if isinstance(p, Parameter)]
    others = [(b, value) for b, value, _ in new if not isinstance(b, Parameter)]
    buffers = [(b, value, b.array) for b, value in others if backend.of(b.array) is not backend.gpu]
    pairs: list[tuple[Array, Array]] = []
    for b, value in others:
        if backend.of(b.array) is backend.gpu:
            b.bump_version()
            pairs.append((b.array, value))
    for p, value, rounded in weights:
        if here.inside:
            tell("written", p, value)
        p.bump_version()
        copy = under(MIXED, store, value, like=p.array) if rounded is None else rounded
        pairs += [(p.array, copy)] + ([(p.master, value)] if p.master is not p.array else [])
    swapped = []
    try:
        for p, *_ in weights:
            p.unlock()
        for target, source in pairs:
            value = source.copy()
            source[...] = target  # rounds: never, values already in the array's dtype
            swapped.append((target, source))
            target[...] = value  # rounds: never, values already in the array's dtype
        for b, value, _ in buffers:
            b.array = value
        for p, *_ in weights:
            p.lock()
    except BaseException:
        for p, *_ in weights:
            p.unlock()
        for target, old in reversed(swapped):  # reversed: tied weights come twice
            target[...] = old  # rounds: never, values already in the array's dtype
        for b, _, old in buffers:
            b.array = old
        for p, *_ in weights:
            p.lock()
        raise
