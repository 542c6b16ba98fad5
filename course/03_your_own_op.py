# %% [markdown]
# # 3. Your own op
#
# *55 minutes.*
#
# **You write a new activation. In FP32 its values are right. In FP16 some of them are wrong by 100 percent, though
# FP16 could hold the right ones. What is missing in your code?**
#
# - **You know** rounding (lesson 1), forward and backward (2).
# - **You do**: write three ops for tinymp, an activation, a norm and a loss, with the precision primitives at the right
#   places; compute how far an FP16 result may be off.
# - **You can then** add your own op to tinymp, choose its kind, and hold it to a bound.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), NVG is NVIDIA's guide *Training
# with Mixed Precision*. On Colab, first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.autograd import Op
from tinymp.course import check, digits
from tinymp.precision import KINDS, LOSS, POINTWISE, REDUCTION, reduce, store, widen

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 250  # of each training; on a slow machine 100 show the same

# %% [markdown]
# ## The question, in a picture
#
# Mish is an activation (Misra 2019, arXiv 1908.08681): x · tanh(ln(1 + eˣ)). Here it is in NumPy, for all halves
# between −18 and 8. Once each step is done in FP16, and once in FP32, with one rounding at the end.


# %%
def mish(x):
    return x * np.tanh(np.log1p(np.exp(x)))


halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
halves = np.sort(halves[(halves > -18) & (halves < 8) & (np.abs(halves) > 0.01)])
exact = mish(halves.astype(np.float64))
figure, axes = plt.subplots()
for label, y in (
    ("each step in FP16", mish(halves)),
    ("FP32, rounded once", mish(halves.astype(np.float32)).astype(np.float16)),
):
    axes.plot(halves[::4], np.abs(y / exact - 1)[::4], ".", markersize=2, label=label)
axes.axhline(2.0**-11, color="0.4", linestyle=":")
axes.text(8, 2.0**-9.5, "2⁻¹¹: one rounding", ha="right")
axes.set(xlabel="x", ylabel="relative error", ylim=(2.0**-16, 4), title="Mish in FP16, two ways")
axes.set_yscale("log", base=2)
axes.legend(markerscale=4)

# %% [markdown]
# To the left eˣ is subnormal in FP16, and its lost digits never come back; from −17.4 on it is 0. Elsewhere each step
# adds its own rounding. The other way is what tinymp calls the **FP32 sandwich**: widen, compute, round once. (It
# rises at the far left, because there the result itself is subnormal: that is the one rounding.)

# %% [markdown]
# ## 1. The kinds
#
# MPT 3.3 sorts the work of a network by the precision that it needs: dot products, reductions, pointwise operations.
# tinymp adds three more *kinds*. Each op declares one, and `Op.apply` holds it to what it promises.

# %%
for kind in KINDS:
    print(f"{kind.name:10} reads {kind.reads:8} computes in {kind.computes:26} sums in {kind.accumulates}")
    print(f"{'':10} writes {kind.writes}")

# %% [markdown]
# "Storage" is the dtype of the tensors: FP16 in mixed precision. Which kinds have these six?
#
# 1. `ops.sigmoid(x)`
# 2. `ops.mean(x, 0, True)`, the mean over a batch
# 3. `x.reshape(-1)`
# 4. `x @ w`
# 5. `ops.cross_entropy(x, labels)`
# 6. `ops.softmax(x, 1)`
#
# Answer with a list of six names, like `["DOT", ...]`.

# %% exercise
kinds = ["POINTWISE", "REDUCTION", "MOVEMENT", "DOT", "LOSS", "REDUCTION"]  # SOLUTION

# %%
check(kinds=kinds)

# %% check
import math

import numpy as np

import tinymp as mp
from tinymp import ops
from tinymp.autograd import Op
from tinymp.course.checking import close, expect, short
from tinymp.precision import LOSS, POINTWISE, REDUCTION


