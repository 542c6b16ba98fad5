"""The op that overflows first in backward: for the error of a scaler that gives up, where nothing is audited."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, finalize

from .. import ops
from ..autograd import Op
from ..events import PACKAGE, Observer, here, inside
from ..optim.result import StepResult
from ..optim.scaler import SEE, LossScaler
from .callers import caller
from .sampling import nonfinite

_EPS = "the gradient of a row of zeros is divided by eps: give it a larger one, such as eps=1e-3"
_ROOT = "its slope at 0 is infinite: add a small number to what it is given, such as 1e-4"
# Why the gradient of a function of tinymp.ops overflows, and what to do
INSTEAD = {
    "binary_cross_entropy": "use binary_cross_entropy_with_logits (BCEWithLogitsLoss), without the sigmoid before it",
    "log": "its argument is 0, or nearly: use log_softmax, logsigmoid, or a loss that is given logits",
    "div": "its divisor is nearly 0: add a small number to it, such as 1e-3",
    **dict.fromkeys(["normalize", "cosine_similarity"], _EPS),
    **dict.fromkeys(["sqrt", "rsqrt", "pow"], _ROOT),
}
# Why a function makes an infinity or NaN of finite numbers
UNDEFINED = {
    "log": f"its argument is 0 or negative: {INSTEAD['log'].partition(': ')[2]}",
    "div": "its divisor is 0: add a small number to it, such as 1e-3",
    **dict.fromkeys(["sqrt", "rsqrt", "pow"], "it is given a negative number, or rsqrt 0: see to its argument"),
}


class FirstOverflow(Observer):
    """Notes the first op whose backward makes an infinity or NaN, up to the next step that is applied."""

    def __init__(self) -> None:
        self.heard_by = here.observers  # of this thread
        self.functions: WeakKeyDictionary[Op, tuple[str, str]] = WeakKeyDictionary()  # see `function_of`; its caller
        self.found = ""

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        if op.phase == "forward":
            frame = sys._getframe(1)
            self.functions[op] = function_of(op, frame), f" ({caller(frame)})"
        elif not self.found and any(map(nonfinite, (*inputs, *outputs))):
            function, line = self.functions.get(op, (op.name, ""))
            i = next((i for i, g in enumerate(outputs) if nonfinite(g)), 0)
            which = f"that of `{op.name_of(i)}` of {op.name}{f', in {function}' * (function != op.name)}"
            if any(map(nonfinite, inputs)):
                which = f"the sum of those of the result of {function}"
            do = f": {INSTEAD[function]}" if function in INSTEAD else ""
            self.found = f"The first gradient that is not finite is {which}{line}{do}"

    def stepped(self, optimizer: Any, result: Any) -> None:
        if result == StepResult.APPLIED:
            self.end()

    def limited(self, problem: Any) -> None:
        """Say it in the error; an audit may have said more in the place of SEE."""
        self.end()
        if self.found:
            text = str(problem)
            problem.args = (text.replace(SEE, self.found) if SEE in text else f"{text}. {self.found}",)

    def end(self) -> None:
        if self in self.heard_by:
            self.heard_by.remove(self)


def watch_backward(scaler: LossScaler) -> None:
    """Hear this thread up to the next step that is applied, or up to a scaler's limit, or as long as this one lives."""
    if not any(isinstance(one, FirstOverflow) for one in here.observers):
        here.observers.append(watch := FirstOverflow())
        finalize(scaler, watch.end)


def function_of(op: Op, frame: FrameType | None) -> str:
    """The function of tinymp.ops that the program or a layer has called, from a frame within it; or the op's name."""
    name = op.name
    while frame is not None and inside(frame):
        if frame.f_code.co_filename.startswith(f"{PACKAGE}ops") and frame.f_code.co_name in dir(ops):
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def because(op: str, phase: str) -> str:
    """ ": its slope at 0 is infinite: ...", where the cause is known."""
    known = INSTEAD | {"cast": f"FP16 does not hold what FP32 computed; if by normalize, {_EPS}"}
    known = known if phase == "backward" else UNDEFINED
    return f": {known[op]}" if op in known else ""
