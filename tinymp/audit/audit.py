"""audit(): observe everything that runs in a block, and ask about it afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakMethod

from ..arguments import flag, named
from ..checkpoint.writing import write
from .advice import Advice, advise
from .bytes import ByteLedger
from .crash import Crash
from .formats import Formats
from .found import Found
from .histograms import Exponents
from .ledger import BRIEF, LOST, WORST, Ledger, Rows, jsonable
from .listener import Instrument, Listener
from .machine import info
from .patterns import Patterns
from .pictures import figure
from .products import Products
from .report import page
from .sampling import Told
from .scales import Scales
from .shadow import Shadow
from .summary import nothing, sentences
from .trace import Trace
from .updates import LostUpdates


@named
def audit(
    *instruments: Instrument,
    shadow: bool = False,
    formats: Sequence[str] = (),
    every: int = 1,
    stop_at: str | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Audit:
    """`with mp.audit() as a:` listens to everything that runs in the block, in this thread.

    instruments   further ones of your own (see `Instrument`)
    shadow        also run every op again in FP32, for its error; about three further steps per step
    formats       also round to these what is rounded: "bf16", "e4m3-tensor", "mxfp8", ... (see `Formats`)
    every         listen to one step of each optimizer in so many, for long runs; all are counted
    trace         a folder for a mark of every tensor, which `tinymp diff` compares with another run's (see `Trace`)
    stop_at       "nan" or "inf": FloatingPointError at the first op that makes one from arguments without

    The audit ends with the block. RuntimeError for an audit within an audit; ValueError for an unknown format or
    `stop_at` and an `every` below 1; OSError where the trace cannot be written.
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"audit: expected every to be a positive integer, got {every!r}")
    if isinstance(formats, str) or not isinstance(formats, Sequence):
        raise TypeError(f"audit: expected formats to be a list of names such as 'bf16', got {formats!r}")
    if trace is not None and (not isinstance(trace, (str, os.PathLike)) or not str(trace)):
        raise TypeError(f"audit: expected trace to be a folder, such as 'runs/a', got {trace!r}")
    shadow = flag("audit", "shadow", shadow)
    return Audit(instruments, shadow, formats, every, stop_at, trace)


