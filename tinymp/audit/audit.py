"""audit(): what runs in the block is listened to."""

from __future__ import annotations

from typing import Any

from .ledger import Ledger, Rows
from .listener import Instrument, Listener


def audit(*instruments: Instrument) -> Audit:
    """`with mp.audit() as a:` listens to everything that runs in the block, in this thread.

    instruments: further ones of your own (see `Instrument`).
    """
    return Audit(instruments)


class Audit:
    """What an audit found; made by `audit`.

    ledger  every op at every place of its call, and what its roundings lost
    """

    def __init__(self, instruments: tuple[Instrument, ...]) -> None:
        self._ledger = Ledger()
        self._listener = Listener([self._ledger, *instruments])

    def __enter__(self) -> Audit:
        self._listener.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._listener.__exit__(*error)

    @property
    def ledger(self) -> Rows:
        """The ledger's rows."""
        return self._ledger.rows

    def __str__(self) -> str:
        return str(self.ledger)
