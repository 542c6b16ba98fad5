"""Precision: four primitives, the kinds of arithmetic, and the policies. An auditor starts here.

**Ops change precision in the four functions below and nowhere else; FP16, or BF16, is made by one of them, `store`.**
What carries them out rounds as well: NumPy, NumKong and cuBLAS (backend/, fast/), CUDA kernels, which do the work of
several primitives at once by the same rule, and the sums of a study. docs/precision.md lists who asks for a rounding
and who carries it out. tests/guards/test_run_time.py runs every op, and fails where anything else changes precision.

    widen(x)                 FP16 or BF16 -> FP32, exact
    store(x32, like)         FP32 -> the storage dtype, in the memory order of `like`: the one rounding
    gemm(a, b, bias)         matrix product of stored operands, FP32 accumulator, one rounding on store
    reduce(x, axis, how)     sums and means with an FP32 accumulator

`add_to` and `scatter_add`, further down, are `reduce` for sums that an op builds up piece by piece. A conversion that
the user asks for (`to_dtype`) shares the rounding of `store`, `_round`. A policy may hold a study (`tinymp.study`),
which sums in the place of a primitive, or rounds what a product reads.

Storage follows the arrays. On float32 and float64 input (the FP32 baseline, gradient checks) the primitives let values
through and compute in that dtype; the policy in use decides only where the stored operands are FP16 or BF16.

MPT is *Mixed Precision Training* (Micikevicius et al., 2018), NVG is NVIDIA's *Training with Mixed Precision*.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from . import backend
from .backend.extras import held
from .dtypes import FLOATING, HALVES, NAMES, bfloat16, float16, float32, float64, require_fit
from .events import Setting, here, quietly, tell

Array = Any


# ----------------------------------------------------------------------------------------------- the four primitives


def widen(x: Array) -> Array:
    """Primitive 1: FP16 -> FP32, exactly. Everything else (FP32, FP64, a Python number) passes unchanged.

    The result may be x itself: never write into it.
    """
    if getattr(x, "dtype", None) in HALVES:
        return backend.of(x).cast(x, float32)  # rounds: never, FP16 and BF16 -> FP32 is exact
    return x


def store(x32: Array, like: Array) -> Array:
    """Primitive 2: round x32 once to the dtype of `like`, the stored array whose place it takes.

    To nearest, ties to even, or stochastically where the policy in use says so. Values beyond 65 520 become
    infinite: that is how the loss scaler learns of an overflow (NVG section 2.3.2). On a CPU the result has the memory
    order of `like`, where that has its shape: NumPy's own choice, and with it the order of later sums, depends on the
    size, as it computes in temporaries of 256 KiB and more. Without `like`, None: nobody wants that gradient.
    """
    if like is None:
        return None
    dtype, strides = like.dtype, getattr(like, "strides", None)
    if x32.dtype != dtype and dtype in FLOATING:
        if dtype not in HALVES or x32.dtype != float32:
            raise TypeError(f"store: {x32.dtype} would be rounded to {dtype}; only FP32 to FP16 or BF16 rounds here")
        x32 = _round(x32, dtype)
    return x32 if strides is None or strides == x32.strides else _in_order(x32, like)


def _in_order(x: Array, like: Array) -> Array:
    """x in the memory order of `like` if they have one shape and repeat no element; x itself if it has it already."""
    if x.shape != like.shape or not backend.of(x).keeps_order:
        return x
    # from the slowest axis to the fastest; those of length 1 have any strides, and come last
    shape, both = x.shape, (like.strides, x.strides)
    order, own = (sorted(range(x.ndim), key=lambda a: shape[a] != 1 and -abs(s[a])) for s in both)
    if order == own or any(n != 1 and not s * t for n, s, t in zip(shape, *both)):
        return x
    y = backend.of(x).xp.empty([shape[a] for a in order], x.dtype).transpose(np.argsort(order).tolist())
    y[...] = x  # rounds: never, both have one dtype
    return y


def _round(x: Array, dtype: np.dtype) -> Array:
    """x in fewer bits: to nearest, ties to even, or stochastically where the policy says so (FP16 only)."""
    device, nearest = backend.of(x), policy_in_use.get().rounding == "nearest" or dtype != float16
    y = device.cast(x, dtype) if nearest else device.cast_stochastic(x)  # rounds: `store`
    if here.inside:
        tell("rounded", x, y)
    return y


def gemm(a: Array, b: Array, bias: Array | None = None, *, wide: bool = False) -> Array:
    """Primitive 3: the matrix product a @ b (+ bias) of stored operands, accumulated in FP32, rounded once.

    a: (..., m, k), b: (..., k, n), bias: broadcasts to (..., m, n) and is added before the rounding. With `wide` the
    FP32 accumulators come back unrounded, for an op that goes on summing them (col2im) and stores later.

    The library orders the sums, and may add all k products one after the other: |error| <= k 2^-24 sum |a b|, and no
    less is promised. OpenBLAS was seen to be 8e-4 off on 250,000 equal products in a result of 2 x 2 (2e-5 on random
    positive ones), and 6e-5 on two million in one of 64 x 32: weight gradients over as many rows.
    """
    device, policy = backend.of(a), policy_in_use.get()
    studied, tf32 = policy.accumulator("accumulate", a), policy.tf32 and a.dtype == float32
    if here.inside:
        tell("product", a, b, "tf32" if tf32 else studied.name if studied else _accumulator_of(a))
    if studied:
        c = studied.product(a, b)
        c = c if bias is None else c + widen(bias)
    else:  # cuBLAS can round its accumulators by itself, to nearest; a CPU's SGEMM returns them as they are
        rounded = not wide and policy.rounding == "nearest" and not here.inside
        c = device.gemm(a, b, bias, tf32, rounded)  # rounds: FP32 sums, and c if `rounded`
    return c if wide or c.dtype == a.dtype else _round(c, a.dtype)


def reduce(x: Array, axis: int | tuple[int, ...], how: str, like: Array | None = None) -> Array:
    """Primitive 4: "sum", "mean", "max", "min" or "cumsum" of x over axis, with an FP32 accumulator; returned in FP32.

    x: a stored array, or FP32 values computed from one, which is then given as `like`. Reduced axes stay with
    length 1, so that the result broadcasts against x. A loss passes FP32 values and no `like`: a policy makes it
    accumulate in FP16 only where `only` names it.

    Sums are made in blocks, whose sums are then summed, in an order that depends on shape and layout alone. No number
    passes through more than 512 additions: |error| <= 2^-15 sum |x| for up to 6e7 terms, in practice below 1e-6 of it.
    Where nothing cancels, a sum stored in FP16 is within 1 ulp; where terms cancel, as those of a batch norm's dw do,
    the error may be all of the result. (The FP16 accumulator of a study adds one by one.)
    """
    studied = None if how in ("max", "min") else policy_in_use.get().accumulator("reduce", x if like is None else like)
    if here.inside:
        tell("reduced", x, axis, how, studied.name if studied else _accumulator_of(x))
    return (studied or backend.of(x)).reduce(x, axis, how)  # rounds: FP32 sums, by the device or as a study sums


# --------------------------------------------------------------------------------------- what is built from them


def _accumulator_of(x: Array) -> str:
    """The dtype in which values like x are summed where no policy decides otherwise."""
    return str(float32 if x.dtype in HALVES else x.dtype)


def add_to(total: Array, part: Array, like: Any, accumulator: str = "reduce", times: Array | None = None) -> None:
    """total += part (or part * times), in place: one more term of a sum that an op builds up piece by piece.

    They are widened; like is a stored operand. The accumulator is that of the policy's field `reduce`, or `accumulate`
    where the terms are products of a dot product, or sums of them. One of FP16 rounds at every term.
    """
    studied = policy_in_use.get().accumulator(accumulator, like)
    if here.inside:
        tell("added", part, times, studied.name if studied else NAMES[total.dtype])
    part = part if times is None else part * times
    if studied:
        studied.add(total, part)
    else:
        total += part


def scatter_add(n_rows: int, index: Array, rows: Array, like: Any) -> Array:
    """Zeros (n_rows, ...) to which each of `rows` is added at its index, in order; returned in FP32.

    The gradient of every lookup. The accumulator is that of `reduce`: FP32, or FP16 where the policy studies it.
    """
    studied = policy_in_use.get().accumulator("reduce", like)
    if here.inside:
        tell("added", rows, None, studied.name if studied else _accumulator_of(rows))
    if studied:
        return studied.scatter_add(n_rows, index, rows, like)
    return backend.of(rows).scatter_add_rows(n_rows, index, widen(rows))  # rounds: FP32 sums of rows, by the device


def unrounded(dy: Array) -> Array:
    """The gradient that the study of the policy in use rounded to dy (`Arithmetic.operand`), else dy.

    The gradient of a bias is a sum, no product, and so reads what was not rounded, as Transformer Engine does.
    """
    study = policy_in_use.get().study
    return dy if study is None else study.unrounded(dy)


def to_dtype(x: Array, dtype: np.dtype) -> Array:
    """x converted because the user asked for it (`Tensor.to`, `Policy.cast`, a state_dict): exact, or one rounding."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if x.dtype not in FLOATING or dtype not in FLOATING:
        return x.astype(dtype)  # rounds: integers, booleans: what the user asked for
    exact = dtype.itemsize > x.dtype.itemsize
    return backend.of(x).cast(x, dtype) if exact else _round(x, dtype)  # rounds: never, to a wider dtype it is exact


