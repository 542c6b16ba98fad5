"""Where the first infinity or NaN arose: what a loss scaler says when it gives up."""

from __future__ import annotations

import sys
import warnings
from weakref import WeakKeyDictionary

from ..autograd import Op
from ..events import Observer, caller, stacklevel
from ..parameter import Parameter
from ..sparse import nonfinite

UNWATCHED = "(this iteration was not watched)"


class Witness(Observer):
    """Watches the ops of one iteration, to tell afterwards where the first infinity or NaN arose."""

    def __init__(self) -> None:
        # op -> where it ran, and for each of its arguments that is not finite the number of such values
        self.calls: WeakKeyDictionary[Op, tuple[str, dict[int, int]]] = WeakKeyDictionary()
        self.first_nonfinite: str | None = None  # the first op whose result is not finite
        self.overflow: str | None = None  # the first op whose backward gave a gradient that is not finite

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        if op.phase == "forward":
            shapes = ", ".join(f"{op.name_of(i)} {x.shape}" for i, x in enumerate(inputs) if hasattr(x, "shape"))
            bad = {i: n for i, n in enumerate(map(nonfinite, inputs)) if n}
            self.calls[op] = f"{op.name}({shapes}) at {caller(sys._getframe())}", bad
            if self.first_nonfinite is None and (bad or any(map(nonfinite, outputs))):
                self.first_nonfinite = self.cause(op)
        elif self.overflow is None and any(map(nonfinite, outputs)):
            where, _ = self.calls.get(op, (op.name, {}))
            arrived = any(map(nonfinite, inputs))
            how = "the sum of the gradients of the output of" if arrived else "the backward of"
            self.overflow = f"{how} {where}"

    def cause(self, op: Op | None) -> str:
        """Follow values that are not finite from the loss back to where they began."""
        if op is None or op not in self.calls:
            return "the loss was not computed by an op in this iteration"
        while True:
            where, bad = self.calls[op]
            edges = {i: op.edges[i] if op.edges else None for i in bad}
            makers = [edge[0] for edge in edges.values() if isinstance(edge, tuple) and edge[0] in self.calls]
            if not makers:
                break
            op = makers[0]
        if not bad:
            return f"{where}, whose arguments are finite"
        i, n = next(iter(bad.items()))
        leaf = edges[i]
        source = f"parameter `{leaf.name}`" if isinstance(leaf, Parameter) and leaf.name else "the data"
        return f"argument `{op.name_of(i)}` of {where} already holds {n} values that are not finite: {source}"


def found_out(cause: str | None) -> str:
    """A cause that a witness on a GPU may have missed."""
    return cause or "unknown (a captured step cannot be watched: run it without capture to see)"


def nonfinite_loss(loss: str, times: str, cause: str) -> FloatingPointError:
    """The error at the limit of iterations whose loss is not finite."""
    return FloatingPointError(
        f"the loss is {loss} in {times} iterations in a row; a smaller loss scale does not help. Where it arose: "
        f"{cause}"
    )


def too_many_skips(times: str, last: str, parameter: str, cause: str) -> FloatingPointError:
    """The error at the limit of iterations whose gradients overflow."""
    return FloatingPointError(
        f"the gradients overflow in {times} iterations in a row{last} though the loss is finite. The first parameter: "
        f"{parameter}. Where it arose: {cause}"
    )


def warn_stuck(times: int, least: float, parameter: str, cause: str) -> None:
    """The warning that S sits at its least: some steps are applied, so it is no error, and something is wrong."""
    warnings.warn(
        f"the loss scale sits at its least, {least:g}: gradients have overflowed {times} times since it came there, "
        "and it has never grown in between. No scale helps these iterations, which are skipped, and one so small loses "
        f"the small FP16 gradients of all others. The last parameter: {parameter}. Where it arose: {cause}. Look at "
        "what this op is given there, or leave these batches out; a larger `min_scale` spares the others until then",
        RuntimeWarning,
        stacklevel=stacklevel(),
    )
