"""What a loss scaler remembers: S, its history, and the counts behind it; on a GPU, what the device knows of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from ..arguments import count, loss_scale, same_keys, whole
from ..events import observe
from .device_scaler import DeviceSide
from .witness import Witness, found_out, nonfinite_loss, too_many_skips, warn_stuck


class ScalerState:
    """S and what is known of it, without the rules: see `LossScaler`, which adds those."""

    saved: ClassVar[dict[str, Callable]] = {}  # what a subclass adds to the state_dict, and how that is checked
    dynamic: tuple | None = None  # (growth, backoff, interval, least, most) where S changes by DynamicLossScaler's rule
    _least, _most = 0.0, math.inf  # between which S stays
    _device: DeviceSide | None = None  # once a loss on a GPU was scaled
    # what belongs to one iteration, or to a GPU: a copy has it not
    _passing: ClassVar[tuple[str, ...]] = (
        "_device",
        "_watching",
        "_witness",
        "_side",
        "_judged",
        "_results",
        "_tried",
        "_skip",
    )

    def __init__(self, scale: float, max_consecutive_skips: int, max_nonfinite_losses: int) -> None:
        self._name = type(self).__name__
        self._scale = loss_scale(self._name, "scale", scale)
        self.max_consecutive_skips = count(self._name, "max_consecutive_skips", max_consecutive_skips)
        self.max_nonfinite_losses = count(self._name, "max_nonfinite_losses", max_nonfinite_losses)
        self._iteration = 0
        self._history: list[tuple[int, float, str]] = []
        self._skips = self._bad_losses = 0  # iterations in a row
        self._stuck = self._said = 0  # overflows since S came to its least; of these, those that a warning has counted
        self._witness: Witness | None = None
        # When the scaler is forgotten in the middle of an iteration, Python closes this and the watching ends.
        self._watching: AbstractContextManager | None = None

    def _begin(self) -> None:
        """Forget what belongs to one iteration."""

    # ---- looking

    @property
    def iteration(self) -> int:
        """How many `update`s there have been."""
        self._pull()
        return self._iteration

    @property
    def history(self) -> list[tuple[int, float, str]]:
        """(iteration, new scale, reason) of every change of S."""
        self._pull()
        return self._history

    def get_scale(self) -> float:
        """The S by which `scale` multiplies now. (On a GPU it waits for the device.)"""
        self._pull()
        return self._scale

    def __repr__(self) -> str:
        scale, changes = self.get_scale(), len(self.history)
        return f"{type(self).__name__}(scale={scale:g}, after {self.iteration} iterations and {changes} changes)"

    # ---- changing

    def change(self, scale: float, reason: str) -> None:
        """Set S, and remember why."""
        if scale != self._scale:
            self._scale, self._stuck = scale, 0
            self._history.append((self._iteration, scale, reason))

    def growth_reason(self) -> str:
        """Why S grew, for the history."""
        return "growth"

    def _ended(self, overflow: str | None, cause: str) -> None:
        """The end of an iteration that was judged on the host."""
        self._iteration += 1
        self._watch(self._near_a_limit(self._skips, self._bad_losses, self._stuck))
        self._say_if_stuck(self._stuck, overflow or "a parameter", cause)

    def _near_a_limit(self, skips: int, bad_losses: int, stuck: int) -> bool:
        """Whether the next iteration is the last chance to see where an infinity arises before there is an error."""
        return skips + 1 >= self.max_consecutive_skips or bad_losses > 0 or self._until_stuck(stuck) <= 1

    def _until_stuck(self, stuck: int) -> float:
        """How many more overflows at the least S it takes to say so (again: each time after twice as many)."""
        self._said = self._said if self._said <= stuck else 0  # S has grown since
        limit = max(self.max_consecutive_skips, 2 * self._said)
        return limit - stuck if stuck and self._least < self._most else math.inf

    def _say_if_stuck(self, stuck: int, overflowed: str, cause: str) -> None:
        """Warn where S sits at its least for good: overflows that do not come in a row reach no other limit."""
        if self._until_stuck(stuck) <= 0:
            self._said = stuck
            warn_stuck(stuck, self._least, overflowed, cause)

    def _watch(self, on: bool) -> None:
        """Have the ops of the next iteration watched, or no longer, for the place where an infinity arises."""
        if self._watching is not None:
            self._watching.__exit__(None, None, None)
        self._witness = Witness() if on else None
        self._watching = observe(self._witness) if self._witness else None
        if self._watching is not None:
            self._watching.__enter__()

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on after a restart: S, the iteration, the history, and the counts behind S."""
        self._pull()
        counts = {name: getattr(self, name) for name in self.saved}
        return {"scale": self._scale, "iteration": self._iteration, **counts, "history": list(self._history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` of the same class returned, and begin a new iteration.

        TypeError and ValueError, which name the entry, if keys differ or a value cannot be; then nothing changes.
        """
        where = f"{self._name}.load_state_dict"
        same_keys(where, "state_dict", state_dict, self.state_dict())
        scale = loss_scale(where, "scale", state_dict["scale"], self._least)
        if scale > self._most:
            raise ValueError(f"{where}: expected `scale` to be at most {self._most:g}, got {scale:g}")
        iteration = whole(where, "iteration", state_dict["iteration"])
        counts = {name: check(where, name, state_dict[name]) for name, check in self.saved.items()}
        history = _history(where, state_dict["history"])
        vars(self).update(counts, _scale=scale, _history=history, _iteration=iteration)  # all at once
        self._skips = self._bad_losses = self._stuck = self._said = 0
        self._begin()
        self._watch(False)
        if self._device is not None:
            self._device.end(None, False)
            self._push()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which may be made at any time: they begin a new iteration."""
        self._pull()
        state = {name: value for name, value in vars(self).items() if name not in self._passing}
        return {**state, "_history": list(self._history)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _watching=None, _witness=None)
        self._begin()

    # ---- on a GPU

    def _on_device(self) -> DeviceSide:
        if self._device is None:
            self._device = DeviceSide(self._scale, self._arrived)
            self._push()
        return self._device

    def _push(self) -> None:
        """Write what the host knows to the device."""
        if self._device is not None:
            tracker = getattr(self, "growth_tracker", 0)
            counts = self._iteration, tracker, self._skips, self._bad_losses, self._stuck, len(self._history)
            self._device.write(self._scale, *counts)

    def _pull(self) -> None:
        """Fetch what the device knows; it waits for the device."""
        if self._device is None:
            return
        for iteration, scale, reason in self._device.changes_since(len(self._history)):
            why = f"overflow in {self._device.label(reason)}" if reason >= 0 else self.growth_reason()
            self._history.append((iteration, scale, why))
        self._scale, self._iteration, tracker, self._skips, self._bad_losses, self._stuck = self._device.read()
        if self.dynamic is not None:
            vars(self)["growth_tracker"] = tracker

    def _arrived(self, skips: int, bad_losses: int, stuck: int, overflowed: str) -> None:
        """The counts of some steps ago: at a limit, raise; just before it, have the ops of the next steps watched."""
        assert self._device is not None
        witness = self._witness
        if bad_losses >= self.max_nonfinite_losses:
            self._device.forget_bad_losses()
            self._watch(False)
            raise nonfinite_loss(
                "not finite", f"at least {bad_losses}", found_out(witness.first_nonfinite if witness else None)
            )
        if skips >= self.max_consecutive_skips:
            self._device.forget_skips()
            self._watch(False)
            raise too_many_skips(f"at least {skips}", "", overflowed, found_out(witness.overflow if witness else None))
        self._say_if_stuck(stuck, overflowed, found_out(witness.overflow if witness else None))
        wanted = self._near_a_limit(skips, bad_losses, stuck)
        if wanted is not (witness is not None):
            self._watch(wanted)


def _history(where: str, saved: Any) -> list[tuple[int, float, str]]:
    """A saved history, if it can be one."""
    if not isinstance(saved, (list, tuple)):
        raise TypeError(f"{where}: expected `history` to be a list, got {type(saved).__name__}")
    for entry in saved:
        if not isinstance(entry, (list, tuple)) or len(entry) != 3 or not isinstance(entry[2], str):
            raise TypeError(f"{where}: expected `history` to hold (iteration, scale, reason), got {entry!r}")
    return [(whole(where, "history", i), loss_scale(where, "history", scale), why) for i, scale, why in saved]
