"""Sequences of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import backend
from ...arguments import constant, flag, listed
from ...tensor import Tensor, array_of
from ..dataset import without_graph


def pad_sequence(sequences: Sequence[Any], batch_first: bool = False, padding_value: float = 0.0) -> Tensor:
    """Arrays or Tensors of shapes (T_b, ...) as one Tensor (max T, B, ...), or with batch_first (B, max T, ...).

    It lies on the GPU if one of the Tensors does. Behind a sequence stands padding_value. TypeError or ValueError where
    dtypes, or shapes after the first axis, differ, and for no sequences at all.
    """
    op = "pad_sequence"
    arrays = [array_of(op, without_graph(op, x)) for x in listed(op, "sequences", sequences)]
    if not arrays:
        raise ValueError(f"{op}: expected at least one sequence, got none")
    first = arrays[0]
    for i, x in enumerate(arrays):
        if not x.ndim or x.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"{op}: expected sequences that differ in their first axis alone, got {first.shape} as "
                f"sequence 0 and {x.shape} as sequence {i}"
            )
        if x.dtype != first.dtype:
            raise TypeError(f"{op}: expected one dtype, got {first.dtype} as sequence 0 and {x.dtype} as {i}")
    padding_value = constant(op, "padding_value", padding_value, first.dtype)
    device = max(map(backend.of, arrays), key=lambda device: device is backend.gpu)  # of the Tensors among arrays
    padded = device.xp.full((max(map(len, arrays)), len(arrays), *first.shape[1:]), padding_value, first.dtype)
    for i, x in enumerate(arrays):
        padded[: len(x), i] = device.asarray(x)
    return Tensor(
        device.xp.ascontiguousarray(padded.swapaxes(0, 1)) if flag(op, "batch_first", batch_first) else padded
    )
