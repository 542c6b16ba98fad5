"""The byte ledger: what a training step keeps in memory, by role and dtype; measured, and predicted without memory."""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import backend, ops, optim, statistics
from ..arguments import function, named
from ..autograd import Op, values_of
from ..dtypes import HALF, HALVES
from ..events import unobserved
from ..nn.module import Module
from ..optim.optimizer import Optimizer
from ..parameter import Parameter
from ..precision import FP32, MIXED, Policy, current_policy, use
from ..study.formats import FORMATS
from ..study.operands import emulated
from ..tensor import Tensor
from . import meta
from .kept import kept_by
from .listener import Instrument, Listener, Place
from .sampling import BLUE, GREEN, PINK, RED, SKY, table

ROLES = ("weights", "masters", "gradients", "activations", "optimizer", "workspace")
KEPT = ROLES[:-1]  # what `ratio` compares
Bytes = dict[str, dict[str, int]]  # role -> dtype -> bytes
OPTIMIZERS: dict[str, Callable[[list], Optimizer]] = {
    "sgd": optim.SGD,
    "momentum": lambda parameters: optim.SGD(parameters, momentum=0.9),
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
}


class _Training:
    """What was seen under one policy."""

    def __init__(self) -> None:
        self.largest: Bytes = {role: {} for role in ROLES}
        self.parameters: dict[int, weakref.ref[Parameter]] = {}
        self.states: weakref.WeakKeyDictionary[Optimizer, dict[str, int]] = weakref.WeakKeyDictionary()


