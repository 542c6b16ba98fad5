# %% [markdown]
# # 10. After 2018: BF16, FP8, stochastic rounding
#
# *55 minutes.*
#
# **The method of 2018 has three parts: a loss scale, FP32 masters, FP32 sums. New hardware offers new formats. Which
# of the three may you throw away?**
#
# - **You know** numbers (lesson 1), the master copy (4) and loss scaling (5).
# - **You do**: round to BF16 with integers, to nearest and at random; write the scales with which FP8 lives: per
#   tensor, delayed, per block.
# - **You can then** choose a format for a tensor from its exponents, say what remains of the paper, and show it.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), NVG is NVIDIA's guide *Training
# with Mixed Precision*. On Colab, first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.study.formats import E4M3, SCALED
from tinymp.course import check, digits

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 260  # of each training; with less than 220 the last picture shows nothing

# %% [markdown]
# ## The question, in a picture
#
# A format with few bits can do two kinds of harm. Its **range** may be too short: numbers become zero or infinite. Its
# **resolution** may be too coarse: each number gets an error. With n significant bits the error is up to 2⁻ⁿ of the
# number; the audit measures it as a ratio of signal to noise (20 dB: the error is a tenth).
#
# We train the autoencoder of lesson 5 for a few steps in BF16, and ask the audit what other formats would have made of
# each gradient.

# %%
images, labels, test_images, test_labels = digits()
pixels = np.round(255 * (images[:, 0] * 0.3081 + 0.1307)) / 255  # grey levels from 0 to 1 again
pixels = pixels.reshape(len(images), -1).astype(np.float32)  # 4000 x 784


def autoencoder():
    mp.manual_seed(0)
    sizes = (784, 64, 32, 16, 32, 64, 784)
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.Sigmoid())]
    return nn.Sequential(*layers)


def train_autoencoder(policy, steps=STEPS):
    """The losses. No loss scale in any of them."""
    model, curve, random = policy.cast(autoencoder()), [], np.random.default_rng(0)
    optimizer, scaler = optim.Adam(model.parameters(), lr=1e-2), optim.NoLossScaler()
    with mp.use(policy):
        for _ in range(steps):
            x = policy.cast(mp.tensor(pixels[random.integers(0, len(pixels), 64)]))
            loss = ops.mse_loss(model(x), x)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            curve.append(loss.item())
    return curve


names = ("fp16", "bf16", "e4m3", "e5m2", "e4m3-tensor", "e5m2-tensor", "mxfp8")
with mp.audit(formats=names, every=10) as a:
    train_autoencoder(mp.BF16, STEPS // 4)
rows = [row for row in a.formats.rows if row.phase == "backward"]
figure, axes = plt.subplots(figsize=(8, 3.8))
for name in names:
    lost = sum(row.losses[name].zero for row in rows) / sum(row.losses[name].elements for row in rows)
    noise = np.median([row.losses[name].snr for row in rows])
    print(f"{name:<12} {lost:6.1%} of the gradients become zero; signal to noise {noise:4.0f} dB")
    axes.plot(100 * lost, noise, "o", markersize=9)
    axes.annotate(
        name, (100 * lost, noise), (8, {"mxfp8": -4, "e5m2-tensor": -10}.get(name, 6)), textcoords="offset points"
    )
axes.set(xlabel="range: gradients that become zero, %", ylabel="resolution: signal to noise, dB")
axes.set(title="What a format makes of the autoencoder's gradients", xlim=(-3, 115), ylim=(-3, None))

# %% [markdown]
# Good is the upper left corner. FP16 has more bits than BF16, but here they do not help: more than a third of the
# gradients is zero, and most others are subnormal, with few digits. BF16 has FP32's exponents and loses nothing. FP8
# has two formats, E4M3 and E5M2 (named after their bits of exponent and fraction). As they are, both lose nearly
# everything. With a scale per tensor (`-tensor`) or per block (`mxfp8`) they come back.

# %% [markdown]
# ## 1. BF16 with integers
#
# BF16 is the first half of an FP32 number: the sign, 8 bits of exponent, 7 of fraction (Kalamkar et al., 2019,
# [arXiv 1905.12322](https://arxiv.org/abs/1905.12322)). So rounding is arithmetic with the 32 bits as one integer,
# `x.view(np.uint32)`:
#
# - cut off the low 16 bits: `bits & 0xFFFF0000`. That rounds towards zero.
# - to round to nearest, first add half of what is cut: 0x8000. A carry into the exponent is right: it is the next
# power of two.
# - a tie (the low bits are exactly 0x8000) goes to the even neighbour. So add 0x7FFF, and one more if the last bit that
# stays is 1.
# - NaN has all exponent bits set and a fraction that is not 0. An addition may carry it into another number: leave NaN
# as it is.


# %% exercise
def to_bf16(x):
    """x rounded to BF16, to nearest, ties to even, as a float32 array of the same shape.

    x: a float32 array (any shape), which stays as it is. Infinities stay, NaN stays NaN, what is too large becomes
    infinite.
    """
    # SOLUTION
    bits = x.view(np.uint32)
    last = (bits >> 16) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + last) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))
    # END


