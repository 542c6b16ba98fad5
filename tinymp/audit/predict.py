"""What a training step will take, found on arrays without memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

from .. import backend, ops, optim, statistics
from ..arguments import function, named
from ..events import unobserved
from ..nn.module import Module
from ..optim.optimizer import Optimizer
from ..parameter import Parameter
from ..precision import FP32, MIXED, Policy, use
from ..tensor import Tensor
from . import meta
from .bytes import ByteLedger
from .listener import Instrument, Listener

OPTIMIZERS: dict[str, Callable[[list], Optimizer]] = {
    "sgd": optim.SGD,
    "momentum": lambda parameters: optim.SGD(parameters, momentum=0.9),
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
}


@named
def predict(
    model: Module,
    *inputs: Any,
    policy: Policy = MIXED,
    optimizer: Any = "adam",
    loss: Callable | None = None,
    instruments: Iterable[Instrument] = (),
) -> ByteLedger:
    """The bytes that a training step will take under `policy`, and in FP32: a ByteLedger with `predicted` and `fp32`.

    The step runs on the device "meta", where arrays have no memory: full-size models take milliseconds. Build such a
    model there; one that exists is left as it is.

        with mp.device("meta"):
            model = models.GPT()
        words = np.broadcast_to(0, (2, 1024))
        print(predict(model, words, optimizer="adam"))

    inputs       shapes of floating tensors, or examples, of which only shape and dtype are read
    optimizer    "sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop"; or a class or function of parameters
    loss         loss(model, *inputs), a Tensor or several; by default all that model(*inputs) returns
    instruments  others to listen to the step under `policy`. All values are 0 there: Products tells sizes, Exponents
                 raises

    Sparse gradients are predicted as if no index came twice. TypeError or ValueError for other inputs and optimizers.
    """
    mixed, fp32 = ByteLedger(), ByteLedger()
    _rehearse(model, inputs, policy, optimizer, loss, [mixed, *instruments])
    _rehearse(model, inputs, FP32, optimizer, loss, [fp32])
    return ByteLedger(mixed.measured, fp32.measured)


def _rehearse(model: Module, inputs: tuple, policy: Policy, optimizer: Any, loss: Any, instruments: list) -> None:
    """One training step on arrays without memory, for these instruments; see `predict`."""
    aside = statistics.iteration.open
    with ExitStack() as stack, backend.device("meta"), unobserved(), use(policy):
        stack.callback(setattr, statistics.iteration, "open", aside)
        statistics.iteration.open = WeakSet()  # in which batch norms move their statistics: no part of the training
        model = policy.cast(copy.deepcopy(model, _weightless(model)))
        arguments = [policy.cast(_input(x)) for x in inputs]
        parameters = list(model.parameters())
        if not isinstance(optimizer, str):
            rule = function("predict", "optimizer", optimizer)(parameters)
        elif optimizer in OPTIMIZERS:
            rule = OPTIMIZERS[optimizer](parameters)
        else:
            raise ValueError(f"predict: expected `optimizer` to be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
        if loss is not None:
            function("predict", "loss", loss)
        with Listener(instruments):
            losses = model(*arguments) if loss is None else loss(model, *arguments)
            sums = [ops.sum(y) if y.ndim else y for y in _tensors(losses) if y.requires_grad]
            if not sums:
                raise ValueError("predict: nothing that the model or `loss` returned depends on its parameters")
            sum(sums[1:], sums[0]).backward()
            rule.step(allow_missing=True)
            for instrument in instruments:
                _ = getattr(instrument, "measured", None)  # measures the parameters while they exist


def _weightless(model: Module) -> dict[int, Any]:
    """{id of each Tensor of a model: the same without memory}: the memo with which to copy the model."""
    if not isinstance(model, Module):
        raise TypeError(f"predict: expected a Module, got {type(model).__name__}")
    stand_ins: dict[int, Any] = {}
    for module in model.modules():
        for x in vars(module).values():
            if isinstance(x, Parameter):
                stand_ins[id(x)] = Parameter(meta.asarray(x.master), x.requires_grad, normalisation=x.normalisation)
                stand_ins[id(x)].name = x.name
            elif isinstance(x, Tensor):
                stand_ins[id(x)] = Tensor(meta.asarray(x.array))
    return stand_ins


def _input(x: Any) -> Any:
    x = x.array if isinstance(x, Tensor) else x
    if isinstance(x, tuple) and all(hasattr(n, "__index__") for n in x):
        return ops.zeros(x)
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return Tensor(meta.asarray(x))
    raise TypeError(f"predict: expected shapes, arrays or Tensors for `inputs`, got {type(x).__name__}")


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (tuple, list, dict)):
        for part in x.values() if isinstance(x, dict) else x:
            yield from _tensors(part)
