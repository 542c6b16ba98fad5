# %% [markdown]
# # 6. Dot products and accumulators
#
# *55 minutes.*
#
# **16,384 products, each without any error, are added in the same order. One accumulator says 4116, another stops at
# 2048. What stopped it?**
#
# - **You know** numbers, from lesson 1.
# - **You do**: write a dot product as hardware makes it: with FP16 accumulators, in chunks, with truncation; predict
#   how its error grows with the length.
# - **You can then** say why a product of two FP16 numbers is safe and its sum is not, which matrix shapes Tensor Cores
#   take, and what padding costs.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), NVG is NVIDIA's guide *Training
# with Mixed Precision*. All accumulators here are emulated on your CPU; figures of real GPUs have a source. On Colab,
# first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.course import check, digits
from tinymp.study.formats import E4M3

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")

# %% [markdown]
# ## The question, in a picture
#
# A dot product has an **accumulator**: it begins at 0, and products are added to it. NVG 2.2 says that Tensor Cores
# "can accumulate half-precision products into either single or half-precision outputs". In tinymp a policy chooses:
# `mp.MIXED` accumulates in FP32, `mp.FP16_ACCUMULATE` in FP16, a `chunk` of 4 products at a time.
#
# We multiply two vectors of 16,384 numbers between 0 and 1, and look at the accumulator on its way. The trick: one
# matrix, in whose rows more and more numbers of the first vector are not yet 0.

# %%
random = np.random.default_rng(0)
K = 16384
left, right = (random.uniform(0, 1, K).astype(np.float16) for _ in range(2))
so_far = np.arange(256, K + 1, 256)
rows = left * (np.arange(K) < so_far[:, None])  # 64 x 16384

ways = {
    "FP32 (mp.MIXED)": mp.MIXED,
    "FP16, 4 products at a time (mp.FP16_ACCUMULATE)": mp.FP16_ACCUMULATE,
    "FP16, 1 product at a time": mp.study.change(mp.FP16_ACCUMULATE, name="ONE_BY_ONE", chunk=1),
}
figure, axes = plt.subplots()
for name, policy in ways.items():
    with mp.use(policy):
        sums = (mp.tensor(rows) @ mp.tensor(right[:, None])).numpy()[:, 0]
    axes.plot(so_far, sums, label=name)
    print(f"{sums[-1]:8}  {name}")
axes.set(xlabel="products so far", ylabel="accumulator", title="One dot product, three accumulators")
axes.legend()

# %% [markdown]
# Nothing overflows, there is no NaN. But added one by one, the sum bends at 1024, and at 2048 it stands still. Four
# at a time it keeps up, nearly.

# %% [markdown]
# ## 1. A product is safe
#
# FP16 has 11 significant bits (10 in memory, and a leading 1). How many can the exact product of two such numbers have
# at most? Think of 11 × 11 (binary): 3 × 3 = 9 = 1001.

# %% exercise
# The most significant bits that the exact product of two FP16 numbers can have.
product_bits = 22  # SOLUTION

# %%
check(product_bits=product_bits)

# %% check
import math
from fractions import Fraction

import numpy as np

import tinymp as mp
from tinymp.course.checking import close, short


def check_product_bits(product_bits, random):
    hint = "2047 x 2047 = 4190209: count its binary digits, bin(2047 * 2047)."
    if product_bits in (10, 20):
        hint = "Do not forget the leading 1, which is not in memory: 11 significant bits."
    close(product_bits, 22, "product_bits", rtol=0, hint=hint)


# %%
exact = left.astype(np.float64) * right.astype(np.float64)
in_fp32 = left.astype(np.float32) * right.astype(np.float32)
in_fp16 = left * right
print(f"FP32 has 24 bits: {np.mean(in_fp32 == exact):.0%} of the products are exact in it;")
print(f"FP16 has 11 bits: {np.mean(in_fp16 == exact):.0%} are exact in it")

# %% [markdown]
# So a Tensor Core multiplies without any error. And the smallest product, 2⁻²⁴ · 2⁻²⁴ = 2⁻⁴⁸, and the largest, 2³², are
# in FP32's range. **All errors of a dot product come from the additions.**