# %%
check(to_bf16)

# %% check
import math
from fractions import Fraction

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.study.formats import BF16, E4M3, SCALED
from tinymp.course.checking import close, expect, short


def _exactly(got, want, call, hint):
    close(got, want, call, 0, hint=hint, dtype=np.float32)
    signs = np.signbit(got) == np.signbit(want)
    expect((signs | np.isnan(want)).all(), f"{call}: a result has the wrong sign (perhaps of a zero).")


def check_to_bf16(to_bf16, random):
    few = np.float32([1, 1 + 2.0**-9, 1 + 2.0**-7 - 2.0**-10, -3 - 2.0**-7 - 2.0**-12])
    _exactly(
        to_bf16(few.copy()),
        BF16.round(few),
        f"to_bf16({short(few)})",
        "To the nearest number with 7 bits of fraction, not towards zero.",
    )
    ties = np.float32([1 + 2.0**-8, 1 + 3 * 2.0**-8, -(2 - 2.0**-8)])
    hint = "These lie in the middle: the even neighbour, whose last bit is 0."
    _exactly(to_bf16(ties.copy()), BF16.round(ties), f"to_bf16({short(ties)})", hint)
    ends = np.float32([np.inf, -np.inf, 0.0, -0.0, 3.4e38, 2.0**-140, -(2.0**-149)])
    hint = "Infinities and zeros stay, a carry may make infinity, small numbers round like all others."
    _exactly(to_bf16(ends.copy()), BF16.round(ends), f"to_bf16({short(ends)})", hint)
    nans = np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    got = to_bf16(nans.copy())
    expect(np.isnan(got).all(), f"to_bf16 of four NaNs with different bits is {short(got)}: NaN must stay NaN.")
    many = random.integers(0, 2**32, (20, 50), np.uint32).view(np.float32)
    kept = many.copy()
    got = to_bf16(many)
    expect(
        np.array_equal(many.view(np.uint32), kept.view(np.uint32)), "to_bf16 changed its argument: make a new array."
    )
    hint = "tinymp's own rounding was asked. The carry goes into the exponent."
    _exactly(got, BF16.round(kept), "to_bf16(1,000 random bit patterns)", hint)


# %%
for x in (1 / 3, 3.14159, 65536.0, 1e-30):
    x = np.float32([x])
    with np.errstate(over="ignore"):
        print(f"{x[0]:<14.8g} BF16 {to_bf16(x)[0]:<12.6g} FP16 {x.astype(np.float16)[0]:g}")

# %% [markdown]
# ## 2. Range against resolution
#
# FP16 has three bits more of resolution: if all numbers fit, take FP16. If not, BF16. Look at the exponents.


# %% exercise
def format_for(x):
    """ "fp16" if every number of x that is not 0 has a magnitude from 2^-14 (FP16's smallest normal) to 65504 (its
    largest), otherwise "bf16". "fp16" if there is nothing but zeros.

    x: a float32 array, finite.
    """
    # SOLUTION
    sizes = np.abs(x[x != 0])
    return "fp16" if np.all((sizes >= 2.0**-14) & (sizes <= 65504)) else "bf16"
    # END


# %%
check(format_for)


