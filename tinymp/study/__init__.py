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
from ..precision import BF16, MIXED, Array, Policy, Study
from . import operands
from .formats import SCALED
from .sums import Aligned, Fp16, Split

__all__ = [
    "FP8",
    "FP8_HOPPER",
    "FP16_ACCUMULATE",
    "FP16_REDUCTIONS",
    "FP16_VOLTA",
    "POLICIES",
    "PURE_FP16",
    "Arithmetic",
    "change",
]


@dataclass(frozen=True)
class Arithmetic(Study):
    """One decision about sums and operands per field; those of FP16 storage, but for `aligned` and `operands`.

    accumulate  dtype of the accumulator of a dot product: float16 or float32 (MPT section 3.3)
    chunk       with an FP16 accumulator: how many products are summed before each rounding (NVG section 2.2: a
                Tensor Core step is a 4 x 4 x 4 product). On a CPU the bits depend on the operands alone for chunks of
                up to 16; BLAS sums longer ones in FP32, in an order that follows the shapes, also that of the batch
    reduce      dtype of the accumulator of a sum or mean (MPT section 3.3, NVG section 2.3.1)
    split       into how many parts the inner dimension of a product is cut. Each part is summed by itself and rounded
                to storage before the parts are added up: "split-K" with cuBLAS's reduced-precision reduction. 1: uncut
    aligned     how many bits a Tensor Core keeps of `chunk` products and its accumulator once they are aligned to the
                largest of them; what is cut off is lost, not rounded. 24 on Volta, which has no guard bits (Fasi et al.
                2021, PeerJ CS 7:e330), about 14 for FP8 on Hopper (DeepSeek-V3, arXiv 2412.19437, 3.3.2). 0: exact
    promote     with `aligned`: after how many products such a sum is added to one in FP32 (ibid.: 128). 0: never
    operands    the formats (names of study/formats.py's SCALED) to which the operands of DOT ops are rounded: what
                forward reads, and gradients. FP8 has E4M3 and E5M2 (Micikevicius et al. 2022, arXiv 2209.05433). It is
                emulated: the numbers lie in arrays of the storage dtype. Arrays with one axis stay (biases), and the
                gradient of a bias sums what was not rounded. Formats with a scale ("e4m3-tensor", "mxfp8") saturate: a
                finite number that is too large becomes the largest. In the others ("e4m3") it becomes NaN or infinite.
                What is not finite stays so (NaN in E4M3), and the loss scaler hears of it. (): none
    only        names of the ops ("softmax") to which `accumulate`, `split`, `aligned` and `reduce` apply; a loss may
                be one of them. Empty: to every op but losses
    """

    accumulate: np.dtype = float32
    chunk: int = 4
    reduce: np.dtype = float32
    split: int = 1
    aligned: int = 0
    promote: int = 0
    operands: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("accumulate", "reduce"):
            value = getattr(self, field)
            if not isinstance(value, (str, type, np.dtype)) or value not in (float16, float32):
                raise ValueError(f"study: expected {field} to be one of float16, float32, got {value!r}")
            object.__setattr__(self, field, np.dtype(value))
        for field, least in (("chunk", 1), ("split", 1), ("aligned", 0), ("promote", 0)):
            if not isinstance(value := getattr(self, field), int) or isinstance(value, bool) or value < least:
                raise ValueError(f"study: expected {field} to be an integer of {least} or more, got {value!r}")
        if self.aligned > 24 or self.promote % self.chunk:
            raise ValueError(
                f"study: expected aligned up to FP32's 24 bits and promote to be a multiple of chunk, "
                f"got aligned={self.aligned}, promote={self.promote}, chunk={self.chunk}"
            )
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
        """The accumulator in the place of a primitive's own; see `Study`."""
        studied = self._applies(like.dtype)
        if field == "accumulate" and self.aligned and (studied if self.only else like.dtype in HALVES):
            return Aligned(self.aligned, self.chunk, self.promote)
        if not studied:
            return None
        fp16 = Fp16(self.chunk) if getattr(self, field) == float16 else None
        return Split(self.split, fp16) if field == "accumulate" and self.split > 1 else fp16

    def _applies(self, dtype: np.dtype) -> bool:
        """True for a sum over FP16 operands of this dtype, in the ops that `only` names."""
        if not self.only:
            return dtype == float16
        op = here.running
        named = getattr(op, "name", None) in self.only and getattr(op, "storage", None) == float16
        return named and dtype in (float16, float32)  # a loss sums FP32 values

    def operand(self, x: Array, gradient: bool) -> Array:
        """x as a DOT op reads it; see `Study`."""
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
    study = replace(policy.study or Arithmetic(), **changes) if changes else policy.study  # type: ignore[type-var]
    made = replace(policy, **own, study=None if study == Arithmetic() else study)
    bf16 = BF16 is not None and made.storage == BF16.storage
    for field, plain in (("accumulate", float32), ("reduce", float32), ("split", 1)):
        if bf16 and (value := getattr(study, field, plain)) != plain:
            raise ValueError(f"Policy: expected {field}={plain} with BF16 storage, got {value}, which FP16 alone has")
    return made


SUMS = ("accumulate", "reduce")  # fields of both, which here are the study's

FP16_ACCUMULATE = change(MIXED, name="FP16_ACCUMULATE", accumulate=float16)
FP16_REDUCTIONS = change(MIXED, name="FP16_REDUCTIONS", reduce=float16)
FP16_VOLTA = change(MIXED, name="FP16_VOLTA", aligned=24)
FP8 = BF16 and change(BF16, name="FP8", operands=("e4m3-tensor", "e5m2-tensor"))
FP8_HOPPER = FP8 and change(FP8, name="FP8_HOPPER", aligned=14, chunk=32, promote=128)
PURE_FP16 = change(
    MIXED, name="PURE_FP16", accumulate=float16, reduce=float16, master=False, norm=float16, state=float16
)
_ALL = (FP8, FP16_ACCUMULATE, FP16_REDUCTIONS, PURE_FP16, FP16_VOLTA, FP8_HOPPER)
POLICIES = {**precision.POLICIES, **{p.name: p for p in _ALL if p is not None}}