# %% [markdown]
# ## 2. The sum is not
#
# Write the dot product with an FP16 accumulator. `chunk` products are added up exactly, and their sum is added to the
# accumulator: then comes one rounding to FP16. With chunk = 1 each product is followed by a rounding. With a chunk as
# long as the vectors there is one rounding in all: that is MPT 3.3, an FP32 accumulator, "converted to FP16 before
# writing to memory".


# %% exercise
def dot_fp16(a, b, chunk):
    """The dot product of a and b with an FP16 accumulator, as a float.

    a, b: float16 arrays of the same length. chunk products at a time are added in FP32 (take that as exact), without
    rounding them before, and so is the accumulator. Then the accumulator is rounded to FP16. The last chunk may be
    shorter.
    """
    # SOLUTION
    total = np.float16(0)
    for i in range(0, len(a), chunk):
        products = a[i : i + chunk].astype(np.float32) * b[i : i + chunk].astype(np.float32)
        total = np.float16(np.float32(total) + products.sum(dtype=np.float32))
    return float(total)
    # END


# %%
check(dot_fp16)


# %% check
def _accumulated(a, b, chunk, product=float, part=float):
    """The result of dot_fp16 for multiples of 1/64: sums are multiples of 2^-12 below 2^12, exact before rounding."""
    total = 0.0
    for i in range(0, len(a), chunk):
        products = [float(product(float(x) * float(y))) for x, y in zip(a[i : i + chunk], b[i:])]
        total = float(np.float16(total + float(part(sum(products)))))
    return total


def check_dot_fp16(dot_fp16, random):
    def ask(a, b, chunk, what, hint):
        close(dot_fp16(a.copy(), b.copy(), chunk), _accumulated(a, b, chunk), what, rtol=0, hint=hint)

    def draw(n, least=0):
        return (random.integers(64 * least, 128, n) / 64).astype(np.float16)

    a, b = np.float16([2, 0.5, 1]), np.float16([4, 2, -3])
    ask(a, b, 1, f"dot_fp16({short(a)}, {short(b)}, 1)", "Multiply number by number, add.")
    a, b = np.float16([2048, 1, 1, 1]), np.ones(4, np.float16)
    ask(
        a, b, 1, f"dot_fp16({short(a)}, {short(b)}, 1)", "2048 + 1 is a tie in FP16, and goes to 2048: round each time."
    )
    ask(
        a,
        b,
        4,
        f"dot_fp16({short(a)}, {short(b)}, 4)",
        "The four are added in FP32 first, and then rounded once: 2052.",
    )
    ask(a, b, 9, f"dot_fp16({short(a)}, {short(b)}, 9)", "A chunk may be longer than the vectors.")
    for mistake in ("product", "part"):  # cases in which it matters
        a = b = np.zeros(8, np.float16)
        while _accumulated(a, b, 4) == _accumulated(a, b, 4, **{mistake: np.float16}):
            a, b = draw(8), draw(8, -1)
        hint = {"product": "Do not round the products: FP32.", "part": "Do not round the sum of a chunk by itself."}
        what = f"dot_fp16({short(a)}, {short(b)}, 4)"
        ask(a, b, 4, what, f"{hint[mistake]} Round when the accumulator is in it.")
    n = int(random.integers(300, 500))
    for chunk, hint in (
        (1, "One rounding for each product, of the accumulator with the product in it."),
        (4, "A rounding for every four products."),
        (7, "The last chunk may be shorter."),
        (n, "One rounding in all, at the end."),
    ):
        n += chunk == 7 and n % 7 == 0
        a, b = draw(n), draw(n, -1)
        ask(a, b, chunk, f"dot_fp16(a, b, {chunk}) of {n} numbers", hint)


# %%
with mp.use(ways["FP16, 1 product at a time"]):
    tinymps = (mp.tensor(left[None]) @ mp.tensor(right[:, None])).item()
print(f"one by one: {dot_fp16(left, right, 1)} (yours), {tinymps} (tinymp's)")
for chunk in (1, 2, 4, 8, 16, 64, K):
    print(f"chunk {chunk:4}: {dot_fp16(left, right, chunk):7}")

# %% [markdown]
# Above 1024 FP16 numbers are 1 apart. A product below 0.5 is then less than half of that, and is lost: the sum crawls,
# moved by the large products alone. Above 2048 they are 2 apart. All our products are below 1, so nothing moves it any
# more. (Lesson 4 again: w + Δw = w.) Chunks of 4 add up to about 1 before they meet the accumulator.

