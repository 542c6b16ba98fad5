"""How a loss scaler is saved, copied and pickled. Its part in a training step is in scaler.py."""

from __future__ import annotations

from typing import Any, ClassVar

from ..arguments import listed, loss_scale, same_keys, whole


class SavedScaler:
    """A loss scaler without its step: see `LossScaler`, which adds that."""

    saved: ClassVar[tuple[str, ...]] = ()  # the counts of the state that a subclass adds to the state_dict
    _name = property(lambda self: type(self).__name__)

    def state_dict(self: Any) -> dict[str, Any]:
        """S, the iteration, the history, and the counts behind S: enough to go on after a restart."""
        counts = {name: getattr(self.state, name) for name in self.saved}
        return {"scale": self.state.scale, "iteration": self.iteration, **counts, "history": [*self.history]}

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` of the same class returned, and begin a new iteration.

        TypeError and ValueError, which name the entry, if keys differ or a value cannot be; then nothing changes.
        """
        where = f"{self._name}.load_state_dict"
        same_keys(where, "state_dict", state_dict, {"scale", "iteration", *self.saved, "history"})
        scale = loss_scale(where, "scale", state_dict["scale"], self.rule.least, self.rule.most)
        iteration = whole(where, "iteration", state_dict["iteration"])
        counts = {name: whole(where, name, state_dict[name]) for name in self.saved}
        history = [_change(where, entry) for entry in listed(where, "history", state_dict["history"])]
        self._side.load(type(self.state)(scale, **counts), iteration, history)
        self._now = type(self._now)()

    def __getstate__(self: Any) -> dict[str, Any]:
        """For copies and pickles, which may be made at any time: they begin a new iteration, on the host."""
        return {**vars(self), "_side": self._side.on_host(), "_now": type(self._now)()}


def _change(where: str, entry: Any) -> tuple[int, float, str]:
    """An entry of a saved history, if it can be one."""
    if not isinstance(entry, (list, tuple)) or len(entry) != 3 or not isinstance(entry[2], str):
        raise TypeError(f"{where}: expected `history` to hold (iteration, scale, reason), got {entry!r}")
    return whole(where, "history", entry[0]), loss_scale(where, "history", entry[1]), entry[2]
