"""The findings of an audit about one run, for its advice and summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..dtypes import float16
from .ledger import Row

LEAST_NUMBERS = 1000  # numbers (rounded, updated) below which shares of them mean little
LEAST_WORK = 1e7  # operations of a product below which a GPU takes longer to start it than to run it at 10 TFLOP/s
HALF = ("float16", "bfloat16")


class Found(NamedTuple):
    """The findings of the instruments, as in their `as_dict`; empty if there are none."""

    ledger: Sequence[Row] = ()
    histograms: Mapping[str, Any] = MappingProxyType({})
    updates: Sequence[dict[str, Any]] = ()
    scale: Mapping[str, Any] = MappingProxyType({})
    bytes: Mapping[str, Any] = MappingProxyType({})
    products: Sequence[dict[str, Any]] = ()
    patterns: Sequence[dict[str, Any]] = ()

    def dtypes(self, role: str) -> dict[str, int]:
        return self.bytes.get("measured", {}).get(role, {})

    @property
    def halves(self) -> list[dict[str, Any]]:
        """The updates of FP16 and BF16 weights that are enough to judge."""
        return [u for u in self.updates if not u["fp32"] and u["elements"] >= LEAST_NUMBERS]

    @property
    def too_high(self) -> list[dict[str, Any]]:
        """The causes of skipped steps that a smaller loss scale would have spared, of 1 or more."""
        return [c for c in self.scale.get("causes", ()) if (c.get("largest_scale") or 0) >= 1]

    @property
    def current_scale(self) -> float | None:
        """The loss scale that gradients carried last."""
        if history := self.scale.get("history"):
            return history[-1][1]
        tensors = [t for t in self.histograms.get("tensors", ()) if "gradient" in t["role"]]
        tensors = [t for t in tensors if t.get("dtype") == float16.name] or tensors
        return tensors[-1]["scale"] if tensors else None

    @property
    def trained(self) -> list[Row]:
        """The ledger without what only an evaluation ran: an op that no backward pass has come back to, from another
        line.
        """
        behind = {(_model(row.module), row.op, row.caller) for row in self.ledger if row.phase == "backward"}
        counterparts = {(module, op) for module, op, _ in behind}

        def evaluates(row: Row) -> bool:
            site = _model(row.module), row.op, row.caller
            return row.phase == "forward" and site not in behind and site[:2] in counterparts

        return [row for row in self.ledger if not evaluates(row)]


def _model(module: str) -> str:
    """The module's path; empty for a function: a training and an evaluation may call one op in two."""
    return "" if module.endswith((")", ">")) else module


def asked(products: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The products of the run that is asked about: without an FP32 baseline's beside it, or an evaluation's beside a
    training.
    """

    def place(p: dict[str, Any]) -> tuple:
        return _model(p["module"]), p["op"]

    def batch(p: dict[str, Any]) -> Any:
        return next((p[name] for name, of in p["axes"].items() if of == "rows"), None)

    halves = [p for p in products if p["dtype"] in HALF]
    if halves:  # FP32 products of the same training, that have no counterpart in half precision, are its own
        policies, places = {p["policy"] for p in halves}, set(map(place, halves))
        products = [p for p in products if p["dtype"] in HALF or (p["policy"] in policies and place(p) not in places)]
    seen = {(place(p), batch(p)) for p in products if p["phase"] == "backward"}
    trained = {where for where, _ in seen}
    return [p for p in products if place(p) not in trained or (place(p), batch(p)) in seen]


def per_call(products: Sequence[dict[str, Any]]) -> float:
    """The operations of one call of the largest of these products."""
    return max((p["flops"] / max(p["calls"], 1) for p in products), default=0.0)


def half_in(names: str) -> str | None:
    """float16 or bfloat16, as far as a row's dtypes name it: "float16, float32", "float32 master, float16 copy"."""
    return next((name for name in names.replace(",", " ").split() if name in HALF), None)