def check_kinds(kinds, random):
    expect(
        isinstance(kinds, (list, tuple)) and len(kinds) == 6, f"kinds is {kinds!r:.80}, expected a list of six names."
    )
    x, w = mp.randn(4, 3), mp.randn(3, 4)
    x.requires_grad_()
    asked = {
        "ops.sigmoid(x)": (ops.sigmoid(x), "Each result comes from one number."),
        "ops.mean(x, 0, True)": (ops.mean(x, 0, True), "It adds up."),
        "x.reshape(-1)": (x.reshape(-1), "Numbers move, and nothing is computed."),
        "x @ w": (x @ w, "Products, added up: a dot product."),
        "ops.cross_entropy(x, labels)": (ops.cross_entropy(x, mp.tensor([0, 1, 2, 0])), "Its result is FP32."),
        "ops.softmax(x, 1)": (ops.softmax(x, 1), "Each result is divided by a sum over many."),
    }
    for name, (call, (y, hint)) in zip(kinds, asked.items()):
        right = y.grad_fn.kind.name
        expect(str(name).upper() in [k.name for k in mp.precision.KINDS], f"{name!r} is no kind.")
        expect(str(name).upper() == right, f"{call} is not {name}. {hint}")


# %%
x = mp.randn(8, 4).half().requires_grad_()
labels = mp.tensor(np.arange(8) % 4)
for y in (
    ops.sigmoid(x),
    ops.mean(x, 0, True),
    x.reshape(-1),
    x @ x.T,
    ops.cross_entropy(x, labels),
    ops.softmax(x, 1),
):
    print(f"{y.grad_fn.name:14} {y.grad_fn.kind.name:10} writes {y.dtype}")

# %% [markdown]
# ## 2. How wrong may it be?
#
# Before you write an op you should know when it is good enough. A tolerance found by trial ("1e-3 seems to work")
# hides faults. So compute it. Let e be the exact result for the FP16 inputs as they are. An op that computes in FP32
# and rounds once is off by at most the sum of
#
# - 2⁻¹¹ · |e|: the rounding to FP16, half a spacing (lesson 1);
# - n · 2⁻²⁴ · max|e|: n operations in FP32. Each is off by 2⁻²⁴ of what it works on; we take the largest result for it;
# - 2⁻²⁵: half the spacing of subnormal numbers.


# %% exercise
def bound(exact, n=8):
    """The largest error of each FP16 result from `exact`: the sum of the three terms, a float64 array of its shape.

    exact: a float64 array of finite numbers of any sign. n: FP32 operations, one after the other.
    """
    # SOLUTION
    size = np.abs(exact)
    return 2.0**-11 * size + n * 2.0**-24 * size.max() + 2.0**-25
    # END


# %%
check(bound)


# %% check
def check_bound(bound, random):
    close(bound(np.zeros(2)), [2.0**-25] * 2, "bound(two zeros)", rtol=1e-9, hint="2^-25 is left.")
    for n in (0, int(random.integers(5, 60))):
        exact = random.standard_normal(6)
        exact[2] = -5.0
        largest = max(abs(e) for e in exact)
        want = [abs(e) * 2.0**-11 + n * largest / 2**24 + 2.0**-25 for e in exact]
        hint = "n * 2^-24 * max|e|: that of the largest size, also of a negative one."
        hint = hint if n else "With n = 0 two terms remain, 2^-11 |e| + 2^-25: take |e|, the size."
        close(bound(exact.copy(), n), want, f"bound({short(exact)}, {n})", rtol=1e-9, hint=hint)


# %%
x = np.random.default_rng(0).normal(0, 2, (200, 16)).astype(np.float16)
wide = x.astype(np.float64)
e = np.exp(wide - wide.max(1, keepdims=True))
claims = {
    "sigmoid": (ops.sigmoid(mp.tensor(x)).numpy(), 1 / (1 + np.exp(-wide))),
    "softmax": (ops.softmax(mp.tensor(x), 1).numpy(), e / e.sum(1, keepdims=True)),
    "mish in FP16": (mish(x), mish(wide)),
}
for name, (got, exact) in claims.items():
    worst = np.max(np.abs(got - exact) / bound(exact, 24))
    print(f"{name:13} at worst {worst:5.2f} of the bound")

# %% [markdown]
# tinymp's ops keep within it. Step by step in FP16 does not.

# %% [markdown]
# ## 3. A pointwise op
#
# An op is a class: `kind`, `forward(self, x)` and `backward(self, dy)`, both on arrays. Three things from
# `tinymp.precision` and one of `Op` are all you need:
#
# | | |
# |---|---|
# | `widen(x)` | FP16 to FP32, exact. FP32 and float64 pass unchanged |
# | `store(y, like=x)` | rounds y once to x's dtype |
# | `self.save(x)` | keeps arrays **of the storage dtype** for backward, there in `self.saved` |
#
# Here is one, whole:


