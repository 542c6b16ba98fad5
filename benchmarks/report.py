"""The table of a benchmark, on the terminal and for its JSON; an error costs a row, not the run."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

UNFINISHED = "it did not end: the process died, hung or was ended here"


class Absent(Exception):
    """A program, library or size of memory that something needs is not here."""


class Report:
    """The table, and the cases behind it. A failure becomes a row as well. save: called after each."""

    def __init__(self, save: Callable[[Report], None] = lambda _: None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.cases: dict[str, list[dict[str, Any]]] = {}
        self._save = save

    @property
    def failed(self) -> bool:
        """True if something could not be measured, or was wrong."""
        every = [*self.rows, *(entry for cases in self.cases.values() for entry in cases)]
        return any(entry.get("error") for entry in every)

    def head(self, section: str) -> None:
        """The heading of a section's table."""
        print(f"\n{section:<70} {'measured':>9} {'':<8} {'PyTorch':>9}  target", flush=True)

    def add(
        self, work: str, value: float, unit: str, target: str = "", peer: float | None = None, error: str | None = None
    ) -> None:
        """One row; target like ">= 0.95" or empty; peer is PyTorch's value in the same unit."""
        reached = None
        if target:
            sign, number = target.split()
            reached = value <= float(number) if sign == "<=" else value >= float(number)
        value_or_null = None if math.isnan(value) else value  # JSON has no nan
        row = {"work": work, "value": value_or_null, "unit": unit, "peer": peer, "target": target, "reached": reached}
        self.rows.append(row | {"error": error})
        beside = "" if peer is None else f"{peer:.4g}"
        mark = {None: "", True: "reached", False: "NOT reached"}[reached]
        print(f"{work:<70} {value:>9.4g} {unit:<8} {beside:>9}  {target:<8} {mark}", flush=True)
        if error:
            print(f"    FAILED: {error}", flush=True)
        self._save(self)

    @contextlib.contextmanager
    def row(self, work: str) -> Iterator[None]:
        """An error within the block becomes a row of its own."""
        try:
            yield
        except Exception as error:  # whatever it is: the other rows shall still be measured
            self.add(work, math.nan, "", error=_in_one_line(error))

    def case(self, group: str, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """One case of a group: what `work` returns, an "error" among it where it found one.

        While it runs it is saved as one that did not end.
        """
        entry: dict[str, Any] = {"case": name, "error": UNFINISHED}
        self.cases.setdefault(group, []).append(entry)
        self._save(self)
        start = time.monotonic()
        try:
            found = work()
            del entry["error"]
            entry |= found
        except Absent as error:
            entry["absent"] = str(error)
            del entry["error"]
        except Exception as error:  # the other cases shall still be measured
            entry["error"] = _in_one_line(error)
        entry["seconds"] = round(time.monotonic() - start, 3)
        if "error" in entry:
            print(f"{group}, {name}: {entry['error']}", flush=True)
        self._save(self)


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
