# %% [markdown]
# # 1. Numbers
#
# *55 minutes.*
#
# **A machine counts visitors. It adds 1 for each, in FP16. After 10,000 visitors it says 2,048. Which line of the
# program lost the others?**
#
# - **You know** Python with NumPy, and powers of two.
# - **You do**: read the 16 bits of a half, measure how far it is to the next one, round to FP16, BF16 or E5M2 as the
#   hardware does, and add up numbers without a stall.
# - **You can then** predict where a sum stalls, name two cures, and find the line of tinymp that rounds.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), NVG is NVIDIA's guide *Training
# with Mixed Precision*. On Colab, first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import ops
from tinymp.study.formats import BF16, E5M2, FP16
from tinymp.course import check

# %%
import inspect
import math

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")

# %% [markdown]
# ## The question, in a picture
#
# Both counters read the same 10,000 ones, stored in FP16. `FP16_REDUCTIONS` is a policy of tinymp that exists to study
# this fault: it keeps the running total in FP16. `MIXED` keeps it in FP32.

# %%
ones = ops.ones(10_000).half()

figure, axes = plt.subplots()
for policy, style in ((mp.MIXED, "--"), (mp.FP16_REDUCTIONS, "-")):
    with mp.use(policy):
        axes.plot(
            ops.cumsum(ones, 0).numpy(), style, label=f"the total in {np.dtype((policy.study or policy).reduce).name}"
        )
axes.set(xlabel="visitors", ylabel="what the counter says", title="Counting in two precisions")
axes.legend()

# %% [markdown]
# No error, no warning. The counter works, and then it stands still.

# %% [markdown]
# ## 1. Sixteen bits
#
# A half is 16 bits (NVG 2.1):
#
# | bit 15 | bits 14 to 10 | bits 9 to 0 |
# |---|---|---|
# | sign s | exponent e, 0 to 31 | fraction f, 0 to 1023 |
#
# | e | what it means |
# |---|---|
# | 1 to 30 | a *normal* number: (−1)ˢ · 2^(e − 15) · (1 + f / 1024) |
# | 0 | a *subnormal* number, or 0: (−1)ˢ · 2^(−14) · (f / 1024) |
# | 31 | infinity if f = 0, else NaN ("not a number") |
#
# So the bits of 1.5 are `0 01111 1000000000`: 2⁰ · (1 + 512/1024). In Python `bits >> 10` throws the last ten bits
# away, and `bits & 1023` keeps only these.


# %% exercise
def decode(bits):
    """(sign, exponent, fraction, value) of a half, given as an integer.

    bits: an int, 0 to 65535. sign: 0 or 1; exponent: 0 to 31; fraction: 0 to 1023, all as they are stored.
    value: a float; also -0.0, infinities of both signs (math.inf) and math.nan.
    """
    # SOLUTION
    sign, exponent, fraction = bits >> 15, bits >> 10 & 31, bits & 1023
    if exponent == 31:
        size = math.nan if fraction else math.inf
    elif exponent == 0:
        size = 2.0**-14 * fraction / 1024
    else:
        size = 2.0 ** (exponent - 15) * (1 + fraction / 1024)
    return sign, exponent, fraction, -size if sign else size
    # END


# %%
check(decode)

# %% check
import inspect
import math
from fractions import Fraction

import numpy as np

import tinymp as mp
from tinymp.study.formats import BF16, E5M2, FP16
from tinymp.course.checking import close, expect, short


def _half(bits):
    return float(np.uint16(bits).view(np.float16))