# %%
class Squareplus(Op):
    """y = (x + sqrt(x^2 + 4)) / 2;  dx = dy (1 + x / sqrt(x^2 + 4)) / 2."""

    kind = POINTWISE

    def forward(self, x):
        self.save(x)
        wide = widen(x)
        return store((wide + np.sqrt(wide * wide + 4)) / 2, like=x)

    def backward(self, dy):
        (x,) = self.saved
        wide = widen(x)
        return store(widen(dy) * (1 + wide / np.sqrt(wide * wide + 4)) / 2, like=x)


x = mp.tensor([-1.0, 0.0, 2.0]).half().requires_grad_()
y = Squareplus.apply(x)
y.backward(np.ones(3, np.float16))
print(y, x.grad)

# %% [markdown]
# Now Mish. With s = ln(1 + eˣ) and t = tanh(s):
#
# y = x t, and dx = dy (t + x (1 − t²) / (1 + e⁻ˣ))


# %% exercise
class Mish(Op):
    """y = x tanh(ln(1 + e^x)), number by number. Right for all halves from -1000 to 1000, also where e^x is small.

    x, dy: arrays of any shape; float16, float32 or float64. Results have their dtype, and are rounded once.
    """

    kind = POINTWISE  # SOLUTION

    def forward(self, x):
        # SOLUTION
        self.save(x)
        wide = widen(x)
        return store(wide * np.tanh(np.log1p(np.exp(wide))), like=x)
        # END

    def backward(self, dy):
        # SOLUTION
        (x,) = self.saved
        wide = widen(x)
        t = np.tanh(np.log1p(np.exp(wide)))
        return store(widen(dy) * (t + wide * (1 - t * t) / (1 + np.exp(-wide))), like=x)
        # END


# %%
check(Mish)


# %% check
U = 2.0**-11  # FP16's half spacing, relative


def _is_op(op, kind, why, arguments=1):
    name = op.__name__
    expect(isinstance(op, type) and issubclass(op, Op), f"{name} is no Op: write `class {name}(Op):`.")
    for part in ("forward", "backward"):
        expect(part in vars(op), f"{name} has no {part}.")
    found = getattr(op, "kind", ...)
    if found is ...:
        op().forward(*[np.ones(2)] * arguments)  # not written either?
    expect(found is kind, f"{name}.kind is {getattr(found, 'name', found)!s}, expected {kind.name}: {why}")


def _run(op, arrays, dy, wants):
    """(y, the gradients, what the ledger says of forward and of backward, the node) of op on arrays; only the
    first wants a gradient.
    """
    tensors = [mp.tensor(x.copy(), requires_grad=i == 0) for i, x in enumerate(arrays)]
    with mp.audit() as a:
        y = op.apply(*tensors)
        node, shape = y.grad_fn, y.shape
        expect(shape == wants, f"{op.__name__} on {arrays[0].shape} returns shape {shape}, expected {wants}.")
        kept = [*node.saved, *node.statistics, *vars(node).values()]
        y.backward(np.asarray(dy, y.dtype))
    rows = {row.phase: row for row in a.ledger if row.op == node.name}
    return y.numpy(), tensors[0].grad.array, rows, {id(k): k for k in kept if isinstance(k, np.ndarray)}.values()


def _agrees(op, oracle, arrays, random, shape):
    """In float64: values against the oracle, slopes against its central differences along random directions."""
    name, dy = op.__name__, random.standard_normal(shape)
    y, dx, _, _ = _run(op, arrays, dy, shape)
    close(y, oracle(*arrays), f"{name} in float64, forward,", rtol=1e-10, atol=1e-12)
    expect(y.dtype == np.float64, f"{name} on float64 returns {y.dtype}. Name no dtype: widen and store do that.")
    ratios = []
    for _ in range(3):
        v, h = random.standard_normal(arrays[0].shape), 2.0**-17
        up, down = (oracle(arrays[0] + s * v, *arrays[1:]) for s in (h, -h))
        want = float(np.sum(dy * (up - down)) / (2 * h))
        ratios.append((float(np.sum(dx * v)), want, float(np.sum(np.abs(dx * v)))))
    wrong = [(got, want) for got, want, size in ratios if abs(got - want) > 1e-6 * (size + abs(want)) + 1e-12]
    if wrong:
        factors = [got / want for got, want, _ in ratios]
        same = max(factors) - min(factors) < 1e-4 * abs(factors[0])
        hint = f"It is always {factors[0]:.4g} times the right one: a factor is missing." if same else ""
        text = (
            f"{name}.backward is wrong, in float64: along a random direction its slope is {wrong[0][0]:.6g}, a central"
        )
        expect(False, f"{text} difference of the true function says {wrong[0][1]:.6g}. {hint}")


