"""Batches of items that are loaded one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arguments import listed
from ...dtypes import real
from ...events import type_name
from ...tensor import Tensor
from ..dataset import without_graph

__all__ = ["default_collate"]


def collated(dataset: Any, numbers: np.ndarray, collate_fn: Callable | None) -> Any:
    """The batch of these items, by `default_collate` or collate_fn."""
    places = numbers.tolist()
    items = [item(dataset, i) for i in places]
    return _collate(items, places, "") if collate_fn is None else collate_fn(items)


def item(dataset: Any, i: int) -> Any:
    """dataset[i]; a note tells an error's item."""
    try:
        return dataset[i]
    except Exception as error:
        note = f"DataLoader: raised by item {i} of the {type(dataset).__name__}"
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:  # Python 3.10 has no notes: append to the message
            error.args = (f"{error}\n{note}",)
        raise


def default_collate(batch: list) -> Any:
    """One batch from a list of items of one structure: arrays and Tensors stacked along a new first axis; numbers as a
    Tensor (float: float32, int: int64, bool); strings as a list; tuples, lists and dicts field by field. TypeError or
    ValueError names the first item that differs from item 0.
    """
    batch = listed("default_collate", "batch", batch)
    if not batch:
        raise ValueError("default_collate: expected at least one item, got none")
    return _collate(batch, list(range(len(batch))), "")


def _collate(items: list, numbers: list[int], field: str) -> Any:
    first = items[0]
    _same(items, numbers, field, "type", lambda x: type(x).__name__, TypeError)
    if isinstance(first, dict):
        _same(items, numbers, field, "set of keys", lambda x: sorted(x, key=str))
        return {key: _collate([item[key] for item in items], numbers, f"{field}[{key!r}]") for key in first}
    if isinstance(first, (tuple, list)):
        _same(items, numbers, field, "length", len)
        columns = [_collate(list(column), numbers, f"{field}[{i}]") for i, column in enumerate(zip(*items))]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if isinstance(first, (np.ndarray, np.generic, Tensor)):  # before float: np.float64 is one
        arrays = [real("DataLoader", without_graph("DataLoader", x), x) for x in items]
        _same(arrays, numbers, field, "shape", lambda x: x.shape)
        _same(arrays, numbers, field, "dtype", lambda x: x.dtype, TypeError)
        return Tensor(np.stack(arrays))
    if isinstance(first, (bool, int, float)):
        return Tensor(items)
    if isinstance(first, (str, bytes)):
        return items
    raise TypeError(
        f"DataLoader: expected items{field} to be arrays, Tensors, numbers, strings or tuples and dicts of them, got "
        f"{type_name(first)} at item {numbers[0]}; convert it in the dataset or give collate_fn="
    )


def _same(items: list, numbers: list[int], field: str, what: str, key: Callable, error: type = ValueError) -> None:
    expected = key(items[0])
    for i, item in zip(numbers, items):
        if key(item) != expected:
            raise error(
                f"DataLoader: expected items{field} of one {what} to make a batch, got {expected} at item "
                f"{numbers[0]} and {key(item)} at item {i}; make them equal in the dataset or give collate_fn="
            )
