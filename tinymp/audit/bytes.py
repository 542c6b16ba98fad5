"""The byte ledger: what a training step keeps in memory, by role and dtype."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .. import backend
from ..arguments import named
from ..autograd import Op, Variable
from ..dtypes import HALF, HALVES
from ..gradients import values_of
from ..ops.more.graph import behind
from ..optim.optimizer import Optimizer
from ..parameter import Parameter
from ..precision import current_policy
from ..study.formats import FORMATS
from ..study.operands import emulated
from ..tensor import Tensor
from .listener import Instrument, Place
from .sampling import BLUE, GREEN, PINK, RED, SKY, Told, table

ROLES = ("weights", "masters", "gradients", "activations", "optimizer")
Bytes = dict[str, dict[str, int]]  # role -> dtype -> bytes


class _Training:
    """What was seen under one policy."""

    def __init__(self) -> None:
        self.largest: Bytes = {role: {} for role in ROLES}
        self.parameters: dict[int, weakref.ref[Parameter]] = {}  # Tensors compare element by element
        self.states: weakref.WeakKeyDictionary[Optimizer, dict[str, int]] = weakref.WeakKeyDictionary()


class ByteLedger(Told, Instrument):
    """The bytes of a training by role and dtype, each role at the moment when it was largest.

    weights      the working copies of all parameters that an optimizer or a gradient has shown, or a graph keeps
    masters      their FP32 masters
    gradients    `grad` as an optimizer's step finds it: FP16, but FP32 after `unscale_` (clipping) or several backwards
    activations  what graphs keep for backward when one begins (`kept_by`); not the parameters
    optimizer    the state of the optimizers

    moved      the bytes that ops and updates read and wrote, as if no cache kept any: arguments and results, in
               backward also what was saved (views move nothing); per update gradient, master, state and copy
    by_policy  {policy: {role: {dtype: bytes}}}. A graph and its step count for the policy in use where the graph began
    measured   those of the last policy that stored weights in FP16, else of the last one
    predicted  the same by `predict`, else None
    fp32       the same training in FP32: predicted, or what is measured with each FP16 number in 4 bytes and no masters
    ratio      the sum of all roles in FP32, divided by that here. It is no peak: roles are largest at different moments
    """

    def __init__(self, predicted: Bytes | None = None, fp32: Bytes | None = None) -> None:
        self.predicted, self._predicted_fp32 = predicted, fp32 or {}
        self.moved = 0
        self._trainings: dict[str, _Training] = {}  # per policy
        self._policy, self._now = "", _Training()
        self._graph: weakref.WeakSet[Op] = weakref.WeakSet()  # ops that have run forward and not backward
        self._grows = False  # whether an op was added since the last backward

    # ---- listening

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if place.phase == "forward" and op.needs and not self._grows:
            self._turn()
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
        counts = ("step", "started_at", "mu_product")  # numbers, which a GPU may hold
        state = [v for arrays in optimizer.state.values() for name, v in arrays.items() if name not in counts]
        self._now.states[optimizer] = _sizes(state)
        self._note("optimizer", sum((Counter(s) for s in self._now.states.values()), Counter()))
        self._measure_parameters()
        if result:
            updated = [p for p in optimizer.parameters() if p.grad_array is not None]
            read = [*(p.grad_array for p in updated), *(p.array for p in updated), *state, *state]
            self.moved += sum(_sizes(read).values()) + sum(2 * p.master_nbytes or p.array.nbytes for p in updated)

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
        return _in_fp32(measured) if total(measured) or not self._predicted_fp32 else self._predicted_fp32

    @property
    def ratio(self) -> float:
        """How many times as many bytes the training keeps in FP32; NaN where it keeps none."""
        own = total(self._shown)
        return total(self.fp32) / own if own else float("nan")

    @property
    def _shown(self) -> Bytes:
        """What was measured, else predicted."""
        measured = self.measured
        return measured if total(measured) else self.predicted or {}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        ratio, measured = self.ratio, self.measured
        return {
            "roles": list(ROLES),
            "measured": measured if any(measured.values()) else {},
            "by_policy": self.by_policy,
            "predicted": self.predicted,
            "fp32": self.fp32,
            "ratio": None if ratio != ratio else ratio,
            "moved": self.moved,
        }

    def parts(self) -> list[str]:
        own, fp32 = self._shown, self.fp32
        if not total(fp32):
            return ["no training was seen"]
        rows: list[tuple[str, ...]] = [("role", "dtype", "bytes", "in FP32")]
        for role in ROLES:
            whole = _text(sum(fp32.get(role, {}).values()))
            for dtype, size in sorted(own.get(role, {}).items()) or [("-", 0)]:
                rows.append((role, dtype, _text(size), whole))
                role = whole = ""
        rows.append(("all", "", _text(total(own)), _text(total(fp32))))
        lines: list[str] = [table(rows, left=(0, 1), most=None), f"FP32 / this: {self.ratio:.2f}"]
        if self.moved:
            lines.append(f"ops and updates read and wrote {_text(self.moved)}")
        kept = {policy: _text(total(b)) for policy, b in self.by_policy.items()}
        if len(kept) > 1:
            everyone = ", ".join(f"{policy} {size}" for policy, size in kept.items())
            lines.append(f"{len(kept)} policies ran ({everyone}); this is {self._asked[0]}.")
        return lines

    def draw(self, axes: Any) -> None:
        """Two stacked bars on matplotlib's axes, FP32 and this, in MiB by role."""
        if not total(self.fp32):
            axes.set_title("Bytes: no training was seen")
            return
        bars = {"FP32": self.fp32, "this": self._shown}
        bottom = [0.0, 0.0]
        for role, color in zip(ROLES, (BLUE, SKY, RED, GREEN, PINK), strict=True):
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
    """Each FP16, BF16 or FP8 number in 4 bytes, no masters."""
    fp32: Bytes = {role: {} for role in ROLES}
    for role in ("weights", "gradients", "activations", "optimizer"):
        sizes: Counter[str] = Counter()
        for dtype, nbytes in measured[role].items():
            bits = _BITS.get(dtype)
            sizes["float32" if bits else dtype] += nbytes * 32 // bits if bits else nbytes
        fp32[role] = dict(sizes)
    return fp32