def _within(got, exact, limit, what, hint):
    expect(got.dtype == np.float16, f"{what} is {got.dtype}, expected float16.")
    bad = ~(np.abs(got.astype(np.float64) - exact) <= limit)
    if bad.any():
        i = tuple(np.argwhere(bad)[0])
        raised = abs(float(got[i]) - exact[i]) / np.broadcast_to(limit, exact.shape)[i]
        expect(False, f"{what} is {got[i]} where {exact[i]:.6g} is exact, {raised:.3g} of the bound. {hint}")


def _rounded_once(op, rows, phase, numbers):
    seen = rows[phase].rounded if phase in rows else 0
    text = f"{op.__name__}.{phase} rounds {seen} numbers to FP16 to make {numbers}, by the audit's ledger."
    hint = "Its arithmetic is in FP16 all along: widen what you read." if seen < numbers else "Round once, at the end."
    expect(seen == numbers, f"{text} {hint}")


def _keeps(op, kept, most):
    wide = sum(k.size for k in kept if k.dtype == np.float32)
    text = f"{op.__name__} on FP16 keeps {wide} FP32 numbers for backward, expected {most} at most."
    expect(wide <= most, f"{text} Save the FP16 array: widen it again in backward.")


def check_Mish(Mish, random):
    _is_op(Mish, POINTWISE, "each number of the result comes from one number.")

    def parts(x):
        t, s = np.tanh(np.log1p(np.exp(x))), 1 / (1 + np.exp(-x))
        return t, x * (1 - t * t) * s

    _agrees(Mish, lambda x: x * parts(x)[0], [random.standard_normal((3, 4))], random, (3, 4))
    x = np.concatenate([random.uniform(-9, 9, 200), random.uniform(-16, -9, 60), [0, -17.5, 11.5, 60, 700, -700]])
    x, dy = x.astype(np.float16), random.uniform(0.5, 1, x.size).astype(np.float16)
    y, dx, rows, kept = _run(Mish, [x], dy, x.shape)
    wide, (first, second) = x.astype(np.float64), parts(x.astype(np.float64))
    exact, work = wide * first, 2.0**-24 * 16
    hint = (
        "For small e^x take np.log1p, not np.log(1 + ...)."
        if len(rows) and rows["forward"].rounded
        else "Did you widen?"
    )
    _within(y, exact, (U + work) * np.abs(exact) + 2.0**-25, "a number of Mish's result", hint)
    slope = dy * (first + second)
    limit = U * np.abs(slope) + work * dy * (np.abs(first) + np.abs(second)) + 2.0**-25
    _rounded_once(Mish, rows, "forward", x.size)
    hint = "Did you widen both x and dy? Is it right where e^x is infinite, or e^-x?"
    _within(dx, slope, limit, "a number of Mish's gradient", hint)
    _rounded_once(Mish, rows, "backward", x.size)
    _keeps(Mish, kept, 0)


# %%
every = mp.tensor(halves)
exact = mish(halves.astype(np.float64))
figure, axes = plt.subplots()
for label, y in (("each step in FP16", mish(halves)), ("your op", Mish.apply(every).numpy())):
    axes.plot(halves, np.abs(y - exact) / (2.0**-11 * np.abs(exact) + 2.0**-25), ".", markersize=2, label=label)
axes.axhline(1, color="0.4", linestyle=":")
axes.set(
    xlabel="x", ylabel="error / bound", ylim=(2.0**-6, None), title="Mish, compared with what one rounding may cost"
)
axes.set_yscale("log", base=2)
axes.legend(markerscale=4)

