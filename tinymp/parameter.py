"""Parameter: a weight with its FP32 master and its working copy (MPT section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import backend
from .arguments import flag, named_by_class
from .autograd import Array, Variable
from .backend.extras import Held
from .dtypes import FLOATING, HALVES, float32, require_fit
from .events import here, tell
from .gradients import put, values_of, with_values
from .precision import FP32, UPDATE, Policy, store, to_dtype
from .tensor import Tensor, real_array, tensor

_ARRAY: Any = Variable.__dict__["array"]  # the slot itself, which Parameter.array guards


class Weights(Tensor):
    """A master and its working copy outside the graph, as `Parameter.data` gives them.

    Writing into it (`copy_`, `zero_`, `w[...] = value`, nn.init) changes both.
    """

    __slots__ = ("_master", "name", "normalisation", "policy")
    kind = UPDATE
    _master: Array | None
    name: str | None
    normalisation: bool
    policy: Policy

    def _same(self) -> Weights:
        """The same two arrays and their count of changes, outside the graph."""
        made = Weights.__new__(Weights)
        Variable.__init__(made, self.array, False)
        made._version, made._master = self._version, self._master
        made.name, made.policy, made.normalisation = self.name, self.policy, self.normalisation
        return made

    apart: Any = property(lambda self: not self.requires_grad, doc="See Variable.")
    data = property(_same, doc="The same two arrays.")
    detach = _same
    weight = property(lambda self: None if self._master is None else self, doc="Itself, if it has a master.")

    wide, selected = Held("nn.more.weights.wide"), Held("nn.more.weights.selected")
    __setstate__ = Held("nn.more.weights.__setstate__")

    @property
    def numbers(self) -> Array:
        """The master; read-only if there is a working copy, which a change would bypass."""
        if self._master is None or backend.of(self.array) is not backend.cpu:
            return self.master
        numbers = self._master.view()
        numbers.flags.writeable = False
        return numbers

    def lock(self, locked: bool = True) -> None:
        """Make a working copy read-only, or writeable again. No effect on a GPU: CuPy has no read-only arrays."""
        if backend.of(self.array) is backend.cpu:
            if self._master is not None:  # a view of a copy is writeable only if the copy is
                backend.owner_of(self.array).flags.writeable = not locked
            self.array.flags.writeable = self._master is None or not locked

    @property
    def master(self) -> Array:
        """The FP32 master, or `array` if the policy keeps none."""
        return self.array if self._master is None else self._master

    @property
    def master_nbytes(self) -> int:
        """Size of the master in bytes; 0 without a master."""
        return 0 if self._master is None else self._master.nbytes

    def write(self, value: Any, rounded: Any = None) -> None:
        """Set the weight, or rows of it, to `value` (FP32): unrounded in the master; in the working copy rounded once,
        or the `rounded` value if it is given.

        Without a master this rounding loses small updates (MPT section 3.1). All or nothing: everything that can fail
        comes first, and an interrupt between the two writes is raised after both.
        """
        if here.inside:
            tell("written", self, value)
        rounded = with_values(value, store(values_of(value), like=self.array)) if rounded is None else rounded
        self._version[0] += 1
        try:
            self._put(value, rounded)
        except BaseException:
            self._put(value, rounded)
            raise

    def _put(self, value: Any, rounded: Any) -> None:
        self.lock(False)
        if self._master is not None:
            put(self._master, value)
        put(self.array, rounded)
        self.lock()

    def overwrite(self, how: str, source: Any) -> Weights:
        """`write` for a user's value. ValueError unless its shape fits and its finite values stay finite."""
        self.require_outside_graph(how, source)
        value = real_array(how, source)
        if value.shape != self.shape:
            raise ValueError(f"{how}: expected shape {self.shape}, got {value.shape}")
        require_fit(how, value, self.dtype)  # on the value's device: CuPy compiles a kernel for each comparison
        self.write(backend.of(self.array).asarray(to_dtype(value, float32 if self.dtype in HALVES else self.dtype)))
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self.require_outside_graph("setitem", value)
        full = Tensor(self.master.copy())
        full[index] = value
        self.overwrite("setitem", full)