def check_decode(decode, random):
    hints = {
        0x3C00: "Exponent 15, fraction 0: 2^0 (1 + 0).",
        0x3E00: "",
        0x7BFF: "The largest: 2^15 (1 + 1023/1024) = 65504.",
        0x0000: "Exponent 0 and fraction 0 is zero.",
        0x0001: "With exponent 0 there is no 1 in front of the fraction, and the power is 2^-14.",
        0x03FF: "With exponent 0 the power is 2^-14, not 2^-15.",
        0xC000: "Bit 15 is the sign.",
        0x8000: "The sign of zero counts: -0.0.",
        0x7C00: "Exponent 31 and fraction 0 is infinity.",
        0xFC00: "Exponent 31 and fraction 0 is infinity, of the sign's side.",
        0x7E00: "Exponent 31 and a fraction that is not 0 is NaN.",
        0xFC01: "Exponent 31 and a fraction that is not 0 is NaN.",
    }
    cases = [*hints, *(int(n) for n in random.integers(0, 2**16, 60)), *(int(n) for n in random.integers(0, 1024, 8))]
    for bits in cases:
        call, got, hint = f"decode(0x{bits:04x})", decode(bits), hints.get(bits, "")
        good = isinstance(got, (tuple, list)) and len(got) == 4
        expect(good, f"{call} returns {got!r:.60}, expected (sign, exponent, fraction, value).")
        text = f"{bits:016b}"
        fields = [int(text[0], 2), int(text[1:6], 2), int(text[6:], 2)]
        for name, have, want in zip(("sign", "exponent", "fraction"), got, fields):
            close(have, want, f"the {name} of {call}", 0, hint=f"The bits are {text[0]} {text[1:6]} {text[6:]}.")
        close(got[3], _half(bits), f"the value of {call}", rtol=0, hint=hint)
        if _half(bits) == 0:
            same = math.copysign(1, got[3]) == math.copysign(1, _half(bits))
            expect(same, f"the value of {call} is {got[3]}, expected {_half(bits)}. The sign of zero counts.")


# %%
patterns = range(0, 0x7C00, 8)
values = [decode(bits)[3] for bits in patterns]
figure, (left, right) = plt.subplots(1, 2)
left.plot(patterns, values)
left.set(xlabel="the 16 bits, read as an integer", ylabel="value", title="All finite halves from 0 up")
right.plot(patterns, values)
right.set(xlabel="the 16 bits, read as an integer", yscale="log", title="The same, logarithmic")
right.axhspan(2.0**-24, 2.0**-14, color="C1", alpha=0.15)
right.text(31000, 2.0**-19, "subnormal", ha="right")
right.set_yticks([2.0**-24, 2.0**-14, 1, 2.0**15], ["2⁻²⁴", "2⁻¹⁴", "1", "2¹⁵"])
right.minorticks_off()

# %% [markdown]
# Nearly half of these numbers lie below 1; on the left you hardly see them. On the right the curve is nearly straight:
# the bits of a float are almost its logarithm. Only the subnormal numbers bend away.

# %% [markdown]
# ## 2. How far to the next one?
#
# From 1 to 2 there are 1,024 steps, from 1,024 to 2,048 also. So the step, the *spacing*, doubles at each power of
# two. Below the smallest normal number it shrinks no more.
#
# tinymp has the formats as data: `FP16.fraction` is 10, `FP16.smallest_normal` is 2⁻¹⁴, `FP16.smallest` is 2⁻²⁴,
# `FP16.largest` is 65,504. `math.frexp(x)` gives (m, p) with x = m · 2ᵖ and 1/2 ≤ |m| < 1, without any rounding.


# %% exercise
def spacing(x, f=FP16):
    """The distance between neighbours of the format f at x, as a float.

    x: a finite float of either sign, |x| <= f.largest. At a power of two the step above it counts (of 1.0 in FP16:
    2**-10). Where numbers are subnormal, and at 0, it is f.smallest.
    """
    # SOLUTION
    power = math.frexp(x)[1] - 1
    return max(2.0 ** (power - f.fraction), f.smallest) if x else f.smallest
    # END


# %%
check(spacing)


# %% check
def check_spacing(spacing, random):
    halves = np.append(np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64), 65536.0)
    drawn = [float(2.0 ** random.uniform(-16, 15.9)) for _ in range(20)]
    for x in (1.0, 1.5, 2048.0, 2047.0, 65504.0, 2.0**-14, 2.0**-15, 2.0**-24, 2.0**-30, 0.0, 0.1, *drawn):
        at = int(np.searchsorted(halves, x, side="right"))  # halves[at - 1] <= x < halves[at]
        want = float(halves[at] - halves[at - 1])
        hint = f"Its neighbours are {halves[at - 1]:.9g} and {halves[at]:.9g}."
        hint = "Below 2^-14 the spacing stays at f.smallest." if x < 2.0**-14 else hint
        close(spacing(x), want, f"spacing({x!r})", rtol=0, hint=hint)
        close(spacing(-x), want, f"spacing({-x!r})", rtol=0, hint="The sign does not matter.")
    for f, x, want in ((BF16, 1.0, 2.0**-7), (E5M2, 3.0, 0.5), (E5M2, 2.0**-15, 2.0**-16), (BF16, 1e30, 2.0**92)):
        hint = "Take fraction and smallest from f."
        close(spacing(x, f), want, f"spacing({x!r}, {f.name.upper()})", rtol=0, hint=hint)