# %% [markdown]
# tinymp has this op, as a row of a table: `ops.mish` in `tinymp/ops/more/unary.py` gives f and its slope, for FP32
# numbers. The class `Unary` in `tinymp/ops/unary.py` widens, computes and stores, once for all such functions. It calls
# `self.xp.exp` where you call `np.exp`: `self.xp` is NumPy or CuPy, and with it your op runs on a GPU as well.
#
# ## 4. A reduction
#
# Now an op that adds up. It gives each row the length 1:
#
# y = x / r, with r = √(Σ x²) over the last axis; dx = (dy − y Σ(y dy)) / r
#
# In FP16, x = 300 is enough for x² to be infinite, and x = 0.0001 for x² to be 0. So r must be FP32. It is one number
# per row, a *statistic*, and a REDUCTION may keep it in FP32:
#
# | | |
# |---|---|
# | `reduce(z, -1, "sum", like=x)` | the sum of FP32 values z, made from x, over the last axis; it keeps length 1 |
# | `self.save(y, statistics=(r,))` | then `self.statistics` holds (r,) |
#
# Sums must go through `reduce`, not `np.sum`: that primitive is where a policy decides and an audit listens.


# %% exercise
class UnitNorm(Op):
    """y = x / r with r = sqrt(sum of x^2) over the last axis: each row gets the length 1.

    x, dy: arrays of one axis or more; float16, float32 or float64. No row is all 0. Results have their dtype, and are
    rounded once. For backward only arrays of the storage dtype are kept, and r.
    """

    kind = REDUCTION  # SOLUTION

    def forward(self, x):
        # SOLUTION
        wide = widen(x)
        r = np.sqrt(reduce(wide * wide, -1, "sum", like=x))
        y = store(wide / r, like=x)
        self.save(y, statistics=(r,))
        return y
        # END

    def backward(self, dy):
        # SOLUTION
        (y,), (r,) = self.saved, self.statistics
        wide, dy = widen(y), widen(dy)
        return store((dy - wide * reduce(wide * dy, -1, "sum", like=y)) / r, like=y)
        # END


# %%
check(UnitNorm)


# %% check
def check_UnitNorm(UnitNorm, random):
    _is_op(UnitNorm, REDUCTION, "each number of the result depends on a sum.")

    def unit(x):
        return x / np.sqrt((x * x).sum(-1, keepdims=True))

    _agrees(UnitNorm, unit, [random.standard_normal((3, 5))], random, (3, 5))
    sizes = np.array([1.0, 300.0, 30000.0, 2.0**-13, 2.0**-14])[:, None]  # squares of most overflow or vanish in FP16
    x = (random.uniform(0.5, 1, (5, 24)) * random.choice([-1, 1], (5, 24)) * sizes).astype(np.float16)
    dy = (random.standard_normal((5, 24)) * np.minimum(sizes, 1)).astype(np.float16)
    y, dx, rows, kept = _run(UnitNorm, [x], dy, x.shape)
    wide, work = x.astype(np.float64), 2.0**-24 * 64  # sums of 24 terms, forward and backward, and some more
    exact = unit(wide)
    hint = "Squares of 300 are infinite in FP16, those of 0.0001 are 0: widen first."
    _within(y, exact, (U + work) * np.abs(exact) + 2.0**-25, "a number of UnitNorm's result", hint)
    _rounded_once(UnitNorm, rows, "forward", x.size)
    r, d = np.sqrt((wide * wide).sum(-1, keepdims=True)), dy.astype(np.float64)
    slope = (d - exact * (exact * d).sum(-1, keepdims=True)) / r
    terms = np.abs(exact) * np.abs(exact * d).sum(-1, keepdims=True) / r
    # y may have been saved in FP16: it is read twice there, each time off by U
    limit = U * np.abs(slope) + 2.1 * U * terms + work * (np.abs(d) / r + terms) + 2.0**-25
    hint = "Widen what you read, keep r in FP32 as a statistic, and round once."
    _within(dx, slope, limit, "a number of UnitNorm's gradient", hint)
    _rounded_once(UnitNorm, rows, "backward", x.size)
    _keeps(UnitNorm, kept, 5)
    for phase in ("forward", "backward"):
        text = (
            f"the sum in UnitNorm.{phase} does not go through the primitive `reduce`: no policy could decide about it"
        )
        expect(
            rows[phase].accumulated == "float32", f"{text} (the ledger says it sums in {rows[phase].accumulated!r})."
        )