# %% check
def check_format_for(format_for, random):
    middle = (2.0 ** random.uniform(-13, 14, 20) * random.choice([-1, 1], 20)).astype(np.float32)
    small, large = np.float32(2.0 ** random.uniform(-40, -15)), np.float32(2.0 ** random.uniform(16.5, 40))
    for x, want, hint in (
        (middle, "fp16", "All of them are normal numbers in FP16; negative ones count by their magnitude."),
        (np.append(middle, np.float32(0)), "fp16", "A zero is no problem for any format."),
        (np.append(middle, small), "bf16", f"{small:.3g} is below 2^-14."),
        (np.append(middle, -small), "bf16", f"{-small:.3g} is small in magnitude."),
        (np.append(middle, large), "bf16", f"{large:.3g} is above 65504."),
        (np.append(middle, -large), "bf16", f"{-large:.3g} is large in magnitude."),
        (np.float32([2.0**-14, 65504, -65504]), "fp16", "Both ends belong to FP16."),
        (np.float32([1, 65519]), "bf16", "65519 is above 65504."),
        (np.float32([1, 2.0**-15]), "bf16", "2^-15 is below 2^-14: FP16 holds it, but as a subnormal number."),
        (np.zeros(3, np.float32), "fp16", "There is nothing but zeros."),
    ):
        got = format_for(x)
        expect(got == want, f"format_for({short(x)}) is {got!r:.40}, expected {want!r}. {hint}")


# %%
model = autoencoder()
x = mp.tensor(pixels[:128])
ops.mse_loss(model(x), x).backward()
for name, numbers in (
    ("pixels", pixels[:128]),
    ("weights of the first layer", model[0].weight.array),
    ("gradients of the first layer", model[0].weight.grad.array),
    ("gradients of the last layer", model[-2].weight.grad.array),
):
    sizes = np.log2(np.abs(numbers[numbers != 0]))
    print(f"{name:<30} 2^{sizes.min():.0f} to 2^{sizes.max():.0f}: {format_for(numbers)}")

# %% [markdown]
# A handful of small numbers is enough for "bf16" here; our rule is strict. A weight of 2⁻²⁰ beside weights of 2⁻⁵ may
# well become zero. With gradients of which most are small it is another thing. This is why rules like this one need a
# histogram, not only an extreme.

# %% [markdown]
# ## 3. A scale per tensor
#
# E4M3 has 4 bits of exponent, 3 of fraction, and ends at 448; E5M2 has FP16's exponent and 2 bits of fraction
# (Micikevicius et al., 2022, [arXiv 2209.05433](https://arxiv.org/abs/2209.05433)). Neither holds a whole network,
# whatever the loss scale: its tensors lie too far apart. So each **tensor** gets a loss scale of its own: the power of
# two that brings its largest magnitude ("amax") near the end of the format.
#
# But to know amax, one must look at all numbers before the first of them can be rounded. A *delayed* scale takes the
# largest amax of the last few tensors at the same place of the network. If the next tensor is larger than those, it
# saturates: what is above 448 becomes 448. (Not an infinity, which must reach the loss scaler. E4M3 has none: it
# becomes NaN.)


# %% exercise
def tensor_scale(amax):
    """The largest power of two S, as a float, with S * amax <= 448; 1.0 where amax is 0.

    amax: a float, 0 or from 2^-100 to 2^100.
    """
    # SOLUTION
    if amax == 0:
        return 1.0
    scale = 2.0 ** np.floor(np.log2(448 / amax))
    while scale * amax > 448:
        scale /= 2
    while scale * amax * 2 <= 448:
        scale *= 2
    return float(scale)
    # END


# %% exercise
class DelayedScale:
    """A scale from the past. length: how many tensors it remembers."""

    def __init__(self, length):
        # SOLUTION
        self.length = length
        self.history = []
        # END

    def scale(self):
        """S for the next tensor, a float: tensor_scale of the largest of the last `length` amax; 1.0 at first."""
        # SOLUTION
        return tensor_scale(max(self.history)) if self.history else 1.0
        # END

    def saw(self, x):
        """Remember the largest magnitude of x, a float32 array."""
        # SOLUTION
        self.history = [*self.history, float(np.abs(x).max())][-self.length :]
        # END


# %%
check(tensor_scale, DelayedScale)


# %% check
def _scale_for(amax):
    exponent = 0
    if amax:
        while Fraction(amax) * Fraction(2) ** exponent > 448:
            exponent -= 1
        while Fraction(amax) * Fraction(2) ** (exponent + 1) <= 448:
            exponent += 1
    return 2.0**exponent