# %%
x = 2.0 ** np.arange(-26, 15.99, 0.01)
generator = np.random.default_rng(0)
some = np.float32(2.0 ** generator.uniform(-26, 16, 4000))
errors = np.abs(FP16.round(some) - some) / some

figure, axes = plt.subplots()
axes.plot(some, errors, ".", markersize=2, color="C5", label="4,000 numbers, rounded by tinymp")
axes.plot(x, [spacing(one) / 2 / one for one in x], color="C1", label="half your spacing / x")
axes.set(xlabel="x", ylabel="relative error", title="Rounding to FP16", ylim=(2.0**-18, 4))
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.legend(loc="upper right")

# %% [markdown]
# Your curve is the roof of the cloud: rounding to nearest moves a number by half a spacing at most. From 2⁻¹⁴ up that
# is at most 2⁻¹¹ of x, and just before the next power of two 2⁻¹². To the left the subnormal numbers lose digits.

# %% [markdown]
# ## 3. Rounding
#
# A number between two neighbours goes to the nearer one. What lies exactly in the middle, a *tie*, goes to the
# neighbour whose last bit is 0 ("to even"). So ties go up as often as down.
#
# Divide x by the spacing. That is exact: the spacing is a power of two. Now the neighbours are integers, and *even*
# means even. Round to an integer, and multiply again.
#
# What is rounded to something above f.largest becomes infinite.


# %% exercise
def rounded(x, f=FP16):
    """x rounded to the format f: to nearest, ties to even; a float.

    x: any float. What would be beyond f.largest becomes infinite, with its sign. NaN, infinities and zeros of
    either sign stay what they are; what is rounded to zero may have either sign. Round once: no NumPy dtype between.
    """
    # SOLUTION
    if x == 0 or not math.isfinite(x):
        return x
    u = spacing(x, f)
    n = math.floor(x / u)
    rest = x / u - n
    if rest > 0.5 or (rest == 0.5 and n % 2):
        n += 1
    y = n * u
    return y if abs(y) <= f.largest else math.copysign(math.inf, x)
    # END


# %%
check(rounded)


# %% check
def _nearest(x, f):
    """x on the grid of f, by exact fractions: the nearest of the three multiples of the spacing around it."""
    exact, unit = Fraction(abs(x)), Fraction(f.smallest)
    while exact >= unit * 2 ** (f.fraction + 1):
        unit *= 2
    low = exact // unit
    up = exact / unit - low
    n = low + (up > Fraction(1, 2) or (up == Fraction(1, 2) and low % 2 == 1))
    y = n * unit
    return math.copysign(float(y) if y <= Fraction(f.largest) else math.inf, x)