# %%
x = mp.tensor(np.random.default_rng(0).standard_normal((4, 64)) * np.array([[0.0001], [1], [300], [5000]])).half()
with mp.use(mp.FP16_REDUCTIONS):
    in_fp16 = UnitNorm.apply(x)
for row, one, other in zip(x.numpy(), UnitNorm.apply(x).float().numpy(), in_fp16.float().numpy()):
    print(f"largest {np.abs(row).max():9.4f}   length with r summed in FP32 {np.sqrt((one**2).sum()):.4f}", end="   ")
    print(f"in FP16 {np.sqrt((other**2).sum()):.4f}")

# %% [markdown]
# You never wrote a word about `FP16_REDUCTIONS`. Your op obeys it, because its sum goes through the primitive. With a
# total in FP16 the large rows overflow, and come out as zeros; of a tiny row some squares become 0, others are
# rounded up.

# %% [markdown]
# ## 5. A loss
#
# A loss reads FP16 and writes **FP32** (NVG 2.3.1): a single number that summarises a batch must not be rounded to 11
# bits, or overflow. So a loss does not `store` its result. Its dy is FP32, too, and may be large: it carries the loss
# scale (lesson 5). Multiply by it **before** you round dx, or small gradients are gone.
#
# Log-cosh is a loss between squares and absolute values. With d = x − t, over all n numbers:
#
# L = (1/n) Σ ln cosh d, and dx = dy tanh(d) / n
#
# cosh overflows for large d. So take ln cosh d = |d| + ln(1 + e^(−2|d|)) − ln 2. Write `math.log(2)`, a Python number:
# `np.log(2)` is a float64, and makes everything float64. All axes are `tuple(range(x.ndim))`, and `reduce` knows
# "mean", too.


# %% exercise
class LogCosh(Op):
    """The mean of ln cosh(x - target), without axes: shape (). FP32 for float16 arguments, else of their dtype.

    x, target: arrays of one shape (one axis or more) and dtype. backward returns (dx, None): no gradient for target.
    dy: an array of shape (). For backward no FP32 array is kept.
    """

    kind = LOSS  # SOLUTION

    def forward(self, x, target):
        # SOLUTION
        self.save(x, target)
        d = np.abs(widen(x) - widen(target))
        each = d + np.log1p(np.exp(-2 * d)) - math.log(2)
        return reduce(each, tuple(range(x.ndim)), "mean").reshape(())
        # END

    def backward(self, dy):
        # SOLUTION
        x, target = self.saved
        return store(dy * np.tanh(widen(x) - widen(target)) / x.size, like=x), None
        # END


# %%
check(LogCosh)