class ByteLedger(Instrument):
    """The bytes of a training by role and dtype, each role at the moment when it was largest.

    weights      the working copies of all parameters for which an optimizer or a gradient was seen, and of models whose
                 weights a graph keeps
    masters      their FP32 masters
    gradients    `grad` as an optimizer's step finds it: FP16, but FP32 after `unscale_` (clipping) or several backwards
    activations  what graphs keep for backward when one begins (`kept_by`); not the parameters
    optimizer    the state of the optimizers
    workspace    the arrays that one op passed to precision primitives, besides its arguments, results and saved arrays:
                 columns of a convolution, FP32 values before their rounding, FP16 operands that a CPU widens. An op
                 makes more than it passes to primitives, so this is a lower bound, and no part of the ratio

    moved      the bytes that ops and updates read and wrote, as if each array came from memory and went there once per
               op: its arguments and results, in backward also what it saved (views of an argument move nothing); per
               update the gradient, master, state and working copy. What caches keep, a machine need not move
    by_policy  {policy: {role: {dtype: bytes}}}. A graph and its step count for the policy in use where the graph began
    measured   those of the last policy that stored weights in FP16, else of the last one
    predicted  the same by `predict`, or None; may be given, to be shown with what is measured
    fp32       the same training in FP32, predicted; where something is measured, that with each FP16 number in 4 bytes
               and without masters (workspace is not known then)
    ratio      the sum of all roles but workspace in FP32, divided by that here. Roles are largest at different moments,
               so the most that was ever held at once is less than such a sum
    """

    def __init__(self, predicted: ByteLedger | None = None) -> None:
        self.predicted: Bytes | None = None if predicted is None else predicted.predicted
        self._baseline: Bytes = {} if predicted is None else predicted._baseline
        self.moved = 0
        self.optimizers: list[dict[str, Any]] = []  # their rules and options, as of their last step
        self._trainings: dict[str, _Training] = {}  # per policy
        self._policy, self._now = "", _Training()
        self._graph: weakref.WeakSet[Op] = weakref.WeakSet()  # ops that have run forward and not backward
        self._grows = False  # whether an op was added since the last backward
        self._touched: list[
            list[Any]
        ] = []  # what the primitives saw since the last op: [owner's id and bytes, dtype, bytes]

    # ---- listening

    def product(self, place: Place, a: Any, b: Any, accumulate: str) -> None:
        self._touch(place, a, b)

    def added(self, place: Place, part: Any, times: Any, accumulate: str) -> None:
        if times is not None:
            self._touch(place, part, times)

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        self._touch(place, x)

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if place.phase == "forward" and op.needs and not self._grows:
            self._turn()
        known = {_identity(x) for x in (*inputs, *outputs, *(op.saved or ()), *op.statistics) if hasattr(x, "dtype")}
        for seen in self._touched:
            size: Counter[str] = Counter()
            for owner, dtype, nbytes in seen:
                if owner not in known:
                    size[dtype] += nbytes
            self._note("workspace", size)
        self._touched.clear()
        self.moved += _passed(inputs, (*outputs, *((op.saved or ()) if place.phase == "backward" else ())))
        if place.phase == "forward":
            if op.needs:
                self._graph.add(op)
                self._grows = True
            return
        if self._grows:
            self._measure_graph()
        self._graph.discard(op)
        self._known(edge for edge in op.edges if isinstance(edge, Parameter))

    def stepped(self, optimizer: Optimizer, result: Any) -> None:
        self._known(optimizer.parameters())
        state = [v for arrays in optimizer.state.values() for name, v in arrays.items() if name != "step"]
        self._now.states[optimizer] = _sizes(state)
        self._note("optimizer", sum((Counter(s) for s in self._now.states.values()), Counter()))
        self._measure_parameters()
        if result:
            updated = [p for p in optimizer.parameters() if p.grad_array is not None]
            self.moved += sum(_sizes(p.grad_array for p in updated).values()) + sum(
                _sizes(p.array for p in updated).values()
            )
            self.moved += 2 * sum(_sizes(state).values()) + sum(2 * p.master_nbytes or p.array.nbytes for p in updated)
        rule = {"optimizer": type(optimizer).__name__}
        self.optimizers = [o for o in self.optimizers if o["id"] != id(optimizer)]
        for group in optimizer.param_groups:
            options = {
                k: list(v) if isinstance(v, tuple) else v
                for k, v in group.items()
                if k != "params" and not hasattr(v, "dtype")
            }
            self.optimizers.append({**rule, **options, "id": id(optimizer)})

    # ---- what was found

    @property
    def measured(self) -> Bytes:
        """{role: {dtype: bytes}}."""
        if self._grows:
            self._measure_graph()
        self._measure_parameters()
        return {role: dict(sizes) for role, sizes in self._asked[1].largest.items()}

    @property
    def _asked(self) -> tuple[str, _Training]:
        """The policy that is asked about, and what was seen under it: an FP32 baseline beside it is not."""
        seen = [item for item in self._trainings.items() if HALF & item[1].largest["weights"].keys()]
        return seen[-1] if seen else (self._policy, self._now)

    @property
    def by_policy(self) -> dict[str, Bytes]:
        """{policy: {role: {dtype: bytes}}} of the policies under which something was kept, in their order."""
        _ = self.measured
        return {policy: training.largest for policy, training in self._trainings.items() if total(training.largest)}

    @property
    def fp32(self) -> Bytes:
        """The same training in FP32."""
        measured = self.measured
        return _in_fp32(measured) if total(measured) or not self._baseline else self._baseline

    @property
    def ratio(self) -> float:
        """How many times as many bytes the training keeps in FP32; NaN where it keeps none."""
        own = total(self.measured) or total(self.predicted or {})
        return total(self.fp32) / own if own else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        ratio = self.ratio
        measured = self.measured
        return {
            "roles": list(ROLES),
            "measured": measured if any(measured.values()) else {},
            "by_policy": self.by_policy,
            "predicted": self.predicted,
            "fp32": self.fp32,
            "ratio": None if ratio != ratio else ratio,
            "moved": self.moved,
            "optimizers": [{k: v for k, v in o.items() if k != "id"} for o in self.optimizers],
        }

    def __str__(self) -> str:
        measured, fp32, predicted = self.measured, self.fp32, self.predicted or {}
        if not total(fp32):
            return "no training was seen"
        rows: list[tuple[str, ...]] = [("role", "dtype", "measured", "predicted", "in FP32")]
        for role in ROLES:
            dtypes = sorted({d for b in (measured, predicted) for d in b.get(role, {})}) or ["-"]
            for i, dtype in enumerate(dtypes):
                shown = [_text(b.get(role, {}).get(dtype)) for b in (measured, predicted)]
                known = i == 0 and role in KEPT
                whole = _text(sum(fp32.get(role, {}).values())) if known else "-" if i == 0 else ""
                rows.append((role if i == 0 else "", dtype, *shown, whole))
        rows.append(("all but workspace", "", *[_text(total(b) or None) for b in (measured, predicted, fp32)]))
        lines = [table(rows, left=(0, 1), most=None), f"FP32 / this: {self.ratio:.2f}"]
        if self.moved:
            lines.append(f"ops and updates read and wrote {_text(self.moved)}")
        kept = {policy: _text(total(b)) for policy, b in self.by_policy.items()}
        if len(kept) > 1:
            everyone = ", ".join(f"{policy} {size}" for policy, size in kept.items())
            lines.append(f"{len(kept)} policies ran ({everyone}); this is {self._asked[0]}.")
        return "\n".join(lines)

    def draw(self, axes: Any) -> None:
        """Two stacked bars on matplotlib's axes, FP32 and this, in MiB by role."""
        if not total(self.fp32):
            axes.set_title("Bytes: no training was seen")
            return
        bars = {"FP32": self.fp32, "this": self.measured if total(self.measured) else self.predicted or {}}
        bottom = [0.0, 0.0]
        for role, color in zip(KEPT, (BLUE, SKY, RED, GREEN, PINK), strict=True):
            heights = [sum(b.get(role, {}).values()) / 2**20 for b in bars.values()]
            axes.bar(list(bars), heights, bottom=bottom, label=role, width=0.6, color=color)
            bottom = [b + h for b, h in zip(bottom, heights)]
        axes.set(ylabel="MiB", title=f"Bytes of a training step: FP32 / this = {self.ratio:.2f}")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True, frameon=False)

    # ---- measuring

    def _turn(self) -> None:
        """Switch to the policy in use; the first one takes over what was seen before any graph."""
        self._policy = current_policy().name
        self._now = self._trainings.setdefault(self._policy, _Training() if self._trainings else self._now)

    def _touch(self, place: Place, *arrays: Any) -> None:
        """Arrays that a precision primitive reads or writes: a CPU widens FP16 and BF16 operands of a product."""
        if place.kind is None or place.phase not in ("forward", "backward"):
            return
        seen: list[tuple] = []
        for x in arrays:
            if x.dtype not in HALVES:
                seen.append((_identity(x), str(x.dtype), x.nbytes))
            elif not backend.of(x).gemm_rounds:
                seen.append(((), "float32", 2 * x.nbytes))
        self._touched.append(seen)

    def _known(self, parameters: Iterable[Parameter]) -> None:
        for p in parameters:
            if id(p) not in self._now.parameters or self._now.parameters[id(p)]() is None:
                self._now.parameters[id(p)] = weakref.ref(p)

    def _alive(self) -> list[Parameter]:
        return [p for ref in self._now.parameters.values() if (p := ref()) is not None]

    def _measure_parameters(self) -> None:
        parameters = self._alive()
        self._note("weights", _sizes([p.array for p in parameters]))
        self._note("masters", _sizes([p.master for p in parameters if p.master_nbytes]))
        self._note("gradients", _sizes([p.grad_array for p in parameters if p.grad_array is not None]))

    def _measure_graph(self) -> None:
        """What the ops hold on to that have not run backward yet."""
        self._grows = False
        kept = kept_by(self._graph)
        for model in self.listener.models:  # frozen weights are kept for the gradients of what comes before them
            parameters = list(model.parameters())
            if any(id(backend.owner_of(p.array)) in kept for p in parameters):
                self._known(parameters)
        for p in self._alive():
            kept.pop(id(backend.owner_of(p.array)), None)
        self._note("activations", _sizes(kept.values(), whole=True))

    def _note(self, role: str, sizes: dict[str, int]) -> None:
        if sum(sizes.values()) > sum(self._now.largest[role].values()):
            self._now.largest[role] = dict(sizes)