# ---------------------------------------------------------------------------------------- values that the user supplies


def scalar(value: Any, dtype: np.dtype) -> Array:
    """A constant in dtype, rounded to nearest under every policy and unobserved: policies and audits are about results.
    Arrays stay arrays, converted as by `to_dtype`.
    """
    if hasattr(value, "dtype") and not isinstance(value, np.generic):
        return to_dtype(value, dtype)
    # rounds: a constant of the user's, to nearest under every policy
    return quietly(np.asarray(value).astype, dtype)[()]


def fit(what: str, x: Array, dtype: np.dtype) -> Array:
    """`to_dtype` for values that the user supplies: ValueError for one that dtype cannot hold."""
    require_fit(what, x, dtype)
    return to_dtype(x, dtype)


# ------------------------------------------------------------------------------------------------ kinds of arithmetic


class Kind(NamedTuple):
    """The effect of an op on precision. Every op declares one; `Op.apply` holds it to what it `writes`."""

    name: str
    reads: str
    computes: str
    accumulates: str
    writes: str
    source: str


DOT = Kind("DOT", "storage", "exact FP16 x FP16 products", "FP32", "storage", "MPT 3.3, NVG 2.2")
REDUCTION = Kind("REDUCTION", "storage", "FP32", "FP32", "storage; saved statistics FP32", "MPT 3.3, NVG 2.3.1")
POINTWISE = Kind("POINTWISE", "storage", "FP32", "-", "storage", "MPT 3.3")
MOVEMENT = Kind("MOVEMENT", "storage", "nothing", "-", "storage", "-")
LOSS = Kind("LOSS", "storage", "FP32", "FP32", "FP32", "NVG 2.3.1, 5.5")
UPDATE = Kind("UPDATE", "FP32", "FP32", "FP32", "FP32 master, then one rounding to the FP16 copy", "MPT 3.1")
KINDS = (DOT, REDUCTION, POINTWISE, MOVEMENT, LOSS, UPDATE)