def check_tensor_scale(tensor_scale, random):
    ends = [448.0, float(np.nextafter(np.float32(448), np.float32(512))), 7.0, 1.75, 1.0, 3 * 2.0**-20]
    for amax in (*ends, *(float(2.0**e) for e in random.uniform(-30, 20, 5))):
        got = tensor_scale(amax)
        hint = "448 itself is allowed: 1.75 * 2^8 = 448." if 448 / amax == _scale_for(amax) else "S is a power of two."
        if np.isreal(got) and got > 0 and np.log2(got) % 1 == 0 and 448 / amax != _scale_for(amax):
            hint = "S * amax is above 448." if got * amax > 448 else "A larger S does not overflow either."
        close(got, _scale_for(amax), f"tensor_scale({amax:.9g})", 0, hint=hint)
    close(tensor_scale(0.0), 1.0, "tensor_scale(0.0)", 0, hint="There is nothing to scale.")


def check_DelayedScale(DelayedScale, random):
    length = int(random.integers(2, 5))
    mine, seen = DelayedScale(length), []
    call = f"DelayedScale({length}).scale()"
    close(mine.scale(), 1.0, f"{call} before any tensor", 0)
    sizes = [2.0 ** float(e) for e in random.permutation(np.arange(-6, 6))]
    for size in sizes:
        x = (random.uniform(-0.9, 0.9, 5) * size).astype(np.float32)
        x[2] = -size
        mine.saw(x.copy())
        seen.append(size)
        hint = "The largest magnitude counts; it may belong to a negative number."
        if len(seen) > 1:
            hint = "Take the largest of what it remembers."
        if len(seen) > length:
            hint = f"It remembers the last {length} tensors, and forgets older ones."
        close(mine.scale(), _scale_for(max(seen[-length:])), f"{call} after {len(seen)} tensors", 0, hint=hint)
    expect(DelayedScale(2).scale() == 1.0, "a new DelayedScale knows what another one saw: keep it in self.")


# %%
random = np.random.default_rng(0)
sizes = 2.0 ** (3 * np.sin(np.arange(60) / 6) - 8) * np.where(np.arange(60) == 30, 64, 1)
delayed, errors = DelayedScale(8), {"own scale": [], "delayed": [], "no scale": []}
for size in sizes:
    x = (size * random.standard_normal(1000)).astype(np.float32)
    for name, scale in (
        ("own scale", tensor_scale(float(np.abs(x).max()))),
        ("delayed", delayed.scale()),
        ("no scale", 1.0),
    ):
        scale = np.float32(scale)
        error = E4M3.round(x * scale, saturate=True) / scale - x
        errors[name].append(np.sqrt(np.mean(error**2) / np.mean(x**2)))
    delayed.saw(x)

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4))
left.plot(np.log2(sizes), color="0.3")
left.set(xlabel="tensor", ylabel="log2 of its standard deviation", title="60 tensors, one with a jump")
for name, found in errors.items():
    right.plot(found, label=name)
right.set(xlabel="tensor", ylabel="relative error in E4M3", yscale="log", title="What the scale is worth")
right.legend()

# %% [markdown]
# Without a scale the error reaches 1 where the tensors are small: all numbers become zero. The delayed scale is nearly
# as good as one of the tensor's own. But at the first tensor it knows nothing, and at the jump it saturates: what is 64
# times larger than expected becomes 448, and the error is nearly 1. Afterwards its S is too small for eight tensors.
# That costs nothing here: 6 powers of two are within E4M3's range.

# %% [markdown]
# ## 4. A scale per block
#
# The opposite of one scale for a network: one for each 32 neighbours. MXFP8 (OCP Microscaling Formats 1.0) keeps for
# each block of 32 numbers one power of two, in 8 bits, and the numbers in E4M3. The rule of that standard:
#
# - take the largest magnitude of the block, and the power of two at or below it, 2^e;
# - E4M3's largest number, 448, lies above 2^8. So S = 2^(8 - e): the largest number of the block then lies from 256 up
# to 512;
# - round S x to E4M3. What is above 448 saturates.


# %% exercise
def mxfp8(x):
    """x as MXFP8 holds it, a float32 array (N,).

    x: a float32 array (N,), N a multiple of 32; the first 32 numbers are the first block. Magnitudes are 0 or from
    2^-100 to 2^100. A block of zeros stays. E4M3.round(y, saturate=True) rounds a float32 array y.
    """
    # SOLUTION
    blocks = x.reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    e = np.frexp(np.where(amax > 0, amax, 1))[1] - 1
    scale = np.ldexp(np.float32(1), 8 - e)
    return (E4M3.round(blocks * scale, saturate=True) / scale).reshape(-1)
    # END


