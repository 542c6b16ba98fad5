"""embedding_bag: the sum, mean or maximum of the rows of a table that each bag of indices names."""

from __future__ import annotations

import numpy as np

from ... import backend
from ...arguments import choice, flag, floating, tensor
from ...precision import reduce
from ...tensor import Tensor
from ..embedding import embedding, row
from ..pointwise import div, mul
from ..reduce import sum as total
from ..shape import reshape
from .arithmetic import wide
from .pointwise import masked_fill
from .reduce import max as largest


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    *,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """(B, D): for each bag the "sum", "mean" or "max" of the rows of weight (V, D) that it names; 0 for an empty bag.

    input: (B, N), or one vector of all bags' indices with `offsets` (B,), where each begins (with include_last_offset
    there is one more: the end of the last); the host reads them. per_sample_weights: input's shape, factors for "sum".
    The row padding_idx counts in no bag and gets no gradient. sparse: see `embedding`. Summed in FP32 and rounded once.

    IndexError for an index outside the table; ValueError for other shapes, offsets that fall or do not fit the input,
    and per_sample_weights with another mode.
    """
    op = "embedding_bag"
    choice(op, "mode", mode, ("sum", "mean", "max"))
    sparse = flag(op, "sparse", sparse)
    include_last_offset = flag(op, "include_last_offset", include_last_offset)
    index, factors = tensor(op, "input", input), per_sample_weights
    if index.dtype.kind not in "iu":
        raise TypeError(f"{op}: expected integers for `input`, got {index.dtype}")
    if factors is not None and (floating(op, "per_sample_weights", factors).shape != index.shape or mode != "sum"):
        got = f"{factors.shape} and mode={mode!r}"
        raise ValueError(f'{op}: expected per_sample_weights of shape {index.shape} and mode="sum", got {got}')
    if index.ndim not in (1, 2) or (index.ndim == 2) != (offsets is None):
        got = f"{index.shape} {'without' if offsets is None else 'with'} offsets"
        raise ValueError(f"{op}: expected `input` (B, N) without offsets, or a vector with `offsets`, got {got}")
    xp = backend.of(index.array).xp
    counted = xp.ones(index.shape, bool)
    if offsets is not None:
        places, counted = _places(op, index.numel(), tensor(op, "offsets", offsets), include_last_offset)
        places, counted = xp.asarray(places), xp.asarray(counted)
        index = Tensor(index.array[places])
        factors = None if factors is None else reshape(factors, (-1, 1))[Tensor(places)].squeeze(-1)
    if floating(op, "weight", weight).ndim != 2:
        raise ValueError(f"{op}: expected `weight` to be (rows, D), got shape {weight.shape}")
    padding_idx = row(op, padding_idx, weight.shape[0])
    if padding_idx is not None:
        counted = counted & xp.not_equal(index.array, padding_idx)
    found = embedding(index, weight, padding_idx, sparse=sparse)  # B, N, D
    left_out = Tensor(~counted[:, :, None])
    if mode == "max" and index.shape[1]:
        highest = largest(masked_fill(found, left_out, -float("inf")), 1).values
        return masked_fill(highest, Tensor(~counted.any(axis=1)[:, None]), 0)
    rows = masked_fill(wide(found)[0], left_out, 0)  # rounded on the last line
    if factors is not None:
        rows = mul(rows, masked_fill(reshape(factors.to(rows.dtype), (*factors.shape, 1)), left_out, 0))
    y = total(rows, 1)
    if mode == "mean":
        y = div(y, Tensor(xp.maximum(reduce(counted, 1, "sum"), 1)))
    return y.to(found.dtype)


def _places(op: str, n: int, offsets: Tensor, include_last: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each bag its places in the input (B, N), N the length of the longest, and which of them are its own."""
    starts = backend.to_cpu(offsets.array)
    if starts.dtype.kind not in "iu" or starts.ndim != 1 or (include_last and not len(starts)):
        raise ValueError(f"{op}: expected `offsets` to be a vector of integers, got {starts.dtype} {starts.shape}")
    ends = np.append(starts[1:], starts[-1:] if include_last else n)
    starts, ends = (starts[:-1], ends[:-1]) if include_last else (starts, ends)
    if len(starts) and (starts[0] != 0 or (ends < starts).any() or ends[-1] != n):
        to = f"to {n}" if include_last else f"and not beyond {n}"
        raise ValueError(f"{op}: expected `offsets` to rise from 0 {to}, got {backend.to_cpu(offsets.array)}")
    k = np.arange(max(ends - starts, default=0))
    own = k < (ends - starts)[:, None]
    return np.where(own, starts[:, None] + k, 0), own
