"""Studies: other accumulators in the place of the primitives' FP32 ones, and other formats for what products read.

    policy = mp.study.change(mp.MIXED, name="MINE", accumulate=np.float16, chunk=4)
    with mp.use(policy):
        ...

Under a study every op runs as it is defined: what it computes does not depend on blocks, threads or fast paths.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .. import precision
from ..dtypes import FLOATING, HALVES, float16, float32, float64
from ..events import here
from ..precision import BF16, MIXED, TF32, Array, Policy, current_policy
from . import operands
from .formats import SCALED
from .sums import Fp16, Split, TensorCore
from .tensor_core import find

__all__ = [
    "BF16_AMPERE",
    "BF16_HOPPER",
    "FP8",
    "FP8_ADA",
    "FP8_BLACKWELL",
    "FP8_HOPPER",
    "FP8_HOPPER_FAST",
    "FP16_ACCUMULATE",
    "FP16_AMPERE",
    "FP16_HOPPER",
    "FP16_REDUCTIONS",
    "FP16_SUMS_AMPERE",
    "FP16_SUMS_HOPPER",
    "FP16_SUMS_VOLTA",
    "FP16_VOLTA",
    "POLICIES",
    "PURE_FP16",
    "TF32_AMPERE",
    "Arithmetic",
    "change",
]


@dataclass(frozen=True)
class Arithmetic:
    """One decision about sums and operands per field; those of FP16 storage, but for `tensor_core` and `operands`.

    accumulate  dtype of the accumulator of a dot product: float16 or float32 (MPT section 3.3)
    chunk       with an FP16 accumulator: how many products are summed before each rounding (NVG section 2.2: a Tensor
                Core step is a 4 x 4 x 4 product). On a CPU BLAS sums chunks beyond 16 in FP32, in an order of its own
    reduce      dtype of the accumulator of a sum or mean (MPT section 3.3, NVG section 2.3.1)
    split       into how many parts the inner dimension of a product is cut. Each is summed by itself and rounded to
                storage before they are added up: "split-K" with cuBLAS's reduced-precision reduction. 1: uncut
    tensor_core the architecture whose Tensor Cores sum the products, bit for bit: a name of tensor_core.py's
    ARCHITECTURES.
                Applies to operands of the storage dtype; those of FP32 storage become TF32, to nearest with
                `Policy.tf32` (as cuBLAS does), else cut off (as the instruction does). "": none
    promote     with `tensor_core`: after how many products such a sum is added to one in FP32 and begins again, in
                software (DeepSeek-V3, arXiv 2412.19437, 3.3.2: 128, for FP8 on Hopper). 0: never
    operands    the formats (names of study/formats.py's SCALED) to which the operands of DOT ops are rounded: what
                forward reads, and gradients (FP8: Micikevicius et al. 2022, arXiv 2209.05433). It is emulated, in
                arrays of the storage dtype. Arrays with one axis stay (biases), and the gradient of a bias sums what
                was not rounded. Formats with a scale ("e4m3-tensor", "mxfp8") saturate; in the others ("e4m3") a finite
                number that is too large becomes NaN or infinite. What is not finite stays so (NaN in E4M3). (): none
    only        names of the ops ("softmax") to which `accumulate`, `split`, `tensor_core` and `reduce` apply; a loss
                may be one of them. Empty: to every op but losses
    """

    accumulate: np.dtype = float32
    chunk: int = 4
    reduce: np.dtype = float32
    split: int = 1
    tensor_core: str = ""
    promote: int = 0
    operands: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("accumulate", "reduce"):
            value = getattr(self, field)
            if not isinstance(value, (str, type, np.dtype)) or value not in (float16, float32):
                raise ValueError(f"study: expected {field} to be one of float16, float32, got {value!r}")
            object.__setattr__(self, field, np.dtype(value))
        for field, least in (("chunk", 1), ("split", 1), ("promote", 0)):
            if not isinstance(value := getattr(self, field), int) or isinstance(value, bool) or value < least:
                raise ValueError(f"study: expected {field} to be an integer of {least} or more, got {value!r}")
        two = isinstance(self.operands, tuple) and len(self.operands) in (0, 2)
        if not two or not all(name in SCALED for name in self.operands):
            raise ValueError(
                f"study: expected operands to be () or a tuple of two of {', '.join(SCALED)}, got {self.operands!r}"
            )
        if not isinstance(self.only, tuple) or not all(isinstance(name, str) for name in self.only):
            raise ValueError(f"study: expected only to be a tuple of names of ops, got {self.only!r}")

    def __str__(self) -> str:
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return ", ".join(
            [f"{name}={value}" for name, value in changed.items()] + ["emulated"] * ("operands" in changed)
        )

    def accumulator(self, field: str, like: Array) -> Any:
        """An accumulator for `gemm` ("accumulate") or `reduce` ("reduce") over operands like `like`, with a `name` and
        the methods product, reduce, add and scatter_add; None leaves the primitive's own.
        """
        studied = self._applies(like.dtype)
        if field == "accumulate" and self.tensor_core:
            policy = current_policy()
            return self.sums_of(policy.storage) if (studied if self.only else like.dtype == policy.storage) else None
        if not studied:
            return None
        fp16 = Fp16(self.chunk) if getattr(self, field) == float16 else None
        return Split(self.split, fp16) if field == "accumulate" and self.split > 1 else fp16

    def sums_of(self, storage: np.dtype) -> TensorCore:
        """The Tensor Cores' sums of operands in this storage. ValueError where the architecture has none."""
        kinds = [SCALED[name] for name in self.operands]
        if any(kind.scaling == "block" for kind in kinds):
            raise ValueError(
                f"study: expected operands of one scale per array or of none with tensor_core, got {self.operands}"
            )
        fp8 = tuple(kind.format.name for kind in kinds)
        stored = {float16: "fp16", float32: "tf32"}.get(storage, "bf16")
        accumulate = "fp16" if self.accumulate == float16 else "fp32"
        unit = find(self.tensor_core, fp8 or (stored, stored), accumulate)
        if self.promote % unit.products:
            raise ValueError(
                f"study: expected promote to be a multiple of {self.tensor_core}'s {unit.products} products, "
                f"got {self.promote}"
            )
        scaled = any(kind.scaling == "tensor" for kind in kinds)
        return TensorCore(self.tensor_core, accumulate, stored, fp8, scaled, self.promote)

    def _applies(self, dtype: np.dtype) -> bool:
        """True for a sum over FP16 operands of this dtype, in the ops that `only` names."""
        if not self.only:
            return dtype == float16
        op = here.running
        named = getattr(op, "name", None) in self.only and getattr(op, "storage", None) == float16
        return named and dtype in (float16, float32)  # a loss sums FP32 values

    def operand(self, x: Array, gradient: bool) -> Array:
        """x as a DOT op reads it, forward or (gradient) backward."""
        return operands.rounded(x, SCALED[self.operands[gradient]], gradient) if self.operands else x

    def unrounded(self, x: Array) -> Array:
        """The gradient that `operand` made x of."""
        return operands.unrounded(x)


def change(policy: Policy, **changes: Any) -> Policy:
    """The policy with other values of its own fields or of those of `Arithmetic`.

    TypeError for a name that neither has; ValueError for values that do not go together.
    """
    own = {
        name: changes.pop(name) for name in list(changes) if name in policy.__dataclass_fields__ and name not in SUMS
    }
    wrong = changes.keys() - Arithmetic.__dataclass_fields__.keys()
    if wrong:
        known = ", ".join([*policy.__dataclass_fields__, *Arithmetic.__dataclass_fields__])
        raise TypeError(f"study.change: expected fields among {known}, got {', '.join(sorted(wrong))}")
    own |= {name: float32 for name in SUMS if changes.get(name) == float32}  # also where the policy's own is FP64
    study = replace(policy.study or Arithmetic(), **changes) if changes else policy.study
    made = replace(policy, **own, study=None if study == Arithmetic() else study)
    bf16 = BF16 is not None and made.storage == BF16.storage
    for field, plain in (("accumulate", float32), ("reduce", float32), ("split", 1)):
        if bf16 and (value := getattr(study, field, plain)) != plain:
            raise ValueError(f"Policy: expected {field}={plain} with BF16 storage, got {value}, which FP16 alone has")
    if made.study is not None and made.study.tensor_core:
        made.study.sums_of(made.storage)  # raises where the hardware has no such sums
    return made


SUMS = ("accumulate", "reduce")  # fields of both, which here are the study's

FP16_ACCUMULATE = change(MIXED, name="FP16_ACCUMULATE", accumulate=float16)
FP16_REDUCTIONS = change(MIXED, name="FP16_REDUCTIONS", reduce=float16)
FP8 = BF16 and change(BF16, name="FP8", operands=("e4m3-tensor", "e5m2-tensor"))
PURE_FP16 = change(
    MIXED, name="PURE_FP16", accumulate=float16, reduce=float16, master=False, norm=float16, state=float16
)


def _on(name: str, policy: Policy | None, **changes: Any) -> Policy | None:
    """A policy on the Tensor Cores of the architecture that its name ends in."""
    return policy and change(policy, name=name, tensor_core=name.split("_")[-1].lower(), **changes)


FP16_VOLTA, FP16_AMPERE, FP16_HOPPER = (_on(f"FP16_{gpu}", MIXED) for gpu in ("VOLTA", "AMPERE", "HOPPER"))
FP16_SUMS_VOLTA, FP16_SUMS_AMPERE, FP16_SUMS_HOPPER = (
    _on(f"FP16_SUMS_{gpu}", FP16_ACCUMULATE) for gpu in ("VOLTA", "AMPERE", "HOPPER")
)
BF16_AMPERE, BF16_HOPPER = (_on(f"BF16_{gpu}", BF16) for gpu in ("AMPERE", "HOPPER"))
TF32_AMPERE = _on("TF32_AMPERE", TF32)
FP8_ADA, FP8_BLACKWELL = (_on(f"FP8_{gpu}", FP8) for gpu in ("ADA", "BLACKWELL"))
FP8_HOPPER = _on("FP8_HOPPER", FP8, promote=128)
FP8_HOPPER_FAST = FP8_HOPPER and change(FP8_HOPPER, name="FP8_HOPPER_FAST", promote=0)  # cuBLASLt's "fast accumulation"

_SUMS = FP16_ACCUMULATE, FP16_REDUCTIONS, PURE_FP16, FP16_SUMS_VOLTA, FP16_SUMS_AMPERE, FP16_SUMS_HOPPER
_FP16_AND_TF32 = FP16_VOLTA, FP16_AMPERE, FP16_HOPPER, TF32_AMPERE
_FP8_AND_BF16 = FP8, BF16_AMPERE, BF16_HOPPER, FP8_ADA, FP8_HOPPER, FP8_HOPPER_FAST, FP8_BLACKWELL
POLICIES = {**precision.POLICIES, **{p.name: p for p in (*_SUMS, *_FP16_AND_TF32, *_FP8_AND_BF16) if p is not None}}