class Audit(Told):
    """The findings of an audit, made by `audit`. `print(a)` and notebooks show a summary, `a.report("audit.html")`
    writes all of it, `a.figure("exponents")` draws.

    ledger        every op at every place of its call: dtypes, rule, and what its roundings lost (see `Row`, `Rows`)
    histograms    exponents of weights and gradients per layer, and what a loss scale would save (see `Exponents`)
    updates       the share of weights whose FP16 copy an update does not change (see `LostUpdates`)
    scale         the loss scale, the steps that were skipped, and why (see `Scales`)
    bytes         what the arrays of a step take, by role and dtype (see `ByteLedger`)
    products      the sizes of all matrix products, and which of them Tensor Cores take (see `Products`)
    patterns      what is written by hand, and loses what an op would keep (see `Patterns`)
    crash         when the loss or a weight first stopped being finite (see `Crash`)
    shadow        the error of every op in ulps, local and inherited (see `Shadow`); None unless asked for
    formats       what other formats would have lost (see `Formats`); None unless asked for
    """

    def __init__(self, instruments: tuple, shadow: bool, formats: Any, every: int, stop_at: Any, trace: Any) -> None:
        self.scale, self.updates = Scales(), LostUpdates()
        self.histograms = Exponents(self.scale)
        self.bytes, self.products, self.shadow = ByteLedger(), Products(), Shadow() if shadow else None
        self.patterns, self._ledger = Patterns(), Ledger()
        self.formats = Formats(formats) if formats else None
        self.crash = Crash(self.scale, stop_at)
        self._trace = None if trace is None else Trace(trace, every=every)
        own = [self.crash, self._ledger, self.histograms, self.updates, self.scale, self.bytes, self.products]
        asked = [i for i in (self.shadow, self.formats, self._trace) if i is not None]
        self._listener = Listener([*own, self.patterns, *asked, *instruments], every)
        self._part = f"one step in {every:,}" if every > 1 else ""

    def __enter__(self) -> Audit:
        if self._trace is not None:
            self._trace.open()
        self._listener.__enter__()
        if hasattr(os, "register_at_fork"):
            forked = WeakMethod(self._forked)
            os.register_at_fork(after_in_child=lambda: (end := forked()) and end())
        return self

    def _forked(self) -> None:
        """Stop listening in a process that was forked from this one."""
        self._listener.__exit__()
        if self._trace is not None:
            self._trace.leave()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if isinstance(error, Exception):
                self.crash.keep(f"it ended with {type(error).__name__}: {error}")
        finally:
            self._listener.__exit__(kind, error, trace)
            if self._trace is not None:
                self._trace.close("" if kind is None else kind.__name__)

    @property
    def ledger(self) -> Rows:
        """The ledger's rows, in the order in which their ops first ran."""
        return self._ledger.rows

    @property
    def policy(self) -> str:
        """The policy under which ops ran."""
        return "; ".join(map(str, self._listener.policies.values()))

    def advise(self) -> list[Advice]:
        """The changes worth making, the most important first."""
        return advise(self._found())

    def _found(self) -> Found:
        others = self.histograms, self.updates, self.scale, self.bytes, self.products, self.patterns
        return Found(self.ledger, *[one.as_dict() for one in others])  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        found = self._found()
        content = {
            "environment": dict(info()),
            "policy": self.policy,
            "summary": {"iterations": self._listener.iterations, "part": self._part},
            **found._asdict(),
            "ledger": [row.as_dict() for row in self.ledger],
            "crash": self.crash.found,
            **{name: one and one.as_dict() for name, one in (("shadow", self.shadow), ("formats", self.formats))},
            "advice": [advice._asdict() for advice in advise(found)],
        }
        return jsonable(content)

    def report(self, path: str | os.PathLike[str], title: str = "Precision audit") -> None:
        """Write everything as one HTML file that needs nothing else, in folders that are made where they are missing.
        Without matplotlib it has no pictures.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write(path, page(self, title))

    def figure(self, name: str) -> Any:
        """A matplotlib figure: "ledger", "exponents", "scales" (what each loss scale would lose), "scale", "updates",
        "bytes", "products" or "shadow". ValueError for another name, and where there is nothing to draw;
        ModuleNotFoundError says how to install matplotlib.
        """
        return figure(self, name)

    def __str__(self) -> str:
        more = "a.ledger, a.histograms, a.updates, a.scale, a.bytes, a.products, a.patterns, a.crash"
        asked = [name for name in ("shadow", "formats") if getattr(self, name) is not None]
        return f"{self.told()}\n\n{', a.'.join([more, *asked])} tell more; a.report(path) all."

    def told(self) -> str:
        """Findings, advice, and the rows that lose most."""
        return "\n\n".join(self.parts())

    def parts(self) -> list[str]:
        """The same in paragraphs and a table."""
        found, steps = self._found(), self._listener.iterations
        advice = advise(found)
        if not (advice or self.crash.found):
            return [nothing(found, steps, self._part, self.patterns.looked_at)]
        worst = self.ledger.filter(lambda row: any(getattr(row, name) for name in LOST)).sorted_by(*WORST)[:10]
        head = f"What loses most, {len(worst)} of the ledger's {len(self.ledger)} rows:"
        table = [head, worst.told(BRIEF)] if worst else []
        said = [str(self.crash)] if self.crash.found else []
        return [*said, "\n".join(sentences(found, steps, self._part)), *map(_as_text, advice), *table]


def _as_text(advice: Advice) -> str:
    return f"{advice.text}\n    {advice.why} ({'; '.join(filter(None, (advice.where, advice.source)))})"