# %%
check(mxfp8)


# %% check
def check_mxfp8(mxfp8, random):
    def block(largest):
        x = random.uniform(-0.6, 0.6, 32) * largest * 2.0 ** random.integers(-14, 1, 32)
        x[int(random.integers(32))] = -largest
        return x

    one = block(1.5).astype(np.float32)
    hint = "The largest magnitude (of a negative number, too) decides; S = 2^(8 - e)."
    call = "mxfp8(a block whose largest magnitude is {})"
    _exactly(mxfp8(one.copy()), SCALED["mxfp8"].round(one), call.format(1.5), hint)
    for largest in (1.0, 1.96875):
        x = block(largest).astype(np.float32)
        hint = "1.0 is a power of two: e = 0, S = 256." if largest == 1 else "S * 1.96875 = 504 is above 448: saturate."
        _exactly(mxfp8(x.copy()), SCALED["mxfp8"].round(x), call.format(largest), hint)
    several = np.concatenate([block(2.0 ** float(e)) for e in random.uniform(-25, 25, 6)]).astype(np.float32)
    hint = "Each block of 32 neighbours has its own scale."
    _exactly(mxfp8(several.copy()), SCALED["mxfp8"].round(several), "mxfp8(six blocks of very different sizes)", hint)
    empty = np.concatenate([np.zeros(32), block(3.0)]).astype(np.float32)
    hint = "The logarithm of 0 is no exponent: a block of zeros stays."
    _exactly(mxfp8(empty.copy()), SCALED["mxfp8"].round(empty), "mxfp8(a block of zeros and another one)", hint)