class Parameter(Weights):
    """A leaf that an optimizer updates.

    array   the working copy, in the policy's storage, which ops read. It is read-only if there is a master: a change of
            the copy alone would be lost at the next step
    data    both arrays outside the graph (Weights), as in PyTorch. `p.data.copy_(x)`, `p.data[...] = x` and nn.init
            write into both, as `p.copy_(x)` and `p[...] = x` do under `no_grad`. `p.data = x` (real numbers of this
            shape) makes two new arrays, copies of x (in PyTorch p takes the memory of x)
    master  the FP32 array that updates go to, never rounded. Under an FP32 policy, and under one that keeps no
            master, it is `array` itself
    name    its path in the model ("conv1.weight"), once the model has named it; for messages
    policy  the policy that cast it last

    normalisation: True for a parameter of a normalisation layer, which a policy may keep in FP32 (NVG section 2.3.1).
    TypeError unless data is floating.
    """

    __slots__ = ()
    apart = False

    @named_by_class
    def __init__(self, data: Any, requires_grad: bool = True, *, normalisation: bool = False) -> None:
        super().__init__(tensor(data), requires_grad=requires_grad)
        if self.dtype not in FLOATING:
            raise TypeError(f"Parameter: expected floating data, got {self.dtype}")
        self._master = self.name = None
        self.policy = FP32
        self.normalisation = flag("Parameter", "normalisation", normalisation)

    def _assign(self, value: Any) -> None:
        """`p.data = value`: make a new master and copy, exact for other Weights; the arrays that ops saved stay."""
        if not hasattr(self, "requires_grad"):  # being made
            _ARRAY.__set__(self, value)
            return
        x = value.master if isinstance(value, Weights) else real_array("Parameter.data", value)
        if x.shape != self.shape:
            raise ValueError(f"Parameter.data: expected shape {self.shape}, got {x.shape}; make a new Parameter")
        require_fit("Parameter.data", x, self.dtype)
        full = backend.of(self.array).asarray(to_dtype(x, self.master.dtype)).copy()
        if here.inside:
            tell("written", self, full)
        new = {"array": full} if self._master is None else {"array": store(full, like=self.array), "_master": full}
        replace([(self, {**new, "_version": [0]})])  # a new count of changes: ops saved the old array

    array = property(_ARRAY.__get__, _assign, doc="The working copy (see the class).")
    data = property(Weights._same, _assign, doc="Master and copy outside the graph (see Weights).")

    def cast_storage(self, policy: Policy) -> Parameter:
        """Take the policy's storage. FP32 to FP16 rounds the copy once; back to FP32 is the exact master."""
        replace([(self, self.cast_to(policy))])
        return self

    def cast_to(self, policy: Policy) -> dict[str, Any]:
        """The attributes with which `replace` gives it the policy's storage. Nothing changes yet."""
        full, storage = self.master, storage_of(policy, self.normalisation)
        master = to_dtype(full, float32) if policy.master and storage in HALVES else None
        if master is self.array:
            master = master.copy()  # what shares the old array (`p.data`, `p.numpy()`) does not know of a copy
        new = {"array": to_dtype(full, storage), "_master": master, "policy": policy}
        # ops that saved the old array keep its version counter
        return {**new, "_version": [0], "grad_array": None, "grad_scale": 1.0}

    moved_to, __repr__ = Held("nn.more.weights.moved_to"), Held("nn.more.weights.__repr__")


def replace(changes: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """Set attributes of tensors, parameters and hooks, all or none: an exception halfway undoes what was set."""
    before = [(x, {name: getattr(x, name) for name in new}) for x, new in changes]
    try:
        for x, new in changes:
            _assign(x, new)
    except BaseException:
        for x, old in before:
            _assign(x, old)
        raise


def _assign(x: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if name == "array":
            _ARRAY.__set__(x, value)  # bypasses the guard of Parameter.array
        else:
            setattr(x, name, value)
    if isinstance(x, Parameter):
        x.lock()


def storage_of(policy: Policy, normalisation: bool) -> np.dtype:
    """A policy's dtype for parameters and floating buffers, of a normalisation layer or of any other."""
    return policy.norm if normalisation and policy.storage in HALVES else policy.storage
