"""audit(): observe everything that runs in a block, and ask about it afterwards."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from time import monotonic
from typing import Any

from ..arguments import flag, named, rename
from ..autograd import Op
from ..backend import info
from .advice import Advice, Found, advise, judged
from .bytes import ByteLedger
from .crash import Crash
from .depth import Depth
from .formats import Formats
from .histograms import Exponents
from .ledger import WORST, Ledger, Rows, jsonable
from .listener import Instrument, Listener, Place
from .products import Products
from .report import write
from .scales import Scales
from .shadow import Shadow
from .summary import findings
from .trace import Trace
from .updates import LostUpdates

PATIENCE = 10.0  # seconds after which an audit says how far it is; again whenever that has doubled


@named
def audit(
    *instruments: Instrument,
    shadow: bool = False,
    formats: Sequence[str] = (),
    every: int = 1,
    modules: str | None = None,
    crash: str | os.PathLike[str] | None = None,
    stop_at: str | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Audit:
    """`with mp.audit() as a:` listens to everything that runs in the block, in this thread.

    instruments  further ones of your own (see `Instrument`)
    shadow       also run every op again in FP32, for its error; about three further steps per step
    formats      also round to these what is rounded: "bf16", "e4m3-tensor", "mxfp8", ... (see `Formats`)
    every        listen to one step of each optimizer in so many, for long runs; all are counted
    modules      a regular expression: listen only where it is found in the name of a module or parameter
    trace        a folder for a mark of every tensor, which `tinymp diff` compares with another run's (see `Trace`)
    crash        a JSON file to write with the last 16 steps when the loss or a weight first stops being finite, or an
                 error ends the block (see `Crash`)
    stop_at      "nan" or "inf": FloatingPointError at the first op that makes one from arguments without

    One that takes longer than 10 s says on stderr how far it is. The audit ends with the block. RuntimeError for an
    audit within an audit; ValueError for an unknown format or `stop_at`, an `every` below 1 and what is no regular
    expression; OSError where the trace cannot be written.
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"audit: expected every to be a positive integer, got {every!r}")
    if modules is not None and not isinstance(modules, str):
        raise TypeError(f"audit: expected modules to be a regular expression, got {modules!r}")
    try:
        re.compile(modules or "")
    except re.error as error:
        raise ValueError(f"audit: expected modules to be a regular expression, got {modules!r} ({error})") from None
    if isinstance(formats, str) or not isinstance(formats, Sequence):
        raise TypeError(f"audit: expected formats to be a list of names such as 'bf16', got {formats!r}")
    if crash is not None and (not isinstance(crash, (str, os.PathLike)) or not str(crash)):
        raise TypeError(f"audit: expected crash to be a path, got {crash!r}")
    if trace is not None and (not isinstance(trace, (str, os.PathLike)) or not str(trace)):
        raise TypeError(f"audit: expected trace to be a folder, such as 'runs/a', got {trace!r}")
    return Audit(instruments, flag("audit", "shadow", shadow), tuple(formats), every, modules, crash, stop_at, trace)