def check_rounded(rounded, random):
    hints = {
        1 + 2.0**-11: "A tie goes to the neighbour with an even last bit, here down.",
        1 + 3 * 2.0**-11: "A tie goes to the neighbour with an even last bit, here up.",
        1 + 2.0**-11 + 2.0**-40: "It lies just above the middle. Did you round twice, by way of FP32?",
        2049.0: "A tie: 2048 or 2050? The one that is an even number of spacings.",
        65519.0: "The next after 65504 would be 65536; this is nearer to 65504.",
        65520.0: "The middle of 65504 and 65536, which is even: infinity.",
        1e6: "It is beyond the largest number.",
        1e300: "It is beyond the largest number.",
        2.0**-25: "A tie between 0 and 2^-24: 0 is even.",
        2.0**-25 * 1.01: "It is nearer to 2^-24 than to 0.",
        3.3 * 2.0**-24: "A subnormal number: the spacing is 2^-24.",
        math.inf: "It stays.",
    }
    drawn = [float(2.0 ** random.uniform(-27, 17)) for _ in range(60)]
    for x in (*hints, *drawn):
        hint = hints.get(x, f"The spacing there is {2.0 ** max(math.frexp(x)[1] - 11, -24):g}." if x < 65520 else "")
        want = x if math.isinf(x) else _nearest(x, FP16)
        close(rounded(x), want, f"rounded({x!r})", rtol=0, hint=hint)
        close(rounded(-x), -want, f"rounded({-x!r})", rtol=0, hint=hint + " The sign changes nothing else.")
    close(rounded(math.nan), math.nan, "rounded(math.nan)")
    for zero in (0.0, -0.0):
        same = math.copysign(1, rounded(zero)) == math.copysign(1, zero)
        expect(rounded(zero) == 0 and same, f"rounded({zero}) is {rounded(zero)}, expected {zero}.")
    for f in (BF16, E5M2):
        for x in (
            1.0,
            1.125,
            1.375,
            3e38 if f is BF16 else 61440.0,
            *(float(2.0 ** random.uniform(-14, 15)) for _ in range(2)),
        ):
            close(rounded(x, f), _nearest(x, f), f"rounded({x!r}, {f.name.upper()})", rtol=0, hint="Use f throughout.")


# %%
x = mp.tensor(np.float32(2.0 ** generator.uniform(-27, 17, 5000)))
by_store = x.half().numpy()
by_you = np.array([rounded(one) for one in x.tolist()])
print(f"tinymp and you agree on {np.sum(by_store == by_you):,} of {x.numel():,} numbers")

some = 2.0 ** np.arange(-30, 18, 0.0917)
figure, axes = plt.subplots()
for f in (FP16, BF16, E5M2):
    error = [abs(rounded(float(one), f) - one) / one for one in some]
    axes.plot(some, error, ".", markersize=3, label=f"{f.name.upper()}: {f.exponent} + {f.fraction} bits")
axes.set(xlabel="x", ylabel="relative error", title="Three formats, by your function", ylim=(2.0**-17, 32))
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.legend(loc="upper right", ncols=3)

# %% [markdown]
# FP16 and E5M2 end at 2¹⁶: what lies beyond is infinite. BF16 has as many bits as FP16, but spends three more on the
# exponent. Its errors are eight times as large, and it has no edges in this picture: it reaches from 2⁻¹³³ to 2¹²⁸.
# E5M2 is FP16 without its last eight bits. Range against digits: that is the choice of a format.

# %% [markdown]
# ## 4. Where a sum stalls
#
# Now the counter. At 2,048 the spacing of FP16 is 2. So 2,049 is a tie, 2,048 is the even neighbour, and the sum is
# what it was. Every further 1 meets the same fate.
#
# Before you write: where does the sum of many 0.1 stall? Take a guess with `spacing`, then write the function. The
# term is an FP16 number, and each new total is rounded to FP16.


# %% exercise
def stall(term):
    """Where the FP16 total of term + term + term + ... stops growing, as a float; math.inf if it overflows first.

    term: a float above 0 that FP16 holds exactly. The total begins at 0.
    """
    # SOLUTION
    power = 2.0 ** (math.frexp(term)[1] - 1)  # the largest power of two up to term
    total = power * (2048 if term == power else 4096)  # there half a spacing is as large as term, or larger
    return total if total <= 65504 else math.inf
    # END


# %%
check(stall)


# %% check
def check_stall(stall, random):
    def half(x):
        return float(np.float16(x))

    drawn = [half(2.0 ** random.uniform(-20, 4.5)) for _ in range(4)]
    power = 2.0 ** int(random.integers(-12, 4))
    for term in (1.0, half(0.1), power, 3.0, 16.0, 24.0, 32.0, 3 * 2.0**-24, *drawn):
        total, step = np.float16(0), np.float16(term)
        with np.errstate(over="ignore"):
            while total + step != total:  # at most 4,096 times
                total = total + step
        hint = "At this total, is the term less than half a spacing?"
        if math.frexp(term)[0] == 0.5:
            hint = (
                "The term is a power of two: at some total it is exactly half a spacing, a tie, and the total is even."
            )
        if math.isinf(total):
            hint = "The total passes 65504 before it stalls."
        close(stall(term), float(total), f"stall({term!r})", rtol=0, hint=hint)