# %%
gradient = np.concatenate([p.grad.array.ravel() for p in model.parameters()])
gradient = gradient[: len(gradient) // 32 * 32]
for name, rounded in (
    ("E4M3", E4M3.round(gradient)),
    ("E4M3, one scale for all", SCALED["e4m3-tensor"].round(gradient)),
    ("MXFP8, one per 32 (yours)", mxfp8(gradient)),
):
    lost = np.mean(rounded[gradient != 0] == 0)
    print(f"{name:<26} {lost:5.1%} of the autoencoder's gradients become zero")

# %% [markdown]
# ## 5. Rounding at random
#
# Lesson 4: a weight that is rounded to nearest does not notice an update of less than half of its spacing. BF16's
# spacing is 2⁻⁷ of the power of two below the weight, eight times FP16's. The cure of 2018 is an FP32 master. The other
# cure is older: **stochastic rounding** (Gupta et al., 2015, [arXiv 1502.02551](https://arxiv.org/abs/1502.02551)).
# Round up with a probability that is the distance from the lower neighbour, as a share of the spacing. The result is
# right on average: a hundred updates of a hundredth of the spacing move the weight by one step, sooner or later.
#
# With integers it is easier than rounding to nearest: add a random number from 0 to 0xFFFF to the 32 bits, then cut.


# %% exercise
def stochastic_bf16(x, random):
    """x rounded to one of its two neighbours in BF16, at random, right on average, as a float32 array.

    x: a float32 array, finite and below 1e38 in magnitude. random: a NumPy generator. What is in BF16 already stays.
    """
    # SOLUTION
    bits = x.view(np.uint32) + random.integers(0, 2**16, x.shape, np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    # END


# %%
check(stochastic_bf16)


# %% check
def check_stochastic_bf16(stochastic_bf16, random):
    source, n = np.random.default_rng(int(random.integers(1000))), 20_000
    exact = BF16.round(random.normal(size=50).astype(np.float32))
    got = stochastic_bf16(exact.copy(), source)
    close(got, exact, "stochastic_bf16 of numbers that are in BF16", 0, hint="They stay.", dtype=np.float32)
    for share in (0.5, 1 / 64, float(random.uniform(0.1, 0.9))):
        for low in (1.0, -1.0, float(random.integers(64, 127)) / 4096):
            high = (
                low * (1 + 2.0**-7) if abs(low) == 1 else low + np.sign(low) * 2.0 ** (math.floor(math.log2(low)) - 7)
            )
            x = np.full(n, np.float32(low + share * (high - low)))
            got = stochastic_bf16(x.copy(), source)
            call = f"stochastic_bf16({n:,} times {float(x[0]):.8g})"
            expect(np.shape(got) == (n,), f"{call} has shape {np.shape(got)}, expected {(n,)}.")
            values = sorted(set(np.asarray(got).tolist()))
            expect(
                set(values) <= {low, high},
                f"{call} gives {short(values[:4])}: its neighbours in BF16 are {low:g} and {high:.8g}.",
            )
            true = float((Fraction(float(x[0])) - Fraction(low)) / (Fraction(high) - Fraction(low)))
            ups, sigma = float(np.mean(np.asarray(got) == high)), math.sqrt(max(true * (1 - true), 1e-4) / n)
            hint = (
                "All were rounded alike: draw a number from 0 to 0xFFFF for each."
                if ups in (0, 1)
                else "Add 0 to 0xFFFF."
            )
            expect(
                abs(ups - true) < 6 * sigma + 2.0**-15,
                f"{call} goes to {high:.8g} in {ups:.1%} of the cases, expected {true:.1%}. {hint}",
            )


# %%
def classify(rounding, steps=STEPS, lr=2.0**-14):
    """(losses, share of right test digits). After each step the weights, and all there is of them, are rounded."""
    mp.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer, curve, random = optim.Adam(model.parameters(), lr=lr), [], np.random.default_rng(0)
    for _ in range(steps):
        chosen = random.integers(0, len(images), 64)
        loss = ops.cross_entropy(model(mp.tensor(images[chosen])), mp.tensor(labels[chosen]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with mp.no_grad():
            for p in model.parameters():
                p.copy_(rounding(p.array))
        curve.append(loss.item())
    with mp.no_grad():
        guesses = model(mp.tensor(test_images)).numpy().argmax(1)
    return curve, np.mean(guesses == test_labels)


source = np.random.default_rng(0)
figure, axes = plt.subplots()
for name, rounding, style in (
    ("FP32 weights", lambda w: w, {"linewidth": 5, "alpha": 0.4}),
    ("BF16 weights alone, to nearest", to_bf16, {}),
    ("BF16 weights alone, at random", lambda w: stochastic_bf16(w, source), {"linestyle": "--"}),
):
    curve, right = classify(rounding)
    axes.plot(curve, label=f"{name}: {right:.0%} right", **style)
axes.set(xlabel="step", ylabel="loss", title="Digits, Adam with a learning rate of 2⁻¹⁴, no FP32 masters")
axes.legend()
# %% [markdown]
# To nearest, most updates are lost. At random, the same 16 bits per weight learn as FP32 does. (Adam's state stays
# FP32.)
#
# MPT's first version (appendix A) tried stochastic rounding, too, for the FP16 copies of FP32 masters, and the result
# was worse than with rounding to nearest. There the masters kept the small updates already. So the two are rivals: one
# of them is needed.

# %% [markdown]
# ## 6. What remains of the paper
#
# First the picture: the autoencoder without a loss scale, in four formats. `mp.BF16` and `mp.FP8` keep FP32 masters and
# FP32 sums. `mp.FP8` rounds what a product reads to E4M3 and gradients to E5M2, with a scale per tensor (emulated: the
# numbers lie in BF16 arrays).

# %%
figure, axes = plt.subplots()
for (name, policy), style in zip(
    {"FP32": mp.FP32, "FP16": mp.MIXED, "BF16": mp.BF16, "FP8": mp.FP8}.items(),
    ({"linewidth": 5, "alpha": 0.4}, {}, {"linestyle": "--"}, {"linestyle": ":"}),
):
    curve = np.convolve(train_autoencoder(policy), np.ones(8) / 8, "valid")
    axes.plot(curve, label=name, **style)
axes.set(xlabel="step", ylabel="loss, mean of 8 steps", ylim=(0.06, 0.075), title="No loss scale")
axes.legend()

print("1 + 1 + 1 + ..., a thousand times, in BF16:", end=" ")
total = np.float32([0])
for _ in range(1000):
    total = to_bf16(total + 1)
print(total[0])

# %% [markdown]
# Now fill in the table, from what you have seen: in the picture above, in exercise 5, in the line below the picture,
# and in the first picture. What does training need in each format, if nothing else replaces it? Choose from
#
# - **"loss scale"**: one number for the whole network, as in lesson 5
# - **"FP32 masters"**: for weights that are rounded to nearest, where updates are small
# - **"FP32 sums"**: of products, in statistics, in losses
# - **"scale per tensor"** (or per block)
#
# and write `remains = {"BF16": {...}, "FP8": {...}}`. FP16 has
# `{"loss scale", "FP32 masters", "FP32 sums"}`.

# %% exercise
remains = {"BF16": {"FP32 masters", "FP32 sums"}, "FP8": {"FP32 masters", "FP32 sums", "scale per tensor"}}  # SOLUTION

# %%
check(remains=remains)


# %% check
def _measured(policy):
    """The fields of a tinymp policy, and the needs of this lesson's networks in its formats."""
    studied = policy.study or policy
    names = getattr(studied, "operands", ()) or ("bf16",)
    gradients = np.float32(2.0 ** np.linspace(-32, -20, 200))  # those of the autoencoder
    weight = policy.cast(nn.Parameter(np.ones(4, np.float32)))
    weight.grad = np.full(4, 2.0**-10, np.float32)
    optim.SGD([weight], lr=1.0).step()
    unscaled = [SCALED[name.removesuffix("-tensor")].round(gradients) for name in names]
    return {
        "loss scale": bool(any((SCALED[name].round(gradients) == 0).mean() > 0.5 for name in names)),
        "FP32 masters": bool(policy.master and (weight.array.astype(np.float32) == 1).all()),  # else the step is lost
        "FP32 sums": studied.accumulate == studied.reduce == np.float32
        and float(BF16.round(np.float32([257]))[0]) != 257,
        "scale per tensor": bool(any((y == 0).mean() > 0.5 for y in unscaled)),
    }


def check_remains(remains, random):
    hints = {
        "BF16": {
            "loss scale": "In the last picture BF16 follows FP32 without one: it has FP32's exponents.",
            "FP32 masters": "In exercise 5 BF16 weights that were rounded to nearest fell behind.",
            "FP32 sums": "Adding 1 in BF16 ends at 256.",
            "scale per tensor": "All these tensors fit: the exponents are FP32's.",
        },
        "FP8": {
            "loss scale": "In the last picture FP8 follows FP32 without one; its tensors have scales of their own.",
            "FP32 masters": "A resolution of 3 or 4 bits is coarser than BF16's; mp.FP8.master is True.",
            "FP32 sums": "Look at mp.FP8.accumulate and mp.FP8.reduce: products are summed in FP32.",
            "scale per tensor": "In the first picture E4M3 without a scale makes nearly all gradients zero.",
        },
    }
    expect(
        isinstance(remains, dict) and set(remains) == set(hints),
        f"remains is {remains!r:.60}, expected a dictionary of two sets, for 'BF16' and for 'FP8'.",
    )
    for name, policy in (("BF16", mp.BF16), ("FP8", mp.FP8)):
        got, measured = remains[name], _measured(policy)
        known = isinstance(got, (set, frozenset, tuple, list)) and all(
            isinstance(x, str) and x in measured for x in got
        )
        parts = ", ".join(map(repr, measured))
        expect(known, f"remains[{name!r}] is {got!r:.60}, expected a set of some of {parts}.")
        for part, needed in measured.items():
            said = "is" if part in got else "is not"
            expect((part in got) == needed, f"{part!r} {said} in remains[{name!r}]. {hints[name][part]}")


# %%
print(mp.MIXED, mp.BF16, mp.FP8, sep="\n")

# %% [markdown]
# ## What to remember
#
# | | FP16 (2018) | BF16 | FP8 |
# |---|---|---|---|
# | a loss scale | yes | no | no: a scale per tensor or block |
# | FP32 masters | yes | yes, or stochastic rounding | yes |
# | FP32 sums | yes | yes | yes |
#
# - Range can be moved by a scale. Resolution cannot: it must be kept elsewhere (masters, sums), or be right on average
# (stochastic rounding).
# - **Of the paper's three parts two remain.** The loss scale was for FP16's short range; FP8's scales are its
# grandchildren.
# - Whether *your* numbers fit, `mp.audit(formats=[...])` tells before you change anything.
#
# ## To think about
#
# 1. Stochastic rounding makes each single weight less exact. Why does the network learn better?
# 2. A delayed scale needs no look at the tensor before rounding it. What is its danger, and how would you notice?
# 3. MXFP8's S brings the largest number up to 512, above 448. Why does the standard accept that?
# 4. In 2018 FP16 had to be learned by every user. What of this course will somebody with BF16 never notice, and what
# should she still know?