# ----------------------------------------------------------------------------------------------------------- policies


_SUMS, _KEPT = (float32, float64), (float16, float32, float64)
_ALLOWED: dict[str, tuple] = {
    **{"storage": FLOATING, "accumulate": _SUMS, "reduce": _SUMS, "norm": _KEPT, "state": _KEPT, "exchange": _KEPT},
    **{"rounding": ("nearest", "stochastic"), "master": (True, False), "tf32": (True, False)},
}


@dataclass(frozen=True)
class Policy:
    """One precision decision per field. `cast` sets the storage of a model; `mp.use` sets the arithmetic.

    name        what `str` and the reports call it
    storage     dtype of weights, activations and gradients (MPT section 3). bfloat16 is FP32's first 16 bits: its
                range, so that no loss needs a scale, and 8 significant bits instead of FP16's 11 (Kalamkar et al. 2019,
                arXiv 1905.12322); on the CPU, pip install -e ".[bf16]"
    accumulate  dtype of the accumulator of a dot product, FP32 or FP64 (MPT section 3.3)
    reduce      dtype of the accumulator of a sum or mean, FP32 or FP64 (MPT section 3.3, NVG section 2.3.1)
    rounding    "nearest" (ties to even) or "stochastic", at every store (MPT v1, appendix A, which rounds only the
                weights stochastically)
    master      keep an FP32 master copy of every weight (MPT section 3.1)
    norm        dtype of the parameters and running statistics of normalisation layers (NVG section 5.4.2)
    state       dtype of the optimizer's state: FP32 (it follows from MPT section 3.1, which does not speak of it)
    exchange    dtype in which FP16 gradients travel between processes, and are added up there (NVG section 3)
    tf32        round the FP32 operands of products to TF32's 11 significant bits, as Tensor Cores of Ampere and later
                can. Never unless a policy says so
    study       None, or a tinymp.study.Arithmetic: FP16 accumulators, split sums, FP8 operands and others
    """

    name: str
    storage: np.dtype = float16
    accumulate: np.dtype = float32
    reduce: np.dtype = float32
    rounding: str = "nearest"
    master: bool = True
    norm: np.dtype = float32
    state: np.dtype = float32
    exchange: np.dtype = float32
    tf32: bool = False
    study: Any = None
    # rule(op, args, options) gives an op's arguments as it takes them (PyTorch's autocast: torch/amp.py); buffers stay
    arguments = None  # type: Any

    def __post_init__(self) -> None:
        for field, allowed in _ALLOWED.items():
            value = getattr(self, field)
            if value is None or value not in allowed:  # None equals float64 in NumPy
                hint = "; for FP16 sums see tinymp.study.change" if allowed is _SUMS else ""
                known = ", ".join(map(str, allowed))
                raise ValueError(f"Policy: expected {field} to be one of {known}, got {value!r}{hint}")
            if isinstance(allowed[0], np.dtype):
                object.__setattr__(self, field, np.dtype(value))
        if self.study is not None and not hasattr(self.study, "accumulator"):
            raise TypeError(f"Policy: expected a study, got {self.study!r}; see tinymp.study.change")
        if self.storage == bfloat16 is not None and self.rounding != "nearest":
            raise ValueError(f"Policy: expected rounding='nearest' with BF16 storage, got {self.rounding!r}")

    def __str__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)[1:] if getattr(self, f.name) != f.default}
        changed = [str(value) if name == "study" else f"{name}={value}" for name, value in values.items()]
        return f"{self.name}({', '.join(changed) or f'storage={self.storage}, FP32 accumulators and masters'})"

    @property
    def usual(self) -> bool:
        """True if it sums in FP32, without a study, and rounds to nearest: what fast paths do. See `plain`."""
        return self.accumulate == self.reduce == float32 and self.rounding == "nearest" and self.study is None

    def accumulator(self, field: str, like: Array) -> Any:
        """A study's accumulator for "accumulate" or "reduce", or that in FP64; None: the primitive's own."""
        if self.study is not None and (studied := self.study.accumulator(field, like)) is not None:
            return studied
        return held("precision.Fp64") if getattr(self, field) == float64 and like.dtype in HALVES else None

    def cast(self, target: Any, keep: Mapping[str, Policy] | None = None) -> Any:
        """Give `target` this policy's storage.

        A Module is changed in place (every parameter gets a working copy, and an FP32 master where the policy keeps
        one) and returned. A Tensor or array with floating values comes back rounded to the storage dtype; integers
        and booleans come back as they are; lists, tuples and dicts are cast item by item.

        keep: modules in a Module, by their paths, that take another policy, with all that is in them, until it is cast
        again: {"head": mp.FP32}. Such a module has the storage of its policy. When it is called, Tensors in the storage
        of what is around it are converted to its own, its forward and their backward follow its policy, whatever
        `mp.use` says outside, and what it returns is converted back, but for losses. These casts round as the policy
        around it does, and so do the gradients that come back through them. A path within a kept module ("head.norm")
        may name a third policy; "" is the whole. Sums of the gradients of a weight that is used several times follow
        the policy in use around backward.

        TypeError for anything else; ValueError for a finite value that does not fit FP16 (scale such data first), for a
        path that is not there, and for a weight or module that is shared by two policies.
        """
        if keep is not None and not hasattr(target, "named_modules"):
            raise TypeError(f"Policy.cast: expected a Module, parts of which to keep, got {type(target)}")
        if hasattr(target, "cast_storage"):  # Module and Tensor know how to do it to themselves
            return target.cast_storage(self) if keep is None else target.cast_storage(self, keep)
        return held("ops.convert.cast_items")(self, target)


