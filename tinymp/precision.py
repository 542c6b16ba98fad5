"""Precision: four primitives, the kinds of arithmetic, and the policies. An auditor starts here.

**Ops change precision only in the four functions below, and only `store` makes FP16 or BF16.** NumPy, NumKong and
cuBLAS (backend/, fast/) do the rounding, CUDA kernels, which do the work of several primitives in one pass by the same
rule, and studies. docs/precision.md lists the lines that ask for a rounding, and those that perform one.
tests/guards/test_run_time.py runs every op and fails if anything else changes precision.

    widen(x)                 FP16 or BF16 -> FP32, exact
    store(x32, like)         FP32 -> the storage dtype, in the memory order of `like`: the one rounding
    gemm(a, b, bias)         matrix product of stored operands, FP32 accumulator, one rounding on store
    reduce(x, axis, how)     sums and means with an FP32 accumulator

`add_to` and `scatter_add`, further down, are versions of `reduce` for sums that an op makes term by term. A conversion
that the user asks for (`to_dtype`) rounds as `store` does, in `_round`. A policy may contain a study (`tinymp.study`),
which replaces the sums of a primitive, or rounds the operands of products.

The arrays determine the storage. With float32 and float64 input (the FP32 baseline, gradient checks) the primitives
round nothing and compute in that dtype; the policy in use matters only for FP16 and BF16 operands.

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

    To nearest, ties to even, or stochastically if the policy in use says so. Values from 65,520 on become infinite,
    which the loss scaler detects as an overflow (NVG section 2.3.2). On a CPU the result has the memory order of `like`
    if the shapes agree. NumPy's own choice of order would depend on the size, because NumPy reuses temporaries from 256
    KiB on, and would change the order of later sums. None if `like` is None: that gradient is not wanted.
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
    """x in the memory order of `like` if the shapes agree and no element is repeated; x itself if it has that order."""
    if x.shape != like.shape or not backend.of(x).keeps_order:
        return x
    # axes from the slowest to the fastest; those of length 1, whose strides are arbitrary, come last
    shape, both = x.shape, (like.strides, x.strides)
    order, own = (sorted(range(x.ndim), key=lambda a: shape[a] != 1 and -abs(s[a])) for s in both)
    if order == own or any(n != 1 and not s * t for n, s, t in zip(shape, *both)):
        return x
    y = backend.of(x).xp.empty([shape[a] for a in order], x.dtype).transpose(np.argsort(order).tolist())
    y[...] = x  # rounds: never, both have one dtype
    return y


def _round(x: Array, dtype: np.dtype) -> Array:
    """x rounded to fewer bits: to nearest, ties to even, or stochastically if the policy says so (FP16 only)."""
    device, nearest = backend.of(x), policy_in_use.get().rounding == "nearest" or dtype != float16
    y = device.cast(x, dtype) if nearest else device.cast_stochastic(x)  # rounds: `store`
    if here.inside:
        tell("rounded", x, y)
    return y


def gemm(a: Array, b: Array, bias: Array | None = None, *, wide: bool = False) -> Array:
    """Primitive 3: the matrix product a @ b (+ bias) of stored operands, accumulated in FP32, rounded once.

    a: (..., m, k), b: (..., k, n), bias: broadcasts to (..., m, n) and is added before the rounding. With `wide` it
    returns the FP32 accumulators unrounded, for an op that sums them further (col2im) and stores later.

    The library chooses the order of the sums, and may add all k products in sequence: |error| <= k 2^-24 sum |a b| is
    the only promise. The largest relative errors seen with OpenBLAS were 8e-4 for a 2 x 2 result of 250,000 equal
    products (2e-5 for random positive ones), and 6e-5 for a 64 x 32 result of two million, as in weight gradients.
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

    x: a stored array, or FP32 values computed from a stored array `like`. Reduced axes keep length 1: the result
    broadcasts against x. A loss passes FP32 values without `like`: no policy of the core changes its accumulator; a
    study may (`only`).

    Terms are summed in blocks, and the sums of blocks in turn, in an order that depends on shape and layout alone. No
    number passes through more than 512 additions: |error| <= 2^-15 sum |x| for up to 6e7 terms, in practice below 1e-6
    of it. Without cancellation a sum stored in FP16 is within 1 ulp; with cancellation, as in a batch norm's dw, the
    error may be as large as the result. (The FP16 accumulator of a study adds one by one.)
    """
    studied = None if how in ("max", "min") else policy_in_use.get().accumulator("reduce", x if like is None else like)
    if here.inside:
        tell("reduced", x, axis, how, studied.name if studied else _accumulator_of(x))
    return (studied or backend.of(x)).reduce(x, axis, how)  # rounds: FP32 sums, by the device or as a study sums


# -------------------------------------------------------------------------------------------------- further sums


def _accumulator_of(x: Array) -> str:
    """The default dtype of the accumulator for values like x."""
    return str(float32 if x.dtype in HALVES else x.dtype)


def add_to(total: Array, part: Array, like: Any, accumulator: str = "reduce", times: Array | None = None) -> None:
    """total += part (or part * times), in place: one term of a sum that an op makes term by term.

    The arrays are widened; like is a stored operand. The accumulator is that of the policy's field `reduce`, or
    `accumulate` for products of a dot product and sums of them. An FP16 accumulator rounds at every term.
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

    This is the gradient of lookups. The accumulator is that of `reduce`: FP32, or a study's.
    """
    studied = policy_in_use.get().accumulator("reduce", like)
    if here.inside:
        tell("added", rows, None, studied.name if studied else _accumulator_of(rows))
    if studied:
        return studied.scatter_add(n_rows, index, rows, like)
    return backend.of(rows).scatter_add_rows(n_rows, index, widen(rows))  # rounds: FP32 sums of rows, by the device


def unrounded(dy: Array) -> Array:
    """dy before the study of the policy in use rounded it (`Arithmetic.operand`); dy itself without such a study.

    A bias gradient is a sum, not a product: it uses dy before this rounding, as in Transformer Engine.
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
    """A constant in dtype, rounded to nearest under every policy and unobserved: policies and audits concern results.
    Arrays are converted by `to_dtype`.
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
    """The effect of an op on precision. Every op declares one; `Op.apply` checks the dtype of its result."""

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

    name        its name in reports and in `str`
    storage     dtype of weights, activations and gradients (MPT section 3). bfloat16 is FP32's first 16 bits. It has
                FP32's range, and needs no loss scale, but 8 significant bits instead of FP16's 11 (Kalamkar et al.
                2019, arXiv 1905.12322); on the CPU, pip install -e ".[bf16]"
    accumulate  dtype of the accumulator of a dot product, FP32 or FP64 (MPT section 3.3)
    reduce      dtype of the accumulator of a sum or mean, FP32 or FP64 (MPT section 3.3, NVG section 2.3.1)
    rounding    "nearest" (ties to even) or "stochastic", at every store (MPT v1, appendix A, which rounds only the
                weights stochastically)
    master      keep an FP32 master copy of every weight (MPT section 3.1)
    norm        dtype of the parameters and running statistics of normalisation layers (NVG section 5.4.2)
    state       dtype of the optimizer's state: FP32 (MPT section 3.1 implies it)
    exchange    dtype in which processes send and add up FP16 gradients (NVG section 3)
    tf32        round the FP32 operands of products to TF32's 11 significant bits, as Tensor Cores from Ampere on can;
                off by default
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
    # rule(op, args, options) converts an op's arguments (PyTorch's autocast: torch/amp.py); buffers keep their dtype
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
        """True if it sums in FP32 without a study and rounds to nearest, as fast paths do. See `plain`."""
        return self.accumulate == self.reduce == float32 and self.rounding == "nearest" and self.study is None

    def accumulator(self, field: str, like: Array) -> Any:
        """The accumulator of a study for "accumulate" or "reduce", or one in FP64; None for the primitive's own."""
        if self.study is not None and (studied := self.study.accumulator(field, like)) is not None:
            return studied
        return held("precision.Fp64") if getattr(self, field) == float64 and like.dtype in HALVES else None

    def cast(self, target: Any, keep: Mapping[str, Policy] | None = None) -> Any:
        """Give `target` this policy's storage.

        A Module is changed in place (every parameter gets a working copy, and an FP32 master where the policy keeps
        one) and returned. A Tensor or array with floating values comes back rounded to the storage dtype; integers
        and booleans come back as they are; lists, tuples and dicts are cast item by item.

        keep: {path: policy} for modules in a Module that take another policy, with all their parts, until the next
        cast: {"head": mp.FP32}. Such a module has its policy's storage. Its call converts Tensors from the surrounding
        storage to its own, and its results back, except losses; these casts and their gradients round as the
        surrounding policy says. Its forward and backward follow its own policy, whatever `mp.use` says outside. A path
        in a kept module ("head.norm") may name a third policy; "" is the whole. The gradients of a weight with several
        uses are summed under the policy in use around backward.

        TypeError for any other target; ValueError for a finite value that does not fit FP16 (scale such data first),
        for an unknown path, and for a weight or module that two policies share.
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

    An op's backward follows the policy of its forward, the sums of a leaf's gradients follow that of `backward()`, and
    an update follows its parameter's. Only half-precision operands are affected. TypeError for anything but a Policy.
    """
    if not isinstance(policy, Policy):
        raise TypeError(f"use: expected a Policy, got {type(policy).__name__}; see tinymp.POLICIES")
    return Setting(policy_in_use, policy, policy)


def current_policy() -> Policy:
    """The policy whose arithmetic the primitives follow here."""
    return policy_in_use.get()


def plain(dtype: np.dtype | None) -> bool:
    """True if a fast path may replace a definition on storage of this dtype. Fast paths sum in FP32, in their own
    order, and round to nearest; under any other policy, and in studies, definitions run.
    """
    policy = policy_in_use.get()
    return policy.usual or (policy.study is None and dtype not in HALVES)
