"""Packed sequences, as in torch.nn.utils.rnn: the steps of sequences of different lengths without padding. And all
parameters as one vector, as in torch.nn.utils.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import backend, ops
from ...arguments import constant, flag, instance, listed, tensor
from ...autograd import no_grad
from ...ops.more.recurrent import sequence_lengths
from ...parameter import Parameter
from ...tensor import Tensor
from ..recurrent import RecurrentLayer

__all__ = ["PackedSequence", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "parameters_to_vector"]
__all__ += ["vector_to_parameters"]


class PackedSequence(NamedTuple):
    """Sequences of different lengths, from the longest to the shortest, step after step.

    data: (sum of the lengths, ...); batch_sizes: how many sequences have a step t; sorted_indices: which sequence of
    the user's stands where, unsorted_indices the way back, both None where the user's were sorted. int64, on the CPU.
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, device: str) -> PackedSequence:
        """The same with its data on a device."""
        return self._replace(data=self.data.to(device))


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """The steps of a padded batch (T, B, ...), or (B, T, ...) with batch_first, without its padding.

    lengths: B integers in [1, T], as a list, array or Tensor, which the host reads. ValueError where they do not fall
    from one to the next and enforce_sorted is True.
    """
    name = "pack_padded_sequence"
    x = tensor(name, "input", input)
    if x.ndim < 2:
        raise ValueError(f"{name}: expected `input` to be (T, B, ...), got shape {x.shape}")
    x = x.transpose(0, 1) if flag(name, "batch_first", batch_first) else x
    T, B = x.shape[:2]
    steps, order = sequence_lengths(name, lengths, T, B), None
    if flag(name, "enforce_sorted", enforce_sorted):
        if (np.diff(steps) > 0).any():
            remedy = "sort the batch, or pass enforce_sorted=False"
            raise ValueError(f"{name}: expected `lengths` that do not rise, got {steps.tolist()}; {remedy}")
    else:
        order = np.argsort(-steps, kind="stable")
    return _packed(x, steps, order)


def _packed(x: Tensor, steps: np.ndarray, order: np.ndarray | None) -> PackedSequence:
    """x (T, B, ...) packed, with its sequences in this order."""
    places = np.arange(len(steps)) if order is None else order
    alive = np.arange(steps.max(initial=0))[:, None] < steps[places]  # T, B
    t, b = np.nonzero(alive)
    data = x[_index(x, t), _index(x, places[b])]
    back = None if order is None else Tensor(np.argsort(order))
    return PackedSequence(data, Tensor(np.count_nonzero(alive, 1)), None if order is None else Tensor(order), back)


def _index(x: Tensor, numbers: np.ndarray) -> Tensor:
    return Tensor(backend.of(x.array).asarray(numbers))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """(the padded batch (T, B, ...), or with batch_first (B, T, ...); the lengths, int64), in the user's order.

    T is the longest length, or total_length: ValueError where that is shorter. Behind a sequence stands padding_value,
    and no gradient comes from there.
    """
    name = "pad_packed_sequence"
    data, sizes, _, back = instance(name, "sequence", sequence, PackedSequence)
    padding_value = constant(name, "padding_value", padding_value, data.dtype)
    batch_sizes = sizes.numpy()
    longest, B = len(batch_sizes), int(batch_sizes[0])
    T = longest if total_length is None else total_length
    if longest > T:
        raise ValueError(f"{name}: expected `total_length` to be at least {longest}, the longest sequence, got {T}")
    alive = np.arange(B) < np.pad(batch_sizes, (0, T - longest))[:, None]  # T, B
    where = np.zeros((T, B), int)
    where[alive] = np.arange(len(data))
    lengths = np.count_nonzero(alive, 0)
    if back is not None:
        alive, where, lengths = alive[:, back.numpy()], where[:, back.numpy()], lengths[back.numpy()]
    x = data[_index(data, where)]
    mask = _index(data, alive.reshape(T, B, *(1,) * (x.ndim - 2)))
    x = ops.where(mask, x, ops.full((), padding_value, dtype=x.dtype, device=x.device))
    return x.transpose(0, 1) if flag(name, "batch_first", batch_first) else x, Tensor(lengths)


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Tensors (T_b, ...) packed. Gradients flow to each, unlike through `data.pad_sequence`."""
    given = [tensor("pack_sequence", "sequences", x) for x in listed("pack_sequence", "sequences", sequences)]
    if not given or any(x.ndim == 0 or x.shape[1:] != given[0].shape[1:] or not len(x) for x in given):
        raise ValueError(
            "pack_sequence: expected at least one sequence, none empty, which differ in their first axis alone, got "
            f"shapes {[x.shape for x in given]}"
        )
    lengths = [len(x) for x in given]
    padded = [ops.pad(x, (0, 0) * (x.ndim - 1) + (0, max(lengths) - len(x))) for x in given]
    return pack_padded_sequence(ops.stack(padded, 1), lengths, False, enforce_sorted)


def run_packed(
    layer: RecurrentLayer, packed: PackedSequence, states: tuple, sizes: tuple, lengths: Any
) -> tuple[PackedSequence, tuple]:
    """`RecurrentLayer.run`: packed outputs, and states in the user's order. The lengths are those of `packed`."""
    x, own = pad_packed_sequence(packed, layer.batch_first)
    y, after = layer.run(x, states, sizes, own)
    y, order = y.transpose(0, 1) if layer.batch_first else y, packed.sorted_indices
    return _packed(y, own.numpy(), None if order is None else order.numpy()), after


def parameters_to_vector(parameters: Iterable[Parameter]) -> Tensor:
    """Their working copies one after the other, (sum of their sizes,), in the graph. Masters are not in it."""
    return ops.cat([p.reshape(-1) for p in listed("parameters_to_vector", "parameters", parameters)])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Parameter]) -> None:
    """Write parts of vec into the parameters, in their order: into masters, and rounded into working copies.

    ValueError unless vec has as many elements as all of them.
    """
    name = "vector_to_parameters"
    params, flat = listed(name, "parameters", parameters), tensor(name, "vec", vec)
    total = sum(p.array.size for p in params)
    if flat.shape != (total,):
        raise ValueError(f"{name}: expected `vec` of shape ({total},), got {flat.shape}")
    start = 0
    with no_grad():
        for p in params:
            p.copy_(flat[start : start + p.array.size].reshape(p.shape))
            start += p.array.size