def total(sizes: Bytes) -> int:
    """The bytes of all roles."""
    return sum(sum(sizes.get(role, {}).values()) for role in ROLES)


def _text(nbytes: int) -> str:
    return f"{nbytes / 2**10:,.1f} KiB" if nbytes < 2**20 else f"{nbytes / 2**20:,.1f} MiB"


# ------------------------------------------------------------------------------------------------ what graphs keep


@named
def saved_nbytes(root: Variable) -> int:
    """The bytes that the graph behind `root` keeps for backward: see `kept_by`."""
    if not isinstance(root, Variable):
        raise TypeError(f"saved_nbytes: expected a Tensor, got {type(root).__name__}")
    return sum(backend.owner_of(x).nbytes for x in kept_by(behind(root.grad_fn)).values())


def kept_by(ops: Iterable[Any]) -> dict[int, Any]:
    """{owner's id: array} of the arrays that ops keep until backward, activations and statistics: one per memory block.
    Leaves that require gradients (weights) are left out, and so are ops whose backward has run.
    """
    kept: dict[int, Any] = {}
    leaves: set[int] = set()
    for op in ops:
        if op.saved is None:
            continue
        leaves |= {id(backend.owner_of(edge.array)) for edge in op.edges if hasattr(edge, "array")}
        for value in vars(op).values():  # `saved`, `statistics`, and other attributes that forward has set
            for x in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(x, "nbytes") and hasattr(x, "strides"):
                    kept[id(backend.owner_of(x))] = x
    return {owner: x for owner, x in kept.items() if owner not in leaves}
