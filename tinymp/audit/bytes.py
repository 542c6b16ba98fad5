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
from .sampling import BLUE, GREEN, PINK, RED, SKY, Told, bars, table

ROLES = {"weights": BLUE, "masters": SKY, "gradients": RED, "activations": GREEN, "optimizer": PINK}  # and colours
Bytes = dict[str, dict[str, int]]  # role -> dtype -> bytes


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
    fp32       the same training in FP32: each FP16 number in 4 bytes, and no masters
    ratio      the sum of all roles in FP32, divided by that here. It is no peak: roles are largest at different moments

    A training on the device "meta", where arrays have no memory, takes the same bytes: before a model is too large.
    """

    def __init__(self) -> None:
        self.moved = 0
        self._largest: dict[str, Bytes] = {}  # by policy, as are these:
        self._parameters: dict[str, weakref.WeakValueDictionary[int, Parameter]] = {}
        self._states: weakref.WeakKeyDictionary[Optimizer, tuple[str, dict[str, int]]] = weakref.WeakKeyDictionary()
        self._policy = ""  # of the graph that grows, or was the last one
        self._graph: weakref.WeakSet[Op] = weakref.WeakSet()  # ops that have run forward and not backward
        self._grows = False  # whether an op was added since the last backward

    # ---- listening

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        self.moved += _passed(inputs, (*outputs, *((op.saved or ()) if place.phase == "backward" else ())))
        if place.phase == "forward":
            if op.needs:
                self._policy = self._policy if self._grows else current_policy().name
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
        self._states[optimizer] = self._policy, _sizes(state)
        own = [Counter(sizes) for policy, sizes in self._states.values() if policy == self._policy]
        self._note("optimizer", sum(own, Counter()))
        self._measure_parameters()
        if result:
            updated = [p for p in optimizer.parameters() if p.grad_array is not None]
            read = [*(p.grad_array for p in updated), *(p.array for p in updated), *state, *state]
            self.moved += sum(_sizes(read).values()) + sum(2 * p.master_nbytes or p.array.nbytes for p in updated)

    # ---- what was found

    @property
    def by_policy(self) -> dict[str, Bytes]:
        """{policy: {role: {dtype: bytes}}} of the policies under which something was kept, in their order."""
        if self._grows:
            self._measure_graph()
        self._measure_parameters()
        return self._largest

    @property
    def measured(self) -> Bytes:
        """{role: {dtype: bytes}}."""
        found = [*self.by_policy.values()]  # an FP32 baseline in the same audit is not asked about
        half = [one for one in found if HALF & one["weights"].keys()]
        return (half or found or [{role: {} for role in ROLES}])[-1]

    @property
    def fp32(self) -> Bytes:
        """The same training in FP32."""
        fp32: Bytes = {role: {} for role in ROLES}
        for role, sizes in self.measured.items():
            for dtype, nbytes in sizes.items() if role != "masters" else ():
                bits = _BITS.get(dtype)
                name, nbytes = ("float32", nbytes * 32 // bits) if bits else (dtype, nbytes)
                fp32[role][name] = fp32[role].get(name, 0) + nbytes
        return fp32

    @property
    def ratio(self) -> float:
        """Bytes that the training keeps in FP32 divided by those that it keeps here; NaN if it keeps none."""
        own = total(self.measured)
        return total(self.fp32) / own if own else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        own = {name: getattr(self, name) for name in ("measured", "by_policy", "fp32", "moved")}
        return own | {"ratio": self.ratio if total(self.measured) else None}

    def parts(self) -> list[str]:
        own, fp32 = self.measured, self.fp32
        if not total(own):
            return ["no training was seen"]
        rows: list[tuple[str, ...]] = [("role", "dtype", "bytes", "in FP32")]
        for role in ROLES:
            whole = _text(sum(fp32[role].values()))
            for dtype, size in sorted(own[role].items()) or [("-", 0)]:
                rows.append((role, dtype, _text(size), whole))
                role = whole = ""
        rows.append(("all", "", _text(total(own)), _text(total(fp32))))
        more = [f"ops and updates read and wrote {_text(self.moved)}"] * bool(self.moved)
        return [table(rows, left=(0, 1), most=None), f"FP32 / this: {self.ratio:.2f}", *more]

    def draw(self, axes: Any) -> None:
        """Two bars on matplotlib's axes, FP32 and this, in MiB by role."""
        both = self.fp32, self.measured
        sizes = {role: ([sum(b[role].values()) / 2**20 for b in both], color) for role, color in ROLES.items()}
        bars(axes, ["FP32", "this"], sizes)
        axes.set(xlabel="MiB", title=f"Bytes of a training step: FP32 / this = {self.ratio:.2f}")

    # ---- measuring

    def _known(self, parameters: Iterable[Parameter]) -> None:
        self._alive.update({id(p): p for p in parameters})

    @property
    def _alive(self) -> weakref.WeakValueDictionary[int, Parameter]:
        return self._parameters.setdefault(self._policy, weakref.WeakValueDictionary())

    def _measure_parameters(self) -> None:
        parameters = [*self._alive.values()]
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
        for p in self._alive.values():
            kept.pop(id(backend.owner_of(p.array)), None)
        self._note("activations", _sizes(kept.values(), whole=True))

    def _note(self, role: str, sizes: dict[str, int]) -> None:
        if (size := sum(sizes.values())) > 0:
            largest = self._largest.setdefault(self._policy, {role: {} for role in ROLES})
            largest[role] = dict(sizes) if size > sum(largest[role].values()) else largest[role]


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