# %% [markdown]
# ## 3. A prediction
#
# One rounding to FP16 changes a number by 2⁻¹¹ of itself at most. If all products are positive, m roundings change the
# sum at most by the factor (1 + 2⁻¹¹)ᵐ. How many roundings are there? And what is the worst relative error?


# %% exercise
def worst_case(length, chunk):
    """(1 + 2^-11)^m - 1 for the m roundings of dot_fp16 on vectors of this length. A float.

    length, chunk: positive integers; length need not be a multiple of chunk.
    """
    # SOLUTION
    roundings = -(-length // chunk)
    return (1 + 2.0**-11) ** roundings - 1
    # END


# %%
check(worst_case)


# %% check
def check_worst_case(worst_case, random):
    u = Fraction(1, 2**11)
    size = int(random.integers(200, 900))
    for length, chunk, hint in (
        (
            1,
            1,
            "One product, one rounding: 2^-11. (2^-10 is the spacing of FP16 at 1; a rounding is off by half of it.)",
        ),
        (8, 4, "Two chunks, two roundings: (1 + 2^-11)^2 - 1."),
        (9, 4, "The last product is a chunk of its own: three roundings."),
        (4, 64, "A short chunk is rounded once, too."),
        (size, 1, "The factors multiply: (1 + 2^-11) to the power of the roundings, minus 1."),
        (size, 5, "Divide by chunk, and round up."),
    ):
        want = float((1 + u) ** math.ceil(Fraction(length, chunk)) - 1)
        close(worst_case(length, chunk), want, f"worst_case({length}, {chunk})", rtol=1e-9, hint=hint)


# %%
lengths = [2**k for k in range(2, 14)]
figure, panels = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
for axes, chunk in zip(panels, (1, 4)):
    policy = mp.study.change(mp.FP16_ACCUMULATE, name="STUDY", chunk=chunk)
    errors = {"positive": [], "of both signs": []}
    for n in lengths:
        for signs, found in errors.items():
            a, b = (random.uniform(0, 1, shape).astype(np.float16) for shape in ((8, n), (n, 8)))  # 64 dot products
            if signs == "of both signs":
                a *= random.choice([-1, 1], a.shape).astype(np.float16)
            with mp.use(policy):
                sums = (mp.tensor(a) @ mp.tensor(b)).numpy()
            wide = a.astype(np.float64), b.astype(np.float64)
            found.append(np.mean(np.abs(sums - wide[0] @ wide[1]) / (np.abs(wide[0]) @ wide[1])))
    for (signs, found), style in zip(errors.items(), ("o-", "s-")):
        axes.plot(lengths, found, style, label=f"measured, products {signs}")
    roundings = [max(n // chunk, 1) for n in lengths]
    axes.plot(lengths, [worst_case(n, chunk) for n in lengths], "--", color="0.3", label="worst case, yours")
    axes.plot(lengths, [2.0**-11 * math.sqrt(m) for m in roundings], ":", color="0.3", label="2⁻¹¹ √m")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="length", title=f"FP16 accumulator, chunk {chunk}")
panels[0].set_ylabel("error / sum of |products|")
panels[0].legend(fontsize=8)

# %% [markdown]
# The worst case lies far above what is measured: roundings go up and down, and mostly cancel. If they were as random as
# dice, the error would grow as √m.
#
# - Positive products (circles), one by one: below the line of √m up to a length of 1,024, then above it. The sum has
# begun to stall, and stalling is not random: more roundings go down than up.
# - In chunks of 4 the same begins, but later.
# - Products of both signs: the sum stays small, and so does FP16's spacing. The error hardly grows.
# %% [markdown]
# ## 4. Hardware that does not round
#
# So far we rounded to nearest. Rounding costs transistors, and hardware does less. Researchers fed Tensor Cores with
# chosen numbers to find out (Fasi et al. 2021, *PeerJ Computer Science* 7:e330), and rebuilt them bit for bit (Khattak
# and Mikaitis 2025, [arXiv 2512.07004](https://arxiv.org/abs/2512.07004)). A few products and the accumulator are
# shifted until they all stand in the same columns, and what lies behind the last column is **cut off**.
#
# Which columns? Write each number as ± significand · 2^e, with a significand in [1, 2): 5.5 = 1.375 · 2², so e = 2. A
# product has the **sum of its factors' exponents**; nobody looks at the product itself. The largest of these sums is E,
# and F bits stay behind the point of 2^E: the last column is worth 2^(E - F).
#
# An example with F = 2:
#
#     3   * 3        9       exponents 1 + 1 = 2: the largest, E = 2; the last column is worth 2^(2 - 2) = 1
#     2.5 * 2.25     5.625   -> 5
#     1   * 0.75     0.75    -> 0
#
# 9 itself has the exponent 3. Had it set the columns, the last one would be worth 2.
#
# Write the exponent and the cut.


# %% exercise
def exponent(x):
    """floor(log2 |x|) of a float x that is not 0, an integer; at least -14, FP16's smallest for normal numbers.

    math.frexp may help: it gives (f, e) with |x| = f * 2**e and 0.5 <= f < 1. A Tensor Core counts subnormal numbers
    with -14.
    """
    # SOLUTION
    return max(math.frexp(x)[1] - 1, -14)
    # END


# %% exercise
def cut(x, last):
    """The float x without what lies behind a last column, which is worth `last`: cut off towards 0, not rounded."""
    # SOLUTION
    return math.trunc(x / last) * last
    # END


# %%
check(exponent)
check(cut)


# %% check
def check_exponent(exponent, random):
    for x, hint in (
        (1.0, "1 = 1 * 2^0. math.frexp's fraction lies in [0.5, 1), so its e is one larger."),
        (5.5, "5.5 = 1.375 * 2^2."),
        (-0.75, "The sign does not matter: 0.75 = 1.5 * 2^-1. Round down, not towards 0."),
        (2.0**-24, "A subnormal number of FP16 counts with -14."),
    ):
        close(exponent(x), max(math.floor(math.log2(abs(x))), -14), f"exponent({x})", rtol=0, hint=hint)
    for _ in range(20):
        x = float(np.float16(random.uniform(1, 2) * 2.0 ** int(random.integers(-20, 15))))
        close(exponent(x), max(math.frexp(x)[1] - 1, -14), f"exponent({x})", rtol=0, hint="floor(log2(x))")


def _cut(x, last):
    """The same in integers: exact."""
    x, last = Fraction(x), Fraction(last)
    return (abs(x) // last) * last * (1 if x > 0 else -1)


def check_cut(cut, random):
    def ask(x, last, hint):
        close(cut(x, last), float(_cut(x, last)), f"cut({x}, {last})", rtol=0, hint=hint)

    ask(5.25, 1.0, "5 columns of 1, and a quarter that is lost.")
    ask(0.25, 1.0, "It lies behind the last column: nothing is left.")
    ask(5.75, 1.0, "Cut off, do not round.")
    ask(-5.75, 1.0, "Towards 0, also for negative numbers: math.trunc, not math.floor.")
    ask(5.625, 0.5, "The last column is worth 0.5.")
    for _ in range(20):
        last = 2.0 ** int(random.integers(-24, 3))
        ask(float(np.float16(random.uniform(-8, 8))), last, "How many times does `last` fit into x?")


# %% [markdown]
# ## 5. A dot product by truncation
#
# Now the whole of it. For each step of n products:
#
# 1. E is the largest exponent: of each product the sum of its factors' exponents, of the accumulator its own; what is 0
#    has none;
# 2. the products and the accumulator are cut at the column 2^(E - F);
# 3. they are added up, which is exact;
# 4. the sum is the new accumulator, an FP32 number: it has 24 bits, so it is cut at 2^(its own exponent - 23).
#
# | GPU | V100 | A100 | H100, B200 |
# |---|---|---|---|
# | products in a step, n | 4 | 8 | 16 |
# | bits behind the point, F | 23 | 24 | 25 |


# %% exercise
def dot_tensor_core(a, b, bits, products, c=0.0):
    """c + the dot product as above, as a float; it is not rounded to FP16.

    a, b: float16 arrays of the same length, without subnormal numbers; the last step may be shorter. bits: F.
    products: n. c: the accumulator at the start. All sums lie far above FP32's smallest number. Python's floats have 53
    bits: they hold exact products and sums here. Use float(x) on the array's numbers.
    """
    # SOLUTION
    for i in range(0, len(a), products):
        pairs = [(float(x), float(y)) for x, y in zip(a[i : i + products], b[i : i + products])]
        exponents = [exponent(x) + exponent(y) for x, y in pairs if x * y != 0]
        if c != 0:
            exponents.append(math.frexp(c)[1] - 1)
        if not exponents:
            continue
        last = 2.0 ** (max(exponents) - bits)
        c = cut(c, last) + sum(cut(x * y, last) for x, y in pairs)
        if c != 0:
            c = cut(c, 2.0 ** (math.frexp(c)[1] - 1 - 23))
    return c
    # END


# %%
check(dot_tensor_core)


# %% check
def check_dot_tensor_core(dot_tensor_core, random):
    def ask(a, b, unit, c, what, hint):
        name, bits, products = unit
        start = np.float32([[c]])
        want = float(mp.tensor_core(a[None], b[:, None], start, name)[0, 0])
        hint = f"{hint} mp.tensor_core was asked, for {name}."
        close(dot_tensor_core(a.copy(), b.copy(), bits, products, c), want, what, rtol=0, hint=hint)

    volta, ampere, hopper = ("volta", 23, 4), ("ampere", 24, 8), ("hopper", 25, 16)
    t, u = 2.0**-12, 2.0**-8 + 2.0**-18
    for left, right, unit, c, hint in (
        ([1, t, t, t], [1, t, t, t], volta, 0.0, "Each small product is 2^-24: behind the last column."),
        ([t, t, t, t], [t] * 4, volta, 1.0, "The accumulator, 1, is one of those that are aligned."),
        ([1.5, t, t], [1.5, 2 * t, 2 * t], volta, 0.0, "1.5 * 1.5 is 2.25, but its exponents add up to 0, not 1."),
        (
            [1024, 1024, 1, 1],
            [1024, 1024] + [0.0625] * 2,
            ampere,
            0.0,
            "The sum has more than 24 bits: it is cut, too.",
        ),
        ([1] * 8 + [2048], [0.125] * 8 + [2048], ampere, 0.0, "Only in the second step 2048 sets the columns."),
        ([0, 0, 0, 0], [1, 1, 1, 1], volta, 0.0, "Nothing but zeros is 0."),
        ([-9, -5.5, 3.75], [1, 1, 1], hopper, 0.0, "The magnitude counts, not the sign."),
        ([2], [1], volta, -1 - 2.0**-23, "The accumulator is cut, too, before anything is added."),
        ([0, u], [2, u], volta, 0.0, "What is 0 has no exponent: it sets no column."),
        (
            [t] * 4,
            [t] * 4,
            volta,
            2.0**-20 + 2.0**-43,
            "The accumulator is an FP32 number: its exponent may be below -14.",
        ),
    ):
        a, b = np.float16(left), np.float16(right)
        ask(a, b, unit, c, f"dot_tensor_core({short(a)}, {short(b)}, {unit[1]}, {unit[2]}, {c})", hint)
    n = int(random.integers(60, 90))
    for unit in (volta, ampere, hopper):
        for low in (0, -1):
            a, b = random.uniform(low, 1, (2, n)).astype(np.float16)
            a[abs(a) < 1e-3] = b[abs(b) < 1e-3] = 0
            signs = "positive numbers" if low == 0 else "numbers of both signs"
            what = f"dot_tensor_core(a, b of {n} {signs}, {unit[1]}, {unit[2]})"
            hint = "Are columns cut by the given F, sums to 24 bits, towards 0? The last step may be shorter."
            ask(a, b, unit, 0.0, what, hint)


# %% [markdown]
# Is that what GPUs do? Here is one sum each that **real** GPUs made, a V100, an A100 and an H100 (from the authors'
# repository, github.com/north-numerical-computing/MATLAB-tensor-core, BSD-2-Clause), in the hexadecimal notation of
# floats, which loses no bit.


# %%
def fp16(bits):
    """FP16 numbers, of whose 16 bits each is given as four hexadecimal digits."""
    return np.array([int(digits, 16) for digits in bits.split()], np.uint16).view(np.float16)


REAL = {
    "V100": (
        *(23, 4, "0x1.199dfcp-1", "0x1.1bcd7cp-2"),
        "b9d3 374c bf49 ba16",
        "beef bd5d 1dcd 3ccd",
    ),
    "A100": (
        *(24, 8, "0x1.07b03ep-2", "-0x1.8d6ca8p-3"),
        "3796 3d24 407c 34ec bdc1 bf37 3c9e bd1f",
        "3cbc b466 2f44 bb63 b25e 3929 be6c be90",
    ),
    "H100": (
        *(25, 16, "0x1.5db34p-3", "0x1.5bb3bcp-1"),
        "b571 bd62 399c 3ba4 3c98 b717 bd1c a3cf bcf4 3b5d b4a9 4027 bb36 3c63 3c5e 3163",
        "351b bd1f 9f9a bdb0 3f91 3ac6 a9cd 2469 399e b861 bc80 3122 bd61 bdb2 b5ad bb0d",
    ),
}
print("        by a real GPU     yours, emulated   exact, rounded to FP32")
for gpu, (bits, products, c, result, factors, others) in REAL.items():
    a, b, c = fp16(factors), fp16(others), float.fromhex(c)
    true = float(np.float32(math.fsum([c, *(float(x) * float(y) for x, y in zip(a, b))])))
    found = dot_tensor_core(a, b, bits, products, c)
    print(f"{gpu}   {result:17} {found.hex().replace('0000000p', 'p'):17} {true.hex().replace('0000000p', 'p')}")

# %% [markdown]
# Not one of the three sums is the rounded exact one, and you have the bits of each. (tinymp once aligned to the largest
# *product*, and had 47 to 60 % of such sums wrong for an A100, H100 and B200. Its tests could not find it: they were
# written by the same people. These numbers found it.)
#
# For whole matrices `mp.tensor_core` does what yours does. FP8 products on Hopper keep F = 13 bits. So after every 128
# products one may add the sum to another one, in FP32. There is a policy for each: `mp.FP16_VOLTA`, `FP16_AMPERE`,
# `FP16_HOPPER`, `FP8_HOPPER` (with the FP32 sums) and `FP8_HOPPER_FAST` (without).
#
# All lines of the next picture are **emulated**; no GPU runs here. The error has a sign this time.


# %%
def promoted(a, b, every=128):
    """FP8 products on Hopper: sums of 128 products, which are added up in FP32."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], every):
        total += mp.tensor_core(a[:, k : k + every], b[k : k + every], None, "hopper", "e4m3")
    return total


accumulators = {
    "FP16 as a V100": lambda a, b: mp.tensor_core(a, b, None, "volta"),
    "FP16 as an H100": lambda a, b: mp.tensor_core(a, b, None, "hopper"),
    "FP8 as an H100": lambda a, b: mp.tensor_core(a, b, None, "hopper", "e4m3"),
    "FP8 as an H100, FP32 after 128": promoted,
    "FP8 as a B200": lambda a, b: mp.tensor_core(a, b, None, "blackwell", "e4m3"),
}
lengths = [2**k for k in range(7, 13)]
figure, axes = plt.subplots()
for name, product in accumulators.items():
    found = []
    for n in lengths:
        a, b = (E4M3.round(random.uniform(0, 1, shape).astype(np.float32)) for shape in ((8, n), (n, 8)))
        found.append(100 * np.mean(product(a, b) / (a.astype(np.float64) @ b.astype(np.float64)) - 1))
    axes.plot(lengths, found, "o-", label=name)
    print(f"{found[lengths.index(4096)]:9.5f} %  at length 4,096: {name}")
axes.set_xscale("log", base=2)
axes.set(xlabel="length", ylabel="mean relative error, %", title="Accumulators that cut off, emulated")
axes.legend()

# %% [markdown]
# 23 to 25 bits do no harm. 13 bits do: what is cut off is missing in each step, and nothing cancels. The error grows
# with the number of steps, not with its root: at a length of 4,096 to 6.6 %, where all numbers are positive. With an
# FP32 sum after every 128 products it stays at 0.05 %, for any length. The line of the B200 is what mmasim, another
# model of these units, says: the published sums of its FP8 were made by another instruction.
#
# And on **real** GPUs? DeepSeek-V3 ([arXiv 2412.19437](https://arxiv.org/abs/2412.19437), section 3.3.2) was trained on
# H800s. It reports an error of nearly 2 % at most, for two random matrices of this length; which numbers they held is
# not said. It mends that with FP32 sums after 128 products.

# %% [markdown]
# ## 6. Which shapes?
#
# The last question is whether Tensor Cores are used at all. A product of an m x k and a k x n matrix should have m, n
# and k that are multiples of 8 (NVG 2.2). If they are not, one can pad with zeros: the result is the same, but there is
# more to compute.


# %% exercise
def padding_cost(m, n, k):
    """The share of operations that padding m, n and k to the next multiples of 8 adds: 0.5 is half more.

    m, n, k: positive integers. A product has 2 m n k operations. 0.0 if all are multiples of 8 already.
    """
    # SOLUTION
    padded = math.prod(math.ceil(size / 8) * 8 for size in (m, n, k))
    return padded / (m * n * k) - 1
    # END


# %%
check(padding_cost)


# %% check
def check_padding_cost(padding_cost, random):
    sizes = [int(s) for s in random.integers(1, 200, 3)]
    for m, n, k, hint in (
        (64, 128, 8, "All are multiples of 8: nothing to pad."),
        (64, 10, 128, "10 becomes 16: 60 % more."),
        (64, 1, 128, "1 becomes 8: seven times as much comes on top."),
        (60, 10, 784, "m and n are padded: the factors multiply."),
        (64, 8, 10, "k is padded as well."),
        (*sizes, "Each of the three goes to the next multiple of 8."),
    ):
        want = math.prod(Fraction(-(-s // 8) * 8, s) for s in (m, n, k)) - 1
        close(padding_cost(m, n, k), float(want), f"padding_cost({m}, {n}, {k})", 1e-9, 1e-12, hint)


# %% [markdown]
# The audit lists every product of a training step, forward and backward: `a.products`. Here is a network whose author
# did not think of 8: batches of 60, 100 hidden units, 10 classes.

# %%
images, labels, _, _ = digits()


def audited(batch, hidden, classes):
    model = mp.MIXED.cast(nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, classes)))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with mp.use(mp.MIXED), mp.audit() as a:
        x = mp.MIXED.cast(mp.tensor(images[:batch]))
        ops.cross_entropy(model(x), mp.tensor(labels[:batch])).backward()
        optimizer.step()
    return a


a = audited(60, 100, 10)
print("   m    n    k   padding: yours  tinymp's")
for row in a.products.rows:
    cost = padding_cost(row.m, row.n, row.k)
    print(f"{row.m:4} {row.n:4} {row.k:4} {cost:15.1%} {row.padding_cost:9.1%}   {row.module} {row.phase}")
figure, axes = plt.subplots()
a.products.draw(axes)

# %%
better = audited(64, 104, 16)  # six of the 16 classes never occur
print(f"{better.products.tensor_core_share:.0%} of the operations can run on Tensor Cores,")
print(f"for {(better.products.flops / 64) / (a.products.flops / 60) - 1:.1%} more operations per image")

# %% [markdown]
# What that gains can be measured on a GPU alone. Later versions of cuBLAS take other sizes, too, at a lower efficiency.
# The rule costs little: choose 104 instead of 100, 64 instead of 60.
#
# Now read `_steps` in `tinymp/study/tensor_core.py`: your `dot_tensor_core`, for whole matrices.

# %%
import inspect

from tinymp.study import tensor_core

print(inspect.getsource(tensor_core._steps))

# %% [markdown]
# ## What to remember
#
# - A product of two FP16 numbers has at most 22 bits: exact in FP32. All errors come from adding.
# - An FP16 accumulator stalls when the products are below half its spacing. Chunks help: fewer roundings.
# - m roundings: worst case about m · 2⁻¹¹, as dice √m · 2⁻¹¹. A sum that stalls is not random.
# - Tensor Cores cut off instead of rounding. The error has a sign, so it grows with m. Adding up in FP32 now and then
# mends it.
# - Multiples of 8 (NVG 2.2): batch, layers, classes.
#
# ## To think about
#
# 1. Which sums of a training are the longest? Think of the gradient of a convolution's weights.
# 2. A GPU may add the chunks in another order than you. Which of the results above would change, and by how much?
# 3. Why does truncation hurt less if the products have both signs?
# 4. Does an FP16 accumulator hurt more in the forward pass, or in the gradients?