# %%
tenth = rounded(0.1)
tenths = ops.full(10_000, tenth).half()
print(f"0.1 in FP16 is {tenth:.7f}; the sum stalls at {stall(tenth):g}")

figure, axes = plt.subplots()
for term in (1.0, rounded(0.1), rounded(0.01)):
    with mp.use(mp.FP16_REDUCTIONS):
        (line,) = axes.plot(np.arange(1, 10_001), ops.cumsum(ops.full(10_000, term).half(), 0).numpy())
    axes.axhline(stall(term), color=line.get_color(), linestyle=":")
    axes.text(1, stall(term) * 1.3, f"terms of {term:.4g}: you say {stall(term):g}", color=line.get_color())
axes.set(xlabel="terms", ylabel="total", xscale="log", yscale="log", ylim=(0.005, 8000), title="Totals kept in FP16")

# %% [markdown]
# A sum in FP16 is useless beyond some 2,000 to 4,000 terms of one size. A network makes longer sums all the time: the
# gradient of a bias is a sum over all samples and pixels of a batch.

# %% [markdown]
# ## 5. Two cures
#
# **A wider total.** Keep it in FP32, and round once, at the end. MPT 3.3 says so of all large sums.
#
# **Another order.** Add halves of the list instead: the two partial sums are of like size, so no term is tiny beside
# its partner. Write this one, with FP16 totals all the way.


# %% exercise
def pairwise(x):
    """The sum of x with nothing but FP16 additions of two numbers: the first half's sum plus the second half's.

    x: a float16 array with one axis, one element or more; the first half has len(x) // 2 elements. Returns a
    np.float16. Each half is summed in the same way.
    """
    # SOLUTION
    if len(x) == 1:
        return x[0]
    middle = len(x) // 2
    return pairwise(x[:middle]) + pairwise(x[middle:])
    # END


# %%
check(pairwise)


# %% check
def check_pairwise(pairwise, random):
    close(pairwise(np.float16([1.5])), 1.5, "pairwise([1.5])", rtol=0, dtype=np.float16)
    trap = np.float16([2048, 1, -2048, 0])
    hint = "2048 + 1 is 2048 in FP16, and -2048 + 0 is -2048. Did you add in a wider dtype, or in another order?"
    close(pairwise(trap.copy()), 0, f"pairwise({short(trap)})", rtol=0, dtype=np.float16, hint=hint)
    trap = np.float16([2048, -2048, 1, 1, 1])
    close(pairwise(trap.copy()), 3, f"pairwise({short(trap)})", rtol=0, dtype=np.float16, hint="Nothing is lost here.")
    trap = np.float16([1, 2048, -2048])
    hint = "The first half of three numbers is the first one: 1 + (2048 - 2048)."
    close(pairwise(trap.copy()), 1, f"pairwise({short(trap)})", rtol=0, dtype=np.float16, hint=hint)
    hint = "It stalls: is it a running sum?"
    close(pairwise(np.ones(4096, np.float16)), 4096, "pairwise(4096 ones)", rtol=0, hint=hint)
    hint = "Each half must be added in the same way, down to single numbers, and each addition rounded to FP16."
    for n in (*range(2, 9), *(int(n) for n in random.integers(9, 700, 20))):
        x = random.uniform(0, 1, n).astype(np.float16)
        call = f"pairwise({short(x)})" if n < 9 else f"pairwise({n} numbers between 0 and 1)"
        close(pairwise(x.copy()), _by_halves(x), call, rtol=0, dtype=np.float16, hint=hint)