# %% check
def check_LogCosh(LogCosh, random):
    _is_op(LogCosh, LOSS, "it summarises, and writes FP32.", 2)

    def each(d):
        return np.abs(d) + np.log1p(np.exp(-2 * np.abs(d))) - math.log(2)

    pair = [random.standard_normal((3, 4)), random.standard_normal((3, 4))]
    _agrees(LogCosh, lambda x, t: np.asarray(each(x - t).mean()), pair, random, ())
    n = 4096
    x, t = ((random.standard_normal((4, n // 4)) * 0.05).astype(np.float16) for _ in range(2))
    x[0, :4], t[0, :4] = (60000, -60000, 200, 2), (-60000, 1, -2, 1)
    scale = 2.0**15
    y, dx, rows, kept = _run(LogCosh, [x, t], scale, ())
    expect(y.dtype == np.float32, f"LogCosh on FP16 returns {y.dtype}, expected float32.")
    wide = x.astype(np.float64) - t.astype(np.float64)
    hint = (
        "Add up in FP32, and leave the result there: no store. And cosh overflows for large d: use the other formula."
    )
    close(y, each(wide).mean(), "LogCosh of FP16 arrays", rtol=2.0**-15, hint=hint)  # what `reduce` promises
    exact = scale * np.tanh(wide) / n
    hint = "Multiply by dy before you round: dy carries the loss scale."
    _within(dx, exact, (U + 2.0**-24 * 16) * np.abs(exact) + 2.0**-25, "with dy = 2^15, a number of LogCosh's dx", hint)
    _rounded_once(LogCosh, rows, "backward", n)
    _keeps(LogCosh, kept, 0)
    text = "the mean in LogCosh.forward does not go through the primitive `reduce`: no audit hears of it"
    expect(rows["forward"].accumulated == "float32", f"{text} (it sums in {rows['forward'].accumulated!r}).")


# %% [markdown]
# ## 6. All three in a network, and who rounds
#
# A network with your activation, your norm and your loss tells digits apart. The targets are 1 for the right digit and
# 0 for the others.

# %%
images, labels, test_images, test_labels = digits()
images, test_images = images.reshape(len(images), -1), test_images.reshape(len(test_images), -1)
targets = np.eye(10, dtype=np.float32)[labels]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(Mish.apply(UnitNorm.apply(self.hidden(x)) * 8.0))


def train(policy, steps=STEPS):
    mp.manual_seed(0)
    model = policy.cast(Net())
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    scaler = optim.DynamicLossScaler() if policy is mp.MIXED else optim.NoLossScaler()
    generator, curve = np.random.default_rng(0), []
    with mp.use(policy):
        for _ in range(steps):
            batch = generator.integers(0, len(images), 64)
            x, t = (policy.cast(mp.tensor(a[batch])) for a in (images, targets))
            loss = LogCosh.apply(model(x), t)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            curve.append(loss.item())
        with mp.no_grad():
            guess = model(policy.cast(mp.tensor(test_images))).numpy().argmax(1)
    return curve, np.mean(guess == test_labels)


figure, axes = plt.subplots()
for policy, style in ((mp.FP32, {"linewidth": 5, "alpha": 0.4}), (mp.MIXED, {})):
    curve, right = train(policy)
    axes.plot(curve, label=f"{policy.name}: {right:.1%} of the test's digits", **style)
axes.set(xlabel="step", ylabel="loss", title="Your three ops at work")
axes.legend()

# %% [markdown]
# Both curves are the same to the eye. The audit has a line for each of your ops, like for tinymp's own:

# %%
with mp.audit() as a:
    train(mp.MIXED, 5)
print("Five steps, and the test:")
print("op         phase     kind       reads     sums in   writes     rounded   zero  subnormal")
for row in a.ledger:
    if row.op in ("mish", "unit_norm", "log_cosh"):
        print(f"{row.op:10} {row.phase:9} {row.kind:10} {row.read:9} {row.accumulated:9} {row.written:9}", end=" ")
        print(f"{row.rounded:8,} {row.zero:6,} {row.subnormal:6,}")

# %% [markdown]
# `log_cosh` forward rounds nothing: it is a loss. In all other rows as many numbers are rounded as are written, none
# twice.
#
# And what if you make a mistake? `Op.apply` looks at each result. Three ops that forget something:


# %%
class ForgotStore(Op):
    kind = POINTWISE

    def forward(self, x):
        return widen(x) * 2


class SavesWide(Op):
    kind = POINTWISE

    def forward(self, x):
        wide = widen(x)
        self.save(wide)
        return store(wide * wide, like=x)


class RoundsLoss(Op):
    kind = LOSS

    def forward(self, x):
        return store(reduce(x, 0, "sum"), like=x).reshape(())


x = mp.ones(4).half().requires_grad_()
for op in (ForgotStore, SavesWide, RoundsLoss):
    try:
        op.apply(x)
    except TypeError as error:
        print(error)
try:
    LogCosh.apply(x, mp.ones(4))
except TypeError as error:
    print(error)

# %% [markdown]
# What it cannot see is FP16 arithmetic in between: `x * x` without `widen` has the promised dtype. That is why an op
# is held to a computed bound. tinymp's own are, in `tests/oracle.py`, with the three terms of your
# `bound`.
#
# Now read `tinymp/ops/softmax.py`. You will understand each line of its forward and backward.
#
# ## What to remember
#
# - The sandwich: **widen, compute in FP32, store once**. Save the stored array, not an FP32 copy.
# - The kind is a promise: POINTWISE and REDUCTION write storage, a LOSS writes FP32, and `Op.apply` checks.
# - Sums go through `reduce`. Then policies and audits also work for your op.
# - Tolerances are computed: one rounding, the FP32 work, half a subnormal spacing. Gradients are held to central
# differences in float64.
#
# ## To think about
#
# 1. UnitNorm can save x or y. When is saving y free?
# 2. Mish computes tanh and ln twice, forward and backward. Why not save t in FP16? What would the bound say?
# 3. Max pooling is MOVEMENT. Why may it work on FP16 without widening?
# 4. You want Mish on BF16. What must change in your class?
