"""Precision: four gates, the kinds of arithmetic, and the policies. An auditor starts here.

**Ops change precision in the four functions below and nowhere else; FP16, or BF16, is made by one of them, `store`.**
Everything outside them is plain mathematics (tests/test_gates.py walks the syntax trees of the package to hold that).

    widen(x)                 FP16 or BF16 -> FP32, exact
    store(x32, like)         FP32 -> the storage dtype, in the memory order of `like`: the one rounding
    gemm(a, b, bias)         matrix product of stored operands, FP32 accumulator, one rounding on store
    reduce(x, axis, how)     sums and means with an FP32 accumulator

`add_to` and `scatter_add`, further down, are `reduce` for sums that an op builds up piece by piece. A conversion that
the user asks for (`to_dtype`) shares the rounding of `store`, `_round`; the CUDA kernels, which do the work of several
gates at once, follow the same rule (`store` in fast/cuda/common.cuh). `as_operand` emulates FP8 where asked to.

Storage follows the arrays. On float32 and float64 input (the FP32 baseline, gradient checks) the gates let values
through and compute in that dtype; the policy in use decides only where the stored operands are FP16 or BF16.

MPT is *Mixed Precision Training* (Micikevicius et al., 2018), NVG is NVIDIA's *Training with Mixed Precision*.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from . import backend
from .backend.formats import SCALED, Format
from .dtypes import FLOATING, HALVES, NAMES, bfloat16, float16, float32, float64, real, require_fit
from .events import Result, here, quietly, reusable, tell
from .study import sums

Array = Any


# ------------------------------------------------------------------------------------------------ kinds of arithmetic


class Kind(NamedTuple):
    """What an op does to precision. Every op declares one; `Op.apply` holds it to what it `writes`."""

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


@dataclass(frozen=True)
class Policy:
    """One precision decision per field. `cast` sets the storage of a model; `mp.use` sets the arithmetic.

    name        what `str` and the reports call it
    storage     dtype of weights, activations and gradients (MPT section 3). bfloat16 is FP32's first 16 bits: its
                range, so that no loss needs a scale, and 8 significant bits instead of FP16's 11 (Kalamkar et al. 2019,
                arXiv 1905.12322); on the CPU, pip install -e ".[bf16]"
    accumulate  dtype of the accumulator of a dot product (MPT section 3.3)
    chunk       with an FP16 accumulator: how many products are summed before each rounding (NVG section 2.2: a
                Tensor Core step is a 4 x 4 x 4 product). On a CPU the bits depend on the operands alone for chunks of
                up to 16; BLAS sums longer ones in FP32, in an order that follows the shapes, also that of the batch
    reduce      dtype of the accumulator of a sum or mean (MPT section 3.3, NVG section 2.3.1)
    rounding    "nearest" (ties to even) or "stochastic", at every store (MPT v1, appendix A, which rounds only the
                weights stochastically)
    master      keep an FP32 master copy of every weight (MPT section 3.1)
    norm        dtype of the parameters and running statistics of normalisation layers (NVG section 5.4.2)
    state       dtype of the optimizer's state: FP32 (it follows from MPT section 3.1, which does not speak of it)
    exchange    dtype in which FP16 gradients travel between processes, and are added up there (NVG section 3)
    tf32        round the FP32 operands of products to TF32's 11 significant bits, as Tensor Cores of Ampere and later
                can. Never unless a policy says so
    split       into how many parts the inner dimension of a product is cut. Each part is summed by itself and rounded
                to storage before the parts are added up: "split-K" with cuBLAS's reduced-precision reduction. 1: uncut
    aligned     how many bits a Tensor Core keeps of `chunk` products and its accumulator once they are aligned to the
                largest of them; what is cut off is lost, not rounded. 24 on Volta, which has no guard bits (Fasi et al.
                2021, PeerJ CS 7:e330), about 14 for FP8 on Hopper (DeepSeek-V3, arXiv 2412.19437, 3.3.2). 0: exact, on
                the CPU, which alone can do this
    promote     with `aligned`: after how many products such a sum is added to one in FP32 (ibid.: 128). 0: never
    operands    the formats (names of backend/formats.py's SCALED) to which the operands of DOT ops are rounded: what
                forward reads, and gradients. FP8 has E4M3 and E5M2 (Micikevicius et al. 2022, arXiv 2209.05433). It is
                emulated: the numbers lie in arrays of the storage dtype. Arrays with one axis stay (biases), and the
                gradient of a bias sums what was not rounded. Formats with a scale ("e4m3-tensor", "mxfp8") saturate: a
                finite number that is too large becomes the largest. In the others ("e4m3") it becomes NaN or infinite.
                What is not finite stays so (NaN in E4M3), and the loss scaler hears of it. (): none
    only        names of the ops ("softmax") to which `accumulate`, `split`, `aligned` and `reduce` apply; a loss may
                be one of them. Empty: to every op but losses
    """

    name: str
    storage: np.dtype = float16
    accumulate: np.dtype = float32
    chunk: int = 4
    reduce: np.dtype = float32
    rounding: str = "nearest"
    master: bool = True
    norm: np.dtype = float32
    state: np.dtype = float32
    exchange: np.dtype = float32
    tf32: bool = False
    split: int = 1
    aligned: int = 0
    promote: int = 0
    operands: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("storage", "accumulate", "reduce", "norm", "state", "exchange"):
            value, known = getattr(self, field), FLOATING if field == "storage" else (float16, float32, float64)
            if not isinstance(value, (str, type, np.dtype)) or value not in known:  # None equals float64 in NumPy
                names = ", ".join(dtype.name for dtype in known)
                raise ValueError(f"Policy: expected {field} to be one of {names}, got {value!r}")
            object.__setattr__(self, field, np.dtype(value))
        if not isinstance(self.rounding, str) or self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"Policy: expected rounding 'nearest' or 'stochastic', got {self.rounding!r}")
        for field, kind in (("name", str), ("master", bool), ("tf32", bool)):
            if not isinstance(value := getattr(self, field), kind):
                raise TypeError(f"Policy: expected {field} to be a {kind.__name__}, got {value!r}")
        for field in ("chunk", "split"):
            if not isinstance(value := getattr(self, field), int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Policy: expected {field} to be a positive integer, got {value!r}")
        for field in ("aligned", "promote"):
            if not isinstance(value := getattr(self, field), int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"Policy: expected {field} to be an integer of 0 or more, got {value!r}")
        if self.aligned > 24 or self.promote % self.chunk:
            raise ValueError(
                f"Policy: expected aligned up to FP32's 24 bits and promote to be a multiple of chunk, "
                f"got aligned={self.aligned}, promote={self.promote}, chunk={self.chunk}"
            )
        if self.storage == bfloat16 is not None:
            for field, plain in (("rounding", "nearest"), ("accumulate", float32), ("reduce", float32), ("split", 1)):
                if (value := getattr(self, field)) != plain:
                    raise ValueError(
                        f"Policy: expected {field}={plain} with BF16 storage, got {value}, which FP16 alone has"
                    )
        formats = [name for name, f in SCALED.items() if f.scaling != "delayed"]
        if not (
            isinstance(self.operands, tuple)
            and len(self.operands) in (0, 2)
            and all(name in formats for name in self.operands)
        ):
            raise ValueError(
                f"Policy: expected operands to be () or a tuple of two of {', '.join(formats)}, got {self.operands!r}"
            )
        if not isinstance(self.only, tuple) or not all(isinstance(name, str) for name in self.only):
            raise ValueError(f"Policy: expected only to be a tuple of names of ops, got {self.only!r}")

    def __str__(self) -> str:
        changed = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name != "name" and getattr(self, f.name) != f.default
        ]
        changed += ["emulated"] * bool(self.operands)
        return f"{self.name}({', '.join(changed) or f'storage={self.storage}, FP32 accumulators and masters'})"

    def __deepcopy__(self, memo: dict) -> Policy:
        return self  # it never changes

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
        if isinstance(target, np.ndarray):
            target = real("Policy.cast", target, target)
            return target if target.dtype.kind in "iub" else fit("Policy.cast", target, self.storage)
        if isinstance(target, dict):
            return {key: self._cast_item(value) for key, value in target.items()}
        if isinstance(target, tuple) and hasattr(target, "_fields"):
            return type(target)(*map(self._cast_item, target))
        if isinstance(target, (list, tuple)):
            return type(target)(map(self._cast_item, target))
        raise TypeError(f"Policy.cast: expected a Module, Tensor, array or a collection of them, got {type(target)}")

    def _cast_item(self, value: Any) -> Any:
        """An item of a batch, which may carry names beside its arrays."""
        return value if isinstance(value, (str, bytes)) else self.cast(value)


FP32 = Policy("FP32", storage=float32)
MIXED = Policy("MIXED")
NO_MASTER = replace(MIXED, name="NO_MASTER", master=False)
FP16_ACCUMULATE = replace(MIXED, name="FP16_ACCUMULATE", accumulate=float16)
FP16_REDUCTIONS = replace(MIXED, name="FP16_REDUCTIONS", reduce=float16)
STOCHASTIC_ROUNDING = replace(MIXED, name="STOCHASTIC_ROUNDING", rounding="stochastic")
FP16_VOLTA = replace(MIXED, name="FP16_VOLTA", aligned=24)
TF32 = Policy("TF32", storage=float32, tf32=True)
BF16 = Policy("BF16", storage=bfloat16) if bfloat16 is not None else None
FP8 = BF16 and replace(BF16, name="FP8", operands=("e4m3-tensor", "e5m2-tensor"))
FP8_HOPPER = FP8 and replace(FP8, name="FP8_HOPPER", aligned=14, chunk=32, promote=128)
PURE_FP16 = Policy("PURE_FP16", accumulate=float16, reduce=float16, master=False, norm=float16, state=float16)
_ALL = (
    *(FP32, TF32, MIXED, BF16, FP8, NO_MASTER, FP16_ACCUMULATE, FP16_REDUCTIONS, STOCHASTIC_ROUNDING, PURE_FP16),
    *(FP16_VOLTA, FP8_HOPPER),
)
POLICIES = {p.name: p for p in _ALL if p is not None}

# FP32 and MIXED share their arithmetic, so code that sets nothing gets the right one for either storage.
_policy: ContextVar[Policy] = ContextVar("policy", default=MIXED)
follows_forward: ContextVar[bool] = ContextVar("follows_forward", default=False)  # whether backward follows its policy


@reusable
def use(policy: Policy) -> Iterator[Policy]:
    """Within the block, the gates follow `policy`: put the whole training step (also backward) inside.

    Only the gates read it, and only for FP16 operands. TypeError for anything but a Policy.
    """
    if not isinstance(policy, Policy):
        raise TypeError(f"use: expected a Policy, got {type(policy).__name__}; see tinymp.POLICIES")
    token = follow(policy)
    try:
        yield policy
    finally:
        _policy.reset(token)


def follow(policy: Policy) -> Token:
    """From now on the gates follow `policy`, for the rest of this context (contextvars)."""
    return _policy.set(policy)


def under(policy: Policy, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """work(*args, **options) while the gates follow `policy`: as under `use`, which an interrupt can leave set."""

    def followed() -> Result:
        follow(policy)
        return work(*args, **options)

    return copy_context().run(followed)


def current_policy() -> Policy:
    """The policy whose arithmetic the gates follow here."""
    return _policy.get()


def plain(dtype: np.dtype | None) -> bool:
    """Whether the policy in use studies nothing on storage of this dtype: a fast path may stand in for a definition.

    It sums in an order of its own, in FP32, and rounds to nearest.
    """
    policy = _policy.get()
    studied = policy.rounding != "nearest" or policy.split > 1 or policy.aligned
    return dtype != float16 or (policy.accumulate == policy.reduce == float32 and not studied)


def may_fuse(dtype: np.dtype | None) -> bool:
    """Whether a CUDA kernel may do the work of several primitives at once on storage of this dtype.

    A kernel widens, computes and accumulates in FP32 registers and stores with one rounding to nearest. It may stand in
    for an op's definition only where the policy in use asks for just that and no observer hears the primitives.
    """
    return not here.inside and dtype in (float16, float32) and plain(dtype)


def _applies(policy: Policy, dtype: np.dtype) -> bool:
    """Whether a policy's accumulators apply to a sum over operands of this dtype: FP16, in the ops that it names."""
    if not policy.only:
        return dtype == float16
    op = here.running
    named = getattr(op, "name", None) in policy.only and getattr(op, "storage", None) == float16
    return named and dtype in (float16, float32)  # a loss sums FP32 values


# -------------------------------------------------------------------------------------------------------- the 4 gates


def widen(x: Array) -> Array:
    """Gate 1: FP16 -> FP32, exactly. Everything else (FP32, FP64, a Python number) passes unchanged.

    The result may be x itself: never write into it.
    """
    if getattr(x, "dtype", None) in HALVES:
        return backend.of(x).cast(x, float32)
    return x


def store(x32: Array, like: Array) -> Array:
    """Gate 2: round x32 once to the dtype of `like`, the stored array whose place it takes.

    To nearest, ties to even, or stochastically where the policy in use says so. Values beyond 65 520 become
    infinite: that is how the loss scaler learns of an overflow (NVG section 2.3.2). On a CPU the result has the memory
    order of `like`, where that has its shape: NumPy's own choice, and with it the order of later sums, depends on the
    size, as it computes in temporaries of 256 KiB and more.
    """
    dtype = like.dtype
    if x32.dtype is dtype or dtype not in FLOATING or x32.dtype == dtype:
        return _in_order(x32, like)
    if dtype not in HALVES or x32.dtype != float32:
        raise TypeError(f"store: {x32.dtype} would be rounded to {dtype}; only FP32 to FP16 or BF16 rounds here")
    return _round(x32, dtype, like)


def _in_order(x: Array, like: Any) -> Array:
    """x in the memory order of `like` if they have one shape and repeat no element; x itself if it has it already."""
    strides = getattr(like, "strides", None)
    if strides is None or x.strides == strides or x.shape != like.shape or backend.of(x) is backend.gpu:
        return x
    # from the slowest axis to the fastest; those of length 1 have any strides, and come last
    order, own = (sorted(range(x.ndim), key=lambda a: x.shape[a] != 1 and -abs(s[a])) for s in (strides, x.strides))
    if order == own or any(n != 1 and not s * t for n, s, t in zip(x.shape, strides, x.strides)):
        return x
    y = backend.of(x).xp.empty([x.shape[a] for a in order], x.dtype).transpose(np.argsort(order))
    y[...] = x
    return y


def _round(x: Array, dtype: np.dtype, like: Any = None) -> Array:
    """x in fewer bits: to nearest, ties to even, or stochastically where the policy says so (FP16 only)."""
    device = backend.of(x)
    nearest = _policy.get().rounding == "nearest" or dtype != float16
    y = _in_order(device.cast(x, dtype) if nearest else device.cast_stochastic(x), like)
    if here.inside:
        tell("rounded", x, y)
    return y


def gemm(
    a: Array, b: Array, bias: Array | None = None, *, acc: Array | None = None, wide: bool = False, like: Any = None
) -> Array:
    """Gate 3: the matrix product a @ b (+ bias) of stored operands, accumulated in FP32, rounded once.

    a: (..., m, k), b: (..., k, n), bias: broadcasts to (..., m, n) and is added before the rounding. If operands come
    widened already, `like` (by default a) is one that is stored. With `wide` the FP32 accumulators come back unrounded,
    for an op that goes on summing them (col2im) and stores later; `acc`: such accumulators, to which a @ b is added.

    The library orders the sums, and may add all k products one after the other: |error| <= k 2^-24 sum |a b|, and no
    less is promised. OpenBLAS was seen to be 8e-4 off on 250,000 equal products in a result of 2 x 2 (2e-5 on random
    positive ones), and 6e-5 on two million in one of 64 x 32: weight gradients over as many rows.
    """
    device, like = backend.of(a), a if like is None else like
    policy, split = _policy.get(), 1
    aligned = policy.aligned if like.dtype in HALVES and (not policy.only or _applies(policy, like.dtype)) else 0
    if aligned:
        compute = f"{aligned} aligned bits"
    elif like.dtype in HALVES:
        studied = _applies(policy, like.dtype)
        compute, split = (NAMES[policy.accumulate], min(policy.split, a.shape[-1])) if studied else ("float32", 1)
    else:
        compute = "tf32" if policy.tf32 and like.dtype == float32 else NAMES[like.dtype]
    if here.inside:
        tell("product", a, b, compute)
    # cuBLAS rounds its accumulators itself, to nearest; a CPU's SGEMM hands them over as they are
    rounded = not wide and policy.rounding == "nearest" and not here.inside and split == 1
    if (aligned or compute == "float16" or split > 1) and device.has_values:
        a, b = widen(a), widen(b)
        if aligned:
            c = sums.matmul_aligned(a, b, aligned, policy.chunk, policy.promote, acc)
        elif split > 1:
            c = _in_parts(a, b, acc, compute, policy.chunk, split, like)
        else:
            c = sums.matmul_fp16(a, b, policy.chunk, acc)
        c = c if bias is None else c + widen(bias)
    else:
        c = device.gemm(a, b, bias, acc, like.dtype, compute == "tf32", rounded)
    return c if wide or c.dtype == like.dtype else _round(c, like.dtype)


def _in_parts(a: Array, b: Array, acc: Any, compute: str, chunk: int, split: int, like: Array) -> Array:
    """a @ b (+ acc) in parts of the inner dimension, each rounded to storage before they are added up."""
    step = -(-a.shape[-1] // split)
    for k in range(0, a.shape[-1], step):
        some = a[..., k : k + step], b[..., k : k + step, :]
        fp16 = compute == "float16"
        part = sums.matmul_fp16(*some, chunk) if fp16 else backend.of(a).gemm(*some, None, None, float32, False, False)
        acc = widen(store(part, like)) if acc is None else acc + widen(store(part, like))
    return acc


def reduce(x: Array, axis: int | tuple[int, ...], how: str, like: Array | None = None) -> Array:
    """Gate 4: "sum", "mean", "max", "min" or "cumsum" of x over axis, with an FP32 accumulator; returned in FP32.

    x: a stored array, or FP32 values computed from one, which is then given as `like`. Reduced axes stay with
    length 1, so that the result broadcasts against x. A loss passes FP32 values and no `like`: a policy makes it
    accumulate in FP16 only where `only` names it.

    Sums are made in blocks, whose sums are then summed, in an order that depends on shape and layout alone. No number
    passes through more than 512 additions: |error| <= 2^-15 sum |x| for up to 6e7 terms, in practice below 1e-6 of it.
    Where nothing cancels, a sum stored in FP16 is within 1 ulp; where terms cancel, as those of a batch norm's dw do,
    the error may be all of the result. (The FP16 accumulator of a study adds one by one.)
    """
    device = backend.of(x)
    stored = x if like is None else like
    policy = _policy.get()
    in_fp16 = policy.reduce == float16 and how not in ("max", "min") and _applies(policy, stored.dtype)
    if here.inside:
        tell("reduced", x, axis, how, "float16" if in_fp16 else _accumulator_of(x))
    return sums.reduce_fp16(x, axis, how) if in_fp16 and device.has_values else device.reduce(x, axis, how)


# --------------------------------------------------------------------------------------- what is built from the gates


def _accumulator_of(x: Array) -> str:
    """The dtype in which values like x are summed where no policy decides otherwise."""
    return str(float32 if x.dtype in HALVES else x.dtype)


def accumulate(parts: Sequence[Array], like: Any = None) -> Array:
    """The sum of 1 to 3 gradients of one tensor, in FP32; if it is complete, rounded once to the dtype of `like`."""
    total = widen(parts[0])
    for part in parts[1:]:
        total = _in_order(total + widen(part), total)
    return total if like is None else store(total, like)


def add_to(total: Array, part: Array, like: Any, accumulator: str = "reduce", times: Array | None = None) -> None:
    """total += part (or part * times), in place: one more term of a sum that an op builds up piece by piece.

    They are widened; like is a stored operand. The accumulator is that of the policy's field `reduce`, or `accumulate`
    where the terms are products of a dot product, or sums of them. In FP16 it rounds at every term.
    """
    policy = _policy.get()
    in_fp16 = getattr(policy, accumulator) == float16 and _applies(policy, like.dtype)
    if here.inside:
        dtype = "float16" if in_fp16 else NAMES[total.dtype]
        tell("added", part, times, dtype)
    part = part if times is None else part * times
    if in_fp16:
        sums.add_fp16(total, part)
    else:
        total += part


def scatter_add(n_rows: int, index: Array, rows: Array, like: Any) -> Array:
    """Zeros (n_rows, ...) to which each of `rows` is added at its index, in order; returned in FP32.

    The gradient of every lookup. The accumulator is that of `reduce`: FP32, or FP16 where the policy studies it.
    """
    device, policy = backend.of(rows), _policy.get()
    in_fp16 = policy.reduce == float16 and _applies(policy, like.dtype)
    if here.inside:
        tell("added", rows, None, "float16" if in_fp16 else _accumulator_of(rows))
    if in_fp16:
        return widen(device.scatter_add_rows(n_rows, index, store(rows, like)))
    return device.scatter_add_rows(n_rows, index, widen(rows))


# What `as_operand` returned, by the array's id: the array, its format, and the gradient that was rounded
_emulated: dict[int, tuple[weakref.ref, Format, Array | None]] = {}


def as_operand(x: Array, gradient: bool = False) -> Array:
    """x as a DOT op reads it: rounded to the format that the policy in use has for operands, else x itself.

    The engine asks for every array that such an op is given, forward and backward (gradient). What is not finite stays
    so, under every format (NaN where it has no infinities): the loss scaler must hear of it. A finite number that is
    too large saturates in formats with a scale; in the others it becomes infinite or NaN.
    """
    policy = _policy.get()
    if not policy.operands or getattr(x, "dtype", None) not in HALVES or x.ndim < 2:
        return x
    scaled, wide, device = SCALED[policy.operands[gradient]], widen(x), backend.of(x)
    with np.errstate(all="ignore"):
        y = device.cast(scaled.round(wide), x.dtype)
    key = id(y)
    _emulated[key] = weakref.ref(y, lambda _: _emulated.pop(key, None)), scaled.format, x if gradient else None
    if here.inside:
        tell("rounded", wide, y)
    return y


def emulated(x: Array) -> Format | None:
    """The format whose numbers the array x holds, if `as_operand` made it."""
    made, kind, _ = _emulated.get(id(x), (None, None, None))
    return kind if made is not None and made() is x else None


def unrounded(dy: Array) -> Array:
    """The gradient that `as_operand` rounded to dy, else dy: a bias's is its sum, no product, as Transformer Engine
    takes it.
    """
    made, _, before = _emulated.get(id(dy), (None, None, None))
    return dy if made is None or made() is not dy or before is None else before


def to_dtype(x: Array, dtype: np.dtype) -> Array:
    """x converted because the user asked for it (`Tensor.to`, `Policy.cast`, a state_dict): exact, or one rounding."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if x.dtype not in FLOATING or dtype not in FLOATING:
        return x.astype(dtype)
    exact = dtype.itemsize > x.dtype.itemsize
    return backend.of(x).cast(x, dtype) if exact else _round(x, dtype)


# ---------------------------------------------------------------------------------------- values that the user supplies


def scalar(value: Any, dtype: np.dtype) -> Array:
    """A constant in dtype, rounded to nearest under every policy and unobserved: policies and audits are about results.
    Arrays stay arrays, converted as by `to_dtype`.
    """
    if hasattr(value, "dtype") and not isinstance(value, np.generic):
        return to_dtype(value, dtype)
    return quietly(np.asarray(value).astype, dtype)[()]


def fit(what: str, x: Array, dtype: np.dtype) -> Array:
    """`to_dtype` for values that the user supplies: ValueError for one that dtype cannot hold."""
    require_fit(what, x, dtype)
    return to_dtype(x, dtype)