def _passed(inputs: Iterable[Any], others: Iterable[Any]) -> int:
    """The bytes of what an op read and wrote. others: results, and what backward found saved."""
    read, other = ({_identity(x): x for x in xs if hasattr(x, "dtype")} for xs in (inputs, others))
    if other.keys() <= read.keys():  # views, made of nothing
        return 0
    return sum(_sizes(x.array if isinstance(x, Tensor) else x for x in (other | read).values()).values())


def _identity(x: Any) -> tuple[int, int]:
    """What identifies the memory of an array, and its size."""
    owner = backend.owner_of(x.array if isinstance(x, Tensor) else values_of(x))
    return id(owner), owner.nbytes


def _sizes(arrays: Iterable[Any], whole: bool = False) -> dict[str, int]:
    """Bytes per dtype, of the arrays or (whole) of the memory that they keep alive."""
    sizes: Counter[str] = Counter()
    for x in arrays:
        if hasattr(x, "indices"):
            sizes[str(x.indices.dtype)] += x.indices.nbytes
            x = x.values
        owner = backend.owner_of(x)
        nbytes, format = owner.nbytes if whole else x.nbytes, emulated(owner)
        if format is None:
            sizes[str(x.dtype)] += nbytes
        else:  # as many as its numbers would take
            sizes[format.name] += nbytes // x.itemsize * format.bits // 8
    return dict(sizes)


_BITS = {dtype.name: 8 * dtype.itemsize for dtype in HALVES} | {f.name: f.bits for f in FORMATS.values()}