def _by_halves(x):
    """The sum of two exact sums of halves, rounded once: so one level after the other."""
    if len(x) == 1:
        return x[0]
    return np.float16(sum(Fraction(float(_by_halves(half))) for half in np.split(x, [len(x) // 2])))


# %%
def running(x):
    with mp.use(mp.FP16_REDUCTIONS):
        return ops.sum(mp.tensor(x)).item()


def wide(x):
    return ops.sum(mp.tensor(x)).item()  # MIXED, which is there if nothing is said: the total in FP32


lengths = 2 ** np.arange(4, 16)
figure, axes = plt.subplots()
for name, add in (("running total in FP16", running), ("pairwise in FP16", pairwise), ("total in FP32", wide)):
    worst = []
    for n in lengths:
        lists = generator.uniform(0, 2, (8, n)).astype(np.float16)
        worst.append(max(abs(float(add(x)) / math.fsum(x.tolist()) - 1) for x in lists))
    axes.plot(lengths, worst, "o-", label=name)
axes.axhline(2.0**-11, color="0.4", linestyle=":", label="2⁻¹¹: one rounding")
axes.set(
    xlabel="terms", ylabel="relative error", title="Sums of numbers between 0 and 2: the worst of 8", ylim=(2.0**-14, 4)
)
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.legend(loc="upper left", ncols=2)

# %% [markdown]
# The running total is lost beyond 4,000 terms. Pairs hardly suffer, though each level of pairs rounds again. The total
# in FP32 is within one rounding: better an FP16 result cannot be. (Tensor Cores keep FP32 totals: lesson 6.)

# %% [markdown]
# ## 6. Who rounds?
#
# tinymp rounds in one place. Let the audit show the way: it listens to each op, and its ledger knows the line from
# which each rounding was asked for.

# %%
with mp.audit() as a:
    ops.sum(tenths)
    with mp.use(mp.FP16_REDUCTIONS):
        ops.sum(tenths)
for row in a.ledger.filter(op="sum"):
    lines = ", ".join(row.roundings)
    print(f"{row.op}: reads {row.read}, sums in {row.accumulated}, writes {row.written}; rounds in {lines}")

# %% [markdown]
# So both sums are stored by the same line of `tinymp/ops/reduce.py`. It is `return store(reduce(x, dims, "sum"),
# like=x)`: `reduce` adds up, `store` rounds. These two, `widen` (FP16 to FP32, exact) and `gemm` (products) are the
# four **precision primitives** of `tinymp/precision.py`. Nothing else in tinymp changes precision. Read two of them:

# %%
print(inspect.getsource(mp.precision.store))
print(inspect.getsource(mp.precision.reduce))

# %% [markdown]
# `store` does not round itself yet: its last line calls a function further down in the same file. Open the file
# (`mp.precision.__file__` says where it is, or run `print(inspect.getsource(mp.precision._round))`) and find the line
# that makes an FP16 number out of an FP32 number. Copy it, whole.

# %% exercise
rounding_line = "y = device.cast(x, dtype) if nearest else device.cast_stochastic(x)"  # SOLUTION

# %%
check(rounding_line=rounding_line)


# %% check
def check_rounding_line(rounding_line, random):
    expect(isinstance(rounding_line, str), f"rounding_line is {rounding_line!r:.60}, expected the line as a string.")
    source = inspect.getsource(mp.precision).splitlines()
    mine, *lines = (" ".join(line.partition("  #")[0].split()) for line in [rounding_line, *source])
    expect(mine in lines, f"{mine!r:.100} is no line of tinymp/precision.py. Copy the whole line.")
    hint = "It decides, or it calls another function. Go on to where a `device` casts, to nearest or by chance."
    expect("device.cast(" in mine and "cast_stochastic(" in mine, f"{mine!r} does not round yet. {hint}")


# %% [markdown]
# And the counter? Its total was added in FP16, term by term, by what the policy studies: `studied` in the last line of
# `reduce`. Under `MIXED` that line takes the device's total in FP32, and `store` rounds once.
#
# ## What to remember
#
# - A half has 11 significant bits. Its spacing doubles at each power of two, and stays at 2⁻²⁴ below 2⁻¹⁴.
# - Rounding costs half a spacing: at most 2⁻¹¹ of a normal number. Ties go to even. From 65,520 up all is infinite.
# - A running total in FP16 stalls at 2,048 to 4,096 times its term. Nothing warns you.
# - **Store in 16 bits, add up in 32, round once.** In tinymp one line rounds, and the policy decides what goes there.
#
# ## To think about
#
# 1. How many halves lie between 0 and 1, and how many above 1?
# 2. Where does a running total in BF16 stall, if you add ones?
# 3. Does it help to sort the terms before a running sum? For which lists?
# 4. A weight of 0.5 gets an update of 0.0001. What happens in FP16? (Lesson 4.)
