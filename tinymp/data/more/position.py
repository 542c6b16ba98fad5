"""Where the loop over a DataLoader is, so that another can go on there."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from ...arguments import listed, same_keys, whole
from ..dataset import item_numbers
from ..loader import DataLoader


def position(loader: DataLoader) -> dict[str, Any]:
    """The loader's `state_dict`."""
    left, sampler = loader.left, _drawn(loader)
    return {
        "epoch": loader.epoch - (left is not None and not loader.resumes),
        "left": None if left is None else np.concatenate([np.zeros(0, int), *left]),
        "sizes": None if left is None else np.array([*map(len, left)], int),
        "items": len(loader.dataset),
        "generator": None if loader.generator is None else loader.generator.bit_generator.state,
        "sampler": sampler.state_dict() if sampler is not None else None,
    }


def go_to(loader: DataLoader, state_dict: dict[str, Any]) -> None:
    """The loader's `load_state_dict`."""
    where, sampler, n = "DataLoader.load_state_dict", _drawn(loader), len(loader.dataset)
    same_keys(where, "state_dict", state_dict, position(loader))
    if whole(where, "items", state_dict["items"]) != n:
        raise ValueError(f"{where}: expected the state of a loader of {n} items, got {state_dict['items']}")
    epoch, left = whole(where, "epoch", state_dict["epoch"]), state_dict["left"]
    if left is not None:
        left, sizes = item_numbers(where, "left", left, n), listed(where, "sizes", state_dict["sizes"])
        ends = [*accumulate(whole(where, "sizes", size) for size in sizes)]
        if [0, *ends][-1] != len(left):
            raise ValueError(f"{where}: expected `sizes` of {len(left)} items together, got {[0, *ends][-1]}")
        left = np.split(left, ends[:-1]) if ends else []
    for name, own in (("generator", loader.generator), ("sampler", sampler)):
        if (own is None) != (state_dict[name] is None):
            needs, got = ("None", "a state") if own is None else ("its state", "None")
            raise ValueError(
                f"{where}: expected `{name}` to be {needs}, got {got}: seed the order as it was, or not at all"
            )
    if loader.generator is not None:
        kind = type(loader.generator.bit_generator)
        try:
            kind().state = state_dict["generator"]
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{where}: expected `generator` to be the state of a {kind.__name__}: {error}") from None
    if sampler is not None:
        sampler.load_state_dict(state_dict["sampler"])
    if loader.generator is not None:
        loader.generator.bit_generator.state = state_dict["generator"]
    loader.epoch, loader.left, loader.resumes = epoch, left, left is not None


def _drawn(loader: DataLoader) -> Any:
    """The (batch) sampler, if it has a state."""
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return sampler if hasattr(sampler, "state_dict") else None
