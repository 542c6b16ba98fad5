"""summary(): the layers of a model, their outputs, and the bytes of a training step; computed without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..arguments import named
from ..nn.module import Module
from ..precision import MIXED, Policy
from ..tensor import Tensor
from .bytes import ROLES, ByteLedger, total
from .listener import Instrument, Place
from .predict import rehearse
from .sampling import table


@dataclass
class Layer:
    """A module of the model.

    path           "layers.0"; empty for the model itself
    kind           its class
    output         the shapes of the tensors that its last call returned
    parameters     how many numbers its own parameters hold, without those of its parts; shared ones count once
    multiply_adds  of the matrix products of its own calls in one forward pass; other arithmetic is not counted
    calls          how often it was called
    """

    path: str
    kind: str
    output: list[tuple[int, ...]] = field(default_factory=list)
    parameters: int = 0
    multiply_adds: int = 0
    calls: int = 0


class Summary:
    """What `summary` found; `print` shows it.

    layers         every module, in the order of `named_modules`
    bytes          {role: {dtype: bytes}} of a training step (see `tinymp.audit.bytes.ByteLedger`); empty for a model
                   that has nothing to train
    parameters     of the whole model
    multiply_adds  of one forward pass
    """

    def __init__(self, layers: list[Layer], sizes: dict[str, dict[str, int]], policy: Policy) -> None:
        self.layers, self.bytes, self.policy = layers, sizes, policy.name
        self.parameters = sum(layer.parameters for layer in layers)
        self.multiply_adds = sum(layer.multiply_adds for layer in layers)

    def __str__(self) -> str:
        rows = [("module", "class", "output", "parameters", "multiply-adds")]
        for layer in self.layers:
            depth = layer.path.count(".") + 1 if layer.path else 0
            name = "  " * depth + (layer.path.rpartition(".")[2] or "(model)")
            shapes = ", ".join(map(str, layer.output)) if layer.calls else "not called"
            times = f" x {layer.calls}" if layer.calls > 1 else ""
            rows.append((name, layer.kind, shapes + times, _count(layer.parameters), _count(layer.multiply_adds)))
        rows.append(("all", "", "", _count(self.parameters), _count(self.multiply_adds)))
        lines = [table(rows, left=(0, 1, 2), most=None)]
        if self.bytes:
            roles = [(role, sum(self.bytes.get(role, {}).values())) for role in ROLES]
            kept = ", ".join(f"{role} {n / 2**20:,.2f}" for role, n in roles if n)
            lines.append(f"A training step under {self.policy} keeps {total(self.bytes) / 2**20:,.2f} MiB: {kept}")
        return "\n".join(lines)

    __repr__ = __str__


@named
def summary(
    model: Module,
    *inputs: Any,
    policy: Policy = MIXED,
    optimizer: Any = "adam",
    loss: Callable | None = None,
) -> Summary:
    """The model's layers with shapes, parameters and multiply-adds, and the bytes of a training step by role.

        print(mp.summary(model, (64, 3, 32, 32)))

    inputs     shapes of floating tensors, or examples: arrays and Tensors, of which only shape and dtype are read
    optimizer  and loss: as for `tinymp.audit.predict`

    The step runs on the device "meta", where arrays have no memory; the model is left as it is. TypeError or ValueError
    for other inputs and optimizers.
    """
    if not isinstance(model, Module):
        raise TypeError(f"summary: expected a Module, got {type(model).__name__}")
    layers, ledger = _Layers(), ByteLedger()
    trained = any(p.requires_grad for p in model.parameters())
    with layers.hooked(model):
        try:
            rehearse(
                model,
                *inputs,
                policy=policy,
                optimizer=optimizer if trained else lambda parameters: None,
                loss=loss,
                instruments=[ledger, layers],
            )
        except ValueError as error:  # forward has run, but there is nothing to train
            if trained or "depends on its parameters" not in str(error):
                raise
    return Summary(list(layers.rows.values()), ledger.measured if trained else {}, policy)


class _Layers(Instrument):
    """Counts the products of the module that runs."""

    def __init__(self) -> None:
        self.rows: dict[str, Layer] = {}
        self.running: list[Layer] = []

    def product(self, place: Place, a: Any, b: Any, accumulate: str) -> None:
        if self.running:
            batch = max(prod(a.shape[:-2]), prod(b.shape[:-2]))
            self.running[-1].multiply_adds += batch * a.shape[-2] * a.shape[-1] * b.shape[-1]

    def added(self, place: Place, part: Any, times: Any, accumulate: str) -> None:
        if self.running and times is not None:
            self.running[-1].multiply_adds += part.size

    @contextmanager
    def hooked(self, model: Module) -> Iterator[None]:
        """Within the block, every module of the model and of copies tells when it is called, and what it returns."""
        seen: set[int] = set()
        with ExitStack() as handles:
            for path, module in model.named_modules():
                row = self.rows[path] = Layer(path, type(module).__name__)
                own = [p for _, p in module.named_parameters(recurse=False) if id(p) not in seen]
                seen.update(map(id, own))
                row.parameters = sum(p.numel() for p in own)
                for handle in self._watched(module, row):
                    handles.enter_context(handle)
            yield

    def _watched(self, module: Module, row: Layer) -> list[Any]:
        def before(module: Module, args: tuple) -> None:
            self.running.append(row)

        def after(module: Module, args: tuple, output: Any) -> None:
            self.running.pop()
            row.calls, row.output = row.calls + 1, [x.shape for x in _tensors(output)]

        return [module.register_forward_pre_hook(before, prepend=True), module.register_forward_hook(after)]


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [t for part in parts for t in _tensors(part)]


def _count(n: int) -> str:
    return f"{n:,}" if n else "-"