class Audit:
    """What was found; made by `audit`. `print(a)` shows a summary, `a.report("audit.html")` writes all of it.

    ledger      every op at every place of its call: dtypes, rule, and what its roundings lost (see `Row`, `Rows`)
    histograms  exponents of weights and gradients per layer, and what a loss scale would save (see `Exponents`)
    updates     the share of weights whose FP16 copy an update does not change (see `LostUpdates`)
    scale       the loss scale, the steps that were skipped, and why (see `Scales`)
    bytes       what the arrays of a step take, by role and dtype (see `ByteLedger`)
    products    the sizes of all matrix products, and which of them Tensor Cores take (see `Products`)
    depth       how large activations and gradients are from the first op to the last (see `Depth`)
    crash       the last steps before the loss or a weight stopped being finite (see `Crash`)
    shadow      the error of every op in ulps, local and inherited (see `Shadow`); None unless asked for
    formats     what other formats would have lost (see `Formats`); None unless asked for
    """

    def __init__(
        self,
        instruments: tuple[Instrument, ...] = (),
        shadow: bool = False,
        formats: tuple[str, ...] = (),
        every: int = 1,
        modules: str | None = None,
        crash: str | os.PathLike[str] | None = None,
        stop_at: str | None = None,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        self.histograms, self.updates, self.scale = Exponents(), LostUpdates(), Scales()
        self.bytes, self.products, self.shadow = ByteLedger(), Products(), Shadow() if shadow else None
        self._ledger, self.formats = Ledger(), Formats(formats) if formats else None
        self.depth = Depth()
        self.crash = Crash(self.depth, self.scale, crash, stop_at)
        self._trace = None if trace is None else Trace(trace, every=every, modules=modules)
        own: list[Instrument | None] = [self.depth, self.crash, self._ledger, self.histograms, self.updates]
        own += [self.scale, self.bytes, self.products, self.shadow, self.formats, self._trace, _Progress(every)]
        self._listener = Listener([*[i for i in own if i is not None], *instruments], every, modules)
        self._part = [f"one step in {every:,}"] * (every > 1) + [f"the modules {modules!r}"] * (modules is not None)

    def __enter__(self) -> Audit:
        if self._trace is not None:
            try:
                self._trace.open()
            except OSError as error:
                rename(error, "audit")
                raise
        self._listener.__enter__()
        return self

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

    def advise(self) -> list[Advice]:
        """The changes worth making, the most important first."""
        return advise(self)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        found: dict[str, Any] = {
            "histograms": self.histograms.as_dict(),
            "updates": self.updates.as_dict(),
            "scale": self.scale.as_dict(),
            "bytes": self.bytes.as_dict(),
            "products": self.products.as_dict(),
        }
        content = {
            "environment": dict(info()),
            "policy": "; ".join(map(str, self._listener.policies.values())),
            "summary": {"iterations": self._listener.iterations, "part": " of ".join(self._part)},
            "ledger": [row.as_dict() for row in self.ledger],
            **found,
            "depth": self.depth.as_dict(),
            "crash": self.crash.as_dict(),
            "shadow": self.shadow.as_dict() if self.shadow else None,
            "formats": self.formats.as_dict() if self.formats else None,
            "advice": [advice._asdict() for advice in judged(Found(self.ledger, **found))],
        }
        return jsonable(content)

    def report(self, path: str | os.PathLike[str], title: str = "Precision audit") -> None:
        """Write everything as one HTML file that needs nothing else. ModuleNotFoundError without Jinja2."""
        created = datetime.now().isoformat(" ", "minutes")
        write(path, {"title": title, "created": created, **self.as_dict()})

    def __repr__(self) -> str:
        seen = f"{self._listener.iterations} iterations, {len(self.ledger)} rows in the ledger"
        return f"<tinymp audit of {seen}; print it for a summary>"

    def __str__(self) -> str:
        more = "a.ledger, a.histograms, a.updates, a.scale, a.bytes, a.products, a.depth, a.crash"
        more += f"{', a.shadow' * (self.shadow is not None)}{', a.formats' * (self.formats is not None)} tell more; "
        return f"{self.told()}\n\n{more}a.report(path) all."

    def told(self, width: int | None = None) -> str:
        """What to know, the advice, and the rows that lose most, in a table of at most so many characters' width."""
        content = self.as_dict()
        worst = self.ledger.sorted_by(*WORST)[:10]
        lossy = sum(row.infinite + row.zero + row.subnormal > 0 for row in worst)
        worst = worst[:lossy] or worst
        head = f"What loses most, {len(worst)}" if lossy else f"Nothing was lost; {len(worst)}"
        parts = [
            str(self.crash) if self.crash.found else "",
            "\n".join(f.text.replace("\N{NO-BREAK SPACE}", " ") for f in findings(content)),
            *[
                f"{a['text']}\n    {a['why']} ({'; '.join(filter(None, (a['where'], a['source'])))})"
                for a in content["advice"]
            ],
            f"{head} of the ledger's {len(self.ledger)} rows:\n\n{worst.fitted(width)}" if worst else "",
        ]
        return "\n\n".join(part for part in parts if part)


class _Progress(Instrument):
    """Says now and then how far a long audit is, and how it would take less time."""

    def __init__(self, every: int) -> None:
        self.hint = "" if every > 1 else "; with every=10 it would listen to one step in ten"
        self.ops, self.begun, self.next = 0, monotonic(), PATIENCE

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        self.ops, taken = self.ops + 1, monotonic() - self.begun
        if taken >= self.next:
            self.next = 2 * taken
            steps = f"{self.listener.iterations:,} steps, {self.ops:,} ops in {taken:,.0f} s"
            print(f"audit: {steps}{self.hint}", file=sys.stderr, flush=True)