def _in_fp32(measured: Bytes) -> Bytes:
    """Each FP16, BF16 or FP8 number in 4 bytes, no masters; workspace is not known."""
    fp32: Bytes = {role: {} for role in ROLES}
    for role in ("weights", "gradients", "activations", "optimizer"):
        sizes: Counter[str] = Counter()
        for dtype, nbytes in measured[role].items():
            bits = _BITS.get(dtype)
            sizes["float32" if bits else dtype] += nbytes * 32 // bits if bits else nbytes
        fp32[role] = dict(sizes)
    return fp32


def total(sizes: Bytes) -> int:
    """The bytes of all roles but workspace."""
    return sum(sum(sizes.get(role, {}).values()) for role in KEPT)


def _text(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**10:,.1f} KiB" if nbytes < 2**20 else f"{nbytes / 2**20:,.1f} MiB"


# ----------------------------------------------------------------------------------------------------------- predicting


@named
def predict(
    model: Module,
    *inputs: Any,
    policy: Policy = MIXED,
    optimizer: Any = "adam",
    loss: Callable | None = None,
    unscale: bool = False,
    instruments: Iterable[Instrument] = (),
) -> ByteLedger:
    """The bytes that a training step will take under `policy`, and in FP32: a ByteLedger with `predicted` and `fp32`.

    The step runs on the device "meta", where arrays have no memory: full-size models take milliseconds. Build such a
    model there; one that exists is left as it is. Workspace is that of definitions: a fast path may need less.

        with mp.device("meta"):
            model = models.GPT()
        words = np.broadcast_to(0, (2, 1024))
        print(predict(model, words, optimizer="adam"))

    inputs       shapes of floating tensors, or examples: arrays and Tensors, of which only shape and dtype are read
    optimizer    "sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop"; a class or function of parameters;
                 or an Optimizer of this model
    loss         loss(model, *inputs), a Tensor or several; by default all that model(*inputs) returns
    unscale      whether `scaler.unscale_` comes before the step, as for clipping: gradients are FP32 then
    instruments  others to listen to the step under `policy` (Products: which products could run on Tensor Cores). All
                 values are 0 there: what an instrument says of them means nothing, and Exponents raises ValueError

    Sparse gradients are predicted as if no index came twice. TypeError or ValueError for other inputs and optimizers.
    """
    mixed, fp32, result = ByteLedger(), ByteLedger(), ByteLedger()
    for rule, own, others in ((policy, mixed, instruments), (FP32, fp32, ())):
        listening = [own, *others]
        rehearse(model, *inputs, policy=rule, optimizer=optimizer, loss=loss, unscale=unscale, instruments=listening)
    result.predicted, result._baseline, result.optimizers = mixed.measured, fp32.measured, mixed.optimizers
    return result


def rehearse(
    model: Module,
    *inputs: Any,
    policy: Policy,
    optimizer: Any,
    loss: Callable | None,
    unscale: bool,
    instruments: list[Instrument],
) -> None:
    """One training step on arrays without memory, for these instruments; see `predict`."""
    with backend.device("meta"), statistics.set_aside(), unobserved(), use(policy):
        stand_ins = _weightless(model)
        model = policy.cast(copy.deepcopy(model, dict(stand_ins)))
        arguments = [policy.cast(_input(x)) for x in inputs]
        rule = _optimizer(optimizer, model, stand_ins)
        if loss is not None:
            function("predict", "loss", loss)
        with Listener(instruments):
            losses = model(*arguments) if loss is None else loss(model, *arguments)
            sums = [ops.sum(y) if y.ndim else y for y in _tensors(losses) if y.requires_grad]
            if not sums:
                raise ValueError("predict: nothing that the model or `loss` returned depends on its parameters")
            sum(sums[1:], sums[0]).backward()
            if unscale:
                optim.NoLossScaler().unscale_(rule)
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
    if isinstance(x, Tensor):
        x = x.array
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


def _optimizer(optimizer: Any, model: Module, stand_ins: dict[int, Any]) -> Optimizer:
    """The optimizer that is meant, for this model."""
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"predict: expected `optimizer` to be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
        return OPTIMIZERS[optimizer](list(model.parameters()))
    if not isinstance(optimizer, Optimizer):
        return function("predict", "optimizer", optimizer)(list(model.parameters()))
    if strangers := [p for p in optimizer.parameters() if id(p) not in stand_ins]:
        raise ValueError(f"predict: {len(strangers)} parameters of `optimizer` are not the model's")
    rule = copy.copy(optimizer)
    rule.state = {}
    rule.param_groups = [{**g, "params": [stand_ins[id(p)] for p in g["params"]]} for g in optimizer.param_groups]
    return rule