FP32 = Policy("FP32", storage=float32)
MIXED = Policy("MIXED")
NO_MASTER = replace(MIXED, name="NO_MASTER", master=False)
STOCHASTIC_ROUNDING = replace(MIXED, name="STOCHASTIC_ROUNDING", rounding="stochastic")
TF32 = Policy("TF32", storage=float32, tf32=True)
BF16 = Policy("BF16", storage=bfloat16) if bfloat16 is not None else None
POLICIES = {p.name: p for p in (FP32, TF32, MIXED, BF16, NO_MASTER, STOCHASTIC_ROUNDING) if p is not None}

# FP32 and MIXED share their arithmetic, so code that sets nothing gets the right one for either storage.
policy_in_use: ContextVar[Policy] = ContextVar("policy", default=MIXED)


def use(policy: Policy) -> Setting:
    """Within the block, the primitives follow `policy`: put the whole training step inside.

    The backward of an op follows the policy of its forward; the sums of a leaf's gradients that of `backward()`, and an
    update that of its parameter. Only FP16 operands are concerned. TypeError for anything but a Policy.
    """
    if not isinstance(policy, Policy):
        raise TypeError(f"use: expected a Policy, got {type(policy).__name__}; see tinymp.POLICIES")
    return Setting(policy_in_use, policy, policy)


def current_policy() -> Policy:
    """The policy whose arithmetic the primitives follow here."""
    return policy_in_use.get()


def plain(dtype: np.dtype | None) -> bool:
    """True if a fast path may stand in for a definition on storage of this dtype: it sums in FP32, in an order of its
    own, and rounds to nearest. Where a policy asks for anything else, and in every study, definitions run.
    """
    policy = policy_in_use.get()
    return policy.usual or (policy.study is None and dtype not in HALVES)
