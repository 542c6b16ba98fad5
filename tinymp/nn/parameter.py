"""Parameter: a weight with its FP32 master and its working copy (MPT section 3.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..precision import FP32, UPDATE, Policy, float16, float32, store, to_dtype
from ..tensor import Array, Tensor, _raw_index


class Parameter(Tensor):
    """A leaf that an optimizer updates.

    data    the working copy, in the policy's storage; what ops read
    master  the FP32 array that updates go to, never rounded. Under an FP32 policy, and under one that keeps no
            master, it is `data` itself
    name    its path in the model ("conv1.weight"), once the model has named it; for messages
    policy  the policy that cast it last

    normalisation: whether it belongs to a normalisation layer, whose parameters a policy may keep in FP32 (NVG
    section 2.3.1). TypeError unless data is floating.
    """

    __slots__ = ("_master", "name", "normalisation", "policy")
    kind = UPDATE

    def __init__(self, data: Any, requires_grad: bool = True, *, normalisation: bool = False) -> None:
        super().__init__(data, requires_grad=requires_grad)
        if self.dtype.kind != "f":
            raise TypeError(f"Parameter: expected floating data, got {self.dtype}")
        self._master: Array | None = None
        self.name: str | None = None
        self.policy: Policy = FP32
        self.normalisation = normalisation

    @property
    def master(self) -> Array:
        """The FP32 master (or `data`, where the policy keeps none)."""
        return self.data if self._master is None else self._master

    @property
    def master_nbytes(self) -> int:
        """Bytes of the master copy alone; 0 where `data` is all there is."""
        return 0 if self._master is None else self._master.nbytes

    def write(self, value: Array) -> None:
        """Set the weight to `value`: unrounded into the master, and rounded once into the working copy.

        Without a master this rounding is where small updates are lost (MPT section 3.1).
        """
        if self._master is not None:
            self._master[...] = value
        self.data[...] = store(value, like=self.data)
        self._version += 1

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        if self._master is not None:
            self._master[_raw_index(index)] = np.asarray(value)

    def copy_(self, source: Any) -> Tensor:
        """Overwrite the weight with `source`: exactly in the master, rounded in `data`. Only under `no_grad`."""
        super().copy_(source)
        if self._master is not None:
            self._master[...] = np.asarray(source)
        return self

    def zero_(self) -> Tensor:
        """Overwrite the weight with zeros. Only under `no_grad`."""
        return self.copy_(np.zeros_like(self.data))

    def _cast_storage(self, policy: Policy) -> Parameter:
        """Take the policy's storage. FP32 to FP16 rounds the copy once; back to FP32 is the exact master."""
        full = self.master
        storage = storage_of(policy, self.normalisation)
        self.data = to_dtype(full, storage)
        keeps = policy.master and storage == float16
        self._master = to_dtype(full, float32) if keeps else None
        self.policy = policy
        self._version += 1
        self.zero_grad()
        return self

    def __repr__(self) -> str:
        master = f", master {self._master.dtype}" if self._master is not None else ""
        name = f"{self.name}: " if self.name else ""
        values = np.array2string(self.data, precision=4, threshold=20, prefix="Parameter(")
        return f"Parameter({name}{values}, dtype={self.dtype}{master}, device={self.device})"


def storage_of(policy: Policy, normalisation: bool) -> np.dtype:
    """The dtype that a policy gives to parameters and floating buffers, of a normalisation layer or any other."""
    return policy.norm if normalisation and policy.storage == float16 else policy.storage


def parameter(*shape: int, normalisation: bool = False) -> Parameter:
    """A Parameter of zeros for a new layer, in FP32: models get another storage by `policy.cast`."""
    return Parameter(np.zeros(shape, FP32.storage), normalisation=normalisation)
