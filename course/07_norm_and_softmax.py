# %% [markdown]
# # 7. Batch norm and softmax in FP32
#
# *50 minutes.*
#
# **A network is sure: its score for "seven" is 12. Its FP16 softmax says NaN. What is wrong with the number 12?**
#
# - **You know** numbers (lesson 1), backward (2) and accumulators (6).
# - **You do**: write softmax and cross-entropy that survive any scores, and batch norm, forward and backward: FP16 in
#   and out, FP32 inside.
# - **You can then** find the op of a network that loses most, and mend that one alone.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), NVG is NVIDIA's guide *Training
# with Mixed Precision*. On Colab, first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.autograd import Op
from tinymp.study.formats import FP16
from tinymp.course import check, digits
from tinymp.precision import REDUCTION

# %%
import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 50  # of each training; on a slow machine 25 show the same

# %% [markdown]
# ## The question, in a picture
#
# Softmax makes probabilities of scores: pᵢ = exp(xᵢ) / Σ exp(xⱼ). What does FP16 make of the exponentials of usual
# scores?

# %%
x = np.linspace(-20, 14, 2000).astype(np.float16)
with np.errstate(over="ignore"):
    e = np.exp(x.astype(np.float32)).astype(np.float16)
figure, axes = plt.subplots()
axes.semilogy(x[(e > 0) & np.isfinite(e)], e[(e > 0) & np.isfinite(e)], base=2, linewidth=2.5)
zero, most = np.log([FP16.smallest / 2, FP16.largest])
for low, high, color, what in ((-20, zero, "0.8", "zero"), (most, 14, "#f6cfb5", "infinite")):
    axes.axvspan(low, high, color=color, zorder=0)
    axes.text((low + high) / 2, 2.0**18, what, ha="center")
axes.set(xlabel="score x", ylabel="exp(x) in FP16", xlim=(-20, 14), ylim=(2.0**-26, 2.0**20))
axes.set_title("FP16 holds the exponentials of a few scores only")
with np.errstate(all="ignore"):
    e = np.exp(np.float16([12, 3, 1]))
    print("exp:", e, "   divided by their sum:", e / e.sum())

# %% [markdown]
# exp(12) is 162,755, and FP16 ends at 65,504. Infinity divided by infinity is NaN. And below -17.3 an exponential is 0.
# The number 12 is harmless; what we do with it is not.

# %% [markdown]
# ## 1. A softmax that is safe
#
# - Subtract the largest score of the row first. That changes no quotient, and no exponential is above 1.
# - MPT 3.3: read FP16, compute and add up in FP32, write FP16, with one rounding.


# %% exercise
def safe_softmax(x):
    """The softmax of each row, in float16.

    x: a float16 array (rows, classes) of finite scores, of any size. Everything is computed in FP32 and rounded once.
    """
    # SOLUTION
    wide = x.astype(np.float32)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float16)
    # END


# %%
check(safe_softmax)

# %% check
import numpy as np

import tinymp as mp
from tinymp import nn, ops
from tinymp.course.checking import close, expect, short


def check_safe_softmax(safe_softmax, random):
    def ask(x, what, hint, tolerance=2.0**-8):
        wide = x.astype(np.float64)
        e = np.exp(wide - wide.max(axis=1, keepdims=True))
        got = safe_softmax(x.copy())
        expect(np.isfinite(got).all(), f"{what} has {np.count_nonzero(~np.isfinite(got))} NaN or infinities. {hint}")
        close(got, e / e.sum(axis=1, keepdims=True), what, tolerance, 2.0**-24, hint, np.float16)

    x = np.float16([[1, 2, 3]])
    ask(x, f"safe_softmax({short(x)})", "exp(x) / sum of exp(x).")
    x = np.float16([[12, 3, 1]])
    ask(x, f"safe_softmax({short(x)})", "Subtract the largest score first.")
    x = np.float16([[60000, 0, -60000]])
    ask(x, f"safe_softmax({short(x)})", "FP32 overflows, too, from exp(89) on: subtract the largest score first.")
    x = np.float16([[0, 1], [-1000, -1001]])
    ask(x, f"safe_softmax({short(x)})", "Each row has its own largest score, and its own sum.")
    x = random.normal(size=(3, int(random.integers(400, 500)))).astype(np.float16)
    hint = "Compute in FP32: the exponentials, their sum and the division; round once, at the end."
    # one rounding to FP16, and at most 1,000 roundings of FP32 before it
    ask(x, f"safe_softmax(x) of {x.shape} scores", hint, 2.0**-11 + 1000 * 2.0**-24)


# %%
for size in (4, 8, 12, 30):
    scores = (size * np.array([[1, 0.25, 0]])).astype(np.float16)
    with np.errstate(all="ignore"):
        e = np.exp(scores)
        print(f"{scores[0]}: yours {safe_softmax(scores)[0, 0]:.4f}, in FP16 without care {(e / e.sum())[0, 0]:.4f}")

# %% [markdown]
# ## 2. Mean and variance
#
# Batch norm (Ioffe & Szegedy 2015, [arXiv 1502.03167](https://arxiv.org/abs/1502.03167)) needs the mean and the
# variance of each channel, over all images and positions. There are two formulas for the variance:
#
# - the mean of (x - mean)²: two passes over x;
# - the mean of x², minus mean²: one pass. But if the mean is large, two numbers that are nearly equal are subtracted,
#   and what remains is made of their rounding errors.


# %% exercise
def moments(x):
    """(mean, variance) of each channel over images and positions, float32, each of shape (channels,).

    x: a float16 array (images, channels, height, width). The variance is the biased one: divided by n, not n - 1. It
    must also be right for a channel with mean 1500 and variance 1.
    """
    # SOLUTION
    wide = x.astype(np.float32)
    mean = wide.mean(axis=(0, 2, 3), keepdims=True)
    var = np.square(wide - mean).mean(axis=(0, 2, 3))
    return mean.ravel(), var
    # END


# %%
check(moments)


# %% check
def check_moments(moments, random):
    n, h, w = (int(s) for s in random.integers(3, 8, 3))
    shape, count = (n, 5, h, w), n * h * w
    offsets = {
        "small means": (0, "Over images and positions, axes 0, 2 and 3: the channels stay."),
        "means of 100": (100, "Add up in FP32: an FP16 sum stalls, or overflows."),
        "means of 1500": (1500, "Large numbers cancel: the mean of (x - mean)^2, not the mean of x^2 minus mean^2."),
    }
    for name, (offset, hint) in offsets.items():
        x = random.normal(offset + random.uniform(-1, 1, (5, 1, 1)), 1, shape).astype(np.float16)
        wide = x.astype(np.float64)
        got = moments(x.copy())
        call = f"moments(x) of shape {shape} with {name}"
        expect(
            isinstance(got, tuple) and len(got) == 2, f"{call} returns {type(got).__name__}, expected (mean, variance)."
        )
        # adding up n numbers one after the other rounds n times; what FP16 does is worse than 0.01 from 100 on
        off = count * 2.0**-24 * np.abs(wide).max() if offset == 1500 else 0.01
        adding = offsets["means of 100"][1] if offset else hint
        close(got[0], wide.mean((0, 2, 3)), f"{call}: the mean", 0, off, adding, np.float32)
        var = wide.var((0, 2, 3))
        hint = hint if offset else "The mean of (x - mean)^2, over images and positions."
        if np.allclose(np.asarray(got[1], np.float64), var * count / (count - 1), rtol=1e-4):
            hint = "This is the unbiased variance, divided by n - 1."
        elif np.allclose(np.square(np.asarray(got[1], np.float64)), var, rtol=1e-3):
            hint = "This is its root, the standard deviation."
        off = off**2 + 1e-6 if offset == 1500 else off
        close(got[1], var, f"{call}: the variance", 4 * count * 2.0**-24, off, hint, np.float32)


# %%
def one_pass(x, dtype):
    """The mean of x^2 minus the square of the mean, with sums in dtype, one number after the other."""
    flat = x[:, 0].ravel().astype(dtype)
    n = dtype(len(flat))
    with np.errstate(all="ignore"):
        return np.add.accumulate(flat * flat)[-1] / n - (np.add.accumulate(flat)[-1] / n) ** 2


random = np.random.default_rng(0)
print("mean of the channel   one pass, FP16   one pass, FP32   yours (the right variance is 1)")
for mean in (0.25, 4.0, 64.0, 256.0, 1024.0):
    x = random.normal(mean, 1, (16, 1, 16, 16)).astype(np.float16)
    print(f"{mean:19} {one_pass(x, np.float16):16.3f} {one_pass(x, np.float32):16.3f} {moments(x)[1][0]:7.3f}")

# %% [markdown]
# In FP32 one pass loses its digits as the mean grows; with bad luck the result is negative, and its root NaN. Two
# passes do not mind the mean.
#
# ## 3. Batch norm, forward
#
# Per channel: x̂ = (x - mean) / √(var + ε), and y = x̂ · weight + bias. NVG 2.3.1: FP16 may go in and out, but "the
# statistics and value adjustment should be done in FP32".
#
# While it trains, the layer keeps running statistics, for later: r ← (1 - m) r + m · (that of the batch). As in PyTorch
# the running variance is the *unbiased* one, var · n / (n - 1).


# %% exercise
class ChannelNorm:
    """Batch norm of x: (images, channels, height, width).

    running_mean, running_var   float32 (channels,), at first 0 and 1
    """

    def __init__(self, channels, eps=1e-5, momentum=0.1):
        # SOLUTION
        self.eps, self.momentum = eps, momentum
        self.running_mean, self.running_var = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        # END

    def train(self, x, weight, bias):
        """y in float16, with the statistics of this batch; the running statistics move.

        x: float16. weight, bias: float32 (channels,). Everything is computed in FP32.
        """
        # SOLUTION
        mean, var = moments(x)
        n = x.size // len(mean)
        self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean
        self.running_var = (1 - self.momentum) * self.running_var + self.momentum * var * np.float32(n / (n - 1))
        return self._normalised(x, mean, var, weight, bias)
        # END

    def evaluate(self, x, weight, bias):
        """y in float16, with the running statistics, which stay as they are."""
        # SOLUTION
        return self._normalised(x, self.running_mean, self.running_var, weight, bias)

    def _normalised(self, x, mean, var, weight, bias):
        mean, var, weight, bias = (v.reshape(-1, 1, 1) for v in (mean, var, weight, bias))
        y = (x.astype(np.float32) - mean) / np.sqrt(var + np.float32(self.eps)) * weight + bias
        return y.astype(np.float16)
        # END


# %%
check(ChannelNorm)


# %% check
def check_ChannelNorm(ChannelNorm, random):
    channels, h, w = 3, 2, int(random.integers(4, 7))
    shape, n = (2, channels, h, w), 2 * h * w
    momentum, eps = 0.25, 2.0**-6
    mine = ChannelNorm(channels, eps=eps, momentum=momentum)
    mean, var = np.zeros(channels), np.ones(channels)
    close(mine.running_mean, mean, "running_mean at first", 0, dtype=np.float32)
    close(mine.running_var, var, "running_var at first", 0, dtype=np.float32)
    weight, bias = (random.uniform(0.5, 2, channels).astype(np.float32) for _ in range(2))

    def ask(y, x, m, v, call, hint):
        expect(isinstance(y, np.ndarray), f"{call} returns {type(y).__name__}, expected an array.")
        per = [s.astype(np.float64).reshape(-1, 1, 1) for s in (m, v, weight, bias)]
        scale = per[2] / np.sqrt(per[1] + eps)
        want = (x.astype(np.float64) - per[0]) * scale + per[3]
        # one rounding to FP16; before it n + 4 of FP32, of numbers like those of x
        off = (n + 4) * 2.0**-24 * np.abs(x).max().astype(np.float64) * scale.max()
        close(y, want, call, 2.0**-11 * 1.01, off + 2.0**-25, hint, np.float16)

    for batch in ("first", "second"):
        x = random.normal(random.uniform(10, 30, (channels, 1, 1)), 1.5, shape).astype(np.float16)
        wide = x.astype(np.float64)
        m, v = wide.mean((0, 2, 3)), wide.var((0, 2, 3))
        y = mine.train(x.copy(), weight.copy(), bias.copy())
        hint = "The batch's own mean and (biased) variance, in FP32; eps under the root; weight and bias per channel."
        ask(y, x, m, v, f"train(x, weight, bias) of the {batch} batch", hint)
        mean, var = (1 - momentum) * mean + momentum * m, (1 - momentum) * var + momentum * v * n / (n - 1)
        hint = f"(1 - m) r + m new, with m = {momentum}."
        close(mine.running_mean, mean, f"running_mean after the {batch} batch", 1e-4, 0, hint, np.float32)
        hint += " The running variance is the unbiased one: n / (n - 1) times the batch's."
        close(mine.running_var, var, f"running_var after the {batch} batch", 1e-3, 0, hint, np.float32)
    y = mine.evaluate(x.copy(), weight.copy(), bias.copy())
    ask(y, x, mean, var, "evaluate(x, weight, bias)", "Here the running statistics count, not the batch's.")
    close(mine.running_mean, mean, "running_mean after evaluate", 1e-4, hint="evaluate must not change it.")


# %% [markdown]
# ## 4. Batch norm, backward
#
# Every x moves the mean and the variance, and so every y of its channel. With dy the gradient of y, n numbers per
# channel and x̂ as above, the chain rule gives
#
# - dbias = Σ dy
# - dweight = Σ dy · x̂
# - dx = weight / √(var + ε) · (dy - dbias / n - x̂ · dweight / n)


# %% exercise
def norm_backward(dy, x, weight, eps):
    """(dx, dweight, dbias): dx float16 like x, the others float32 (channels,). All is computed in FP32.

    dy, x: float16 arrays (images, channels, height, width). weight: float32 (channels,).
    """
    # SOLUTION
    axes, n = (0, 2, 3), x.size // len(weight)
    mean, var = moments(x)
    rstd = 1 / np.sqrt(var + np.float32(eps))
    xhat = (x.astype(np.float32) - mean.reshape(-1, 1, 1)) * rstd.reshape(-1, 1, 1)
    wide = dy.astype(np.float32)
    dbias = wide.sum(axis=axes)
    dweight = (wide * xhat).sum(axis=axes)
    inner = wide - dbias.reshape(-1, 1, 1) / n - xhat * dweight.reshape(-1, 1, 1) / n
    return ((weight * rstd).reshape(-1, 1, 1) * inner).astype(np.float16), dweight, dbias
    # END


# %%
check(norm_backward)


# %% check
def check_norm_backward(norm_backward, random):
    channels, h, w = 3, 4, int(random.integers(5, 8))
    n, eps = 2 * h * w, 2.0**-6
    x = random.normal(random.uniform(-2, 2, (channels, 1, 1)), 1.5, (2, channels, h, w)).astype(np.float16)
    dy = random.normal(0.3, 1, x.shape).astype(np.float16)
    weight = random.uniform(0.5, 2, channels).astype(np.float32)
    # tinymp's own gradients of the plain formula, in FP64
    wide = mp.tensor(x.astype(np.float64), requires_grad=True)
    wides = [
        mp.tensor(v.reshape(1, -1, 1, 1), requires_grad=True) for v in (weight.astype(np.float64), np.zeros(channels))
    ]
    away = wide - ops.mean(wide, dim=(0, 2, 3), keepdim=True)
    var = ops.mean(away * away, dim=(0, 2, 3), keepdim=True)
    y = away / ops.sqrt(var + eps) * wides[0] + wides[1]
    ops.sum(y * mp.tensor(dy.astype(np.float64))).backward()
    got = norm_backward(dy.copy(), x.copy(), weight.copy(), eps)
    expect(
        isinstance(got, tuple) and len(got) == 3, f"norm_backward returns {type(got).__name__}, expected a tuple of 3."
    )
    # sums of n terms, each below `most`, rounded n + 4 times in FP32
    most = float(np.abs(dy).max()) * max(1.0, float(np.abs(y.numpy()).max()))
    off = (n + 4) * n * 2.0**-24 * most
    close(
        got[2],
        wides[1].grad.array.ravel(),
        "dbias",
        0,
        off,
        "It comes last: the sum of dy over images and positions.",
        np.float32,
    )
    close(
        got[1],
        wides[0].grad.array.ravel(),
        "dweight",
        0,
        off,
        "The sum of dy * xhat, without weight; eps is in xhat.",
        np.float32,
    )
    scale = float((weight / np.sqrt(x.astype(np.float64).var((0, 2, 3)) + eps)).max())
    hint = "All three terms: dy, its mean, and xhat times the mean of dy * xhat; then weight / sqrt(var + eps)."
    close(got[0], wide.grad.array, "dx", 2.0**-11 * 1.01, 8 * off / n * scale, hint, np.float16)


# %% [markdown]
# Now your two pieces become a layer (lesson 3 says what an `Op` is), of a small CNN that learns digits.

# %%
images, labels, _, _ = digits()


class YourNorm(Op):
    kind = REDUCTION
    fp32 = ("weight", "bias")

    def forward(self, x, w, b, *, norm, eps):
        self.save(x, w)
        return norm.train(x, w, b)

    def backward(self, dy):
        return norm_backward(dy, *self.saved, self.eps)


class YourLayer(nn.BatchNorm2d):
    def forward(self, input):
        if not hasattr(self, "norm"):
            self.norm = ChannelNorm(self.num_features, eps=self.eps)
        return YourNorm.apply(input, self.weight, self.bias, norm=self.norm, eps=self.eps)


def cnn(norm=nn.BatchNorm2d):
    mp.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), norm(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1, bias=False), norm(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 49, 10)),
    )


def train(model, policy, steps=STEPS, size=48):
    """Losses of a model that was cast already."""
    optimizer, scaler = optim.Adam(model.parameters(), lr=2e-3), optim.StaticLossScaler(256.0)
    generator, curve = np.random.default_rng(0), []
    with mp.use(policy):
        for _ in range(steps):
            chosen = generator.integers(0, len(images), size)
            loss = ops.cross_entropy(model(policy.cast(mp.tensor(images[chosen]))), mp.tensor(labels[chosen]))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            curve.append(loss.item())
    return curve


in_mixed = train(mp.MIXED.cast(cnn()), mp.MIXED)
yours = train(mp.MIXED.cast(cnn(YourLayer)), mp.MIXED)
print(
    f"the loss falls from {in_mixed[0]:.3f} to {in_mixed[-1]:.3f} with tinymp's batch norm, {yours[-1]:.3f} with yours"
)

# %% [markdown]
# ## 5. Cross-entropy is one op
#
# The loss of a row is -ln p, with p the probability of the right class. If softmax writes p in FP16 first, a p below
# 2⁻²⁵ is 0, and the loss of a badly wrong row infinite. So softmax and logarithm are one op, and its result is FP32
# (kind LOSS; NVG 2.3.1):
#
# -ln p = ln Σ exp(xⱼ) - x of the right class
#
# The logarithm of the sum needs the trick of exercise 1.


# %% exercise
def stable_cross_entropy(scores, labels):
    """The mean over the rows of -ln(softmax) of the right class: a float, or FP32.

    scores: float16 (rows, classes), finite, of any size. labels: int64 (rows,), the right classes.
    """
    # SOLUTION
    wide = scores.astype(np.float32)
    most = wide.max(axis=1)
    total = np.log(np.exp(wide - most[:, None]).sum(axis=1)) + most
    return float(np.mean(total - wide[np.arange(len(labels)), labels]))
    # END


# %%
check(stable_cross_entropy)


# %% check
def check_stable_cross_entropy(stable_cross_entropy, random):
    def ask(scores, labels, what, hint, tolerance=2.0**-8):
        wide = scores.astype(np.float64)
        most = wide.max(axis=1)
        total = np.log(np.exp(wide - most[:, None]).sum(axis=1)) + most
        want = float(np.mean(total - wide[np.arange(len(labels)), labels]))
        got = stable_cross_entropy(scores.copy(), np.array(labels))
        close(got, want, f"stable_cross_entropy({what})", tolerance, hint=hint)

    hint = "ln of the sum of exponentials, minus the score of the right class."
    ask(np.float16([[1, 2, 3]]), [2], "[[1, 2, 3]], [2]", hint)
    hint = "The probability is below 2^-25, and 0 in FP16: do not write it down. Subtract scores in FP32."
    ask(np.float16([[0, 30]]), [0], "[[0, 30]], [0]", hint)
    hint = (
        "FP32 overflows, too, from exp(89) on: subtract the largest score first, and add it afterwards. Take the mean."
    )
    ask(np.float16([[300, 0], [0, 200]]), [1, 1], "[[300, 0], [0, 200]], [1, 1]", hint)
    n = int(random.integers(5, 9))
    scores, labels = random.normal(0, 3, (n, 200)).astype(np.float16), random.integers(0, 200, n)
    hint = "The mean over the rows, of -ln p of each row's right class, in FP32."
    # fewer than 256 roundings of FP32, in a loss that is larger than the scores' own error
    ask(scores, labels, f"{n} x 200 scores, labels", hint, 2.0**-14)


# %%
for margin in (4, 12, 17, 18, 40):
    scores = np.float16([[0, margin]])
    with np.errstate(divide="ignore"):
        in_two = -np.log(safe_softmax(scores).astype(np.float32))[0, 0]
    print(
        f"the wrong class leads by {margin}: {in_two:.3f} by way of FP16, yours {stable_cross_entropy(scores, [0]):.3f}"
    )

# %% [markdown]
# ## 6. Which op is it?
#
# Somebody gives you a network with `mp.FP16_REDUCTIONS`: all sums in FP16. The audit finds what that breaks. With
# `shadow=True` it runs each op again in FP32, on the same inputs, and says how far off the op is, in ulps of FP16: one
# rounding to nearest makes 0.25 on average. Whatever loses more computes badly.

# %%
model = mp.FP16_REDUCTIONS.cast(cnn())
with mp.audit(shadow=True) as a:
    train(model, mp.FP16_REDUCTIONS, steps=1)
figure, axes = plt.subplots()
a.shadow.draw(axes)
axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2)
for row in a.shadow.rows[:3]:
    print(f"row.module {row.module!r}, row.op {row.op!r}, row.phase {row.phase!r}, row.local.mean {row.local.mean:.2f}")

# %% [markdown]
# Look at the *local* bars: what the op loses itself, not what came with its inputs.
#
# `policy.cast(model, keep={"head": mp.MIXED})` gives the module with the path `head` another policy. The audit's name
# of a module has the variable of the model before the path: `model.1`, or `model.0.1` for a module in a module. Write
# what makes `keep` from an audit.


# %% exercise
def to_keep(a, limit):
    """{path: mp.MIXED} for each module of which a row of a.shadow.rows has a local.mean above limit.

    a: an audit with shadow=True. row.module is "model.0.1", and the path "0.1". Ops outside modules, whose row.module
    has no dot ("train()", "<module>"), are left out. A module may have several rows (forward, backward).
    """
    # SOLUTION
    worst = [row.module for row in a.shadow.rows if "." in row.module and row.local.mean > limit]
    return {name.split(".", 1)[1]: mp.MIXED for name in worst}
    # END


# %%
check(to_keep)


# %% check
def _audited(policy, keep, random_seed, shape):
    """An audit of two layers of batch norm at the paths 1 and 3.0, and of a softmax outside modules."""
    random = np.random.default_rng(random_seed)
    mp.manual_seed(random_seed)
    inner = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    outer = nn.Conv2d(1, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1, bias=False)
    model = nn.Sequential(*outer, inner)
    policy.cast(model, keep=keep)
    x = policy.cast(mp.tensor(random.uniform(0, 1, shape).astype(np.float32)))
    with mp.use(policy), mp.audit(shadow=True) as a:
        ops.mean(model(x)).backward()
        ops.softmax(policy.cast(mp.tensor(random.normal(0, 1, (1, 20000)).astype(np.float32))), dim=1)
    return a


def check_to_keep(to_keep, random):
    seed, shape = int(random.integers(1000)), (8, 1, 24, 24)
    a = _audited(mp.FP16_REDUCTIONS, {}, seed, shape)
    call = "to_keep(a, 1.0) for batch norm at the paths '1' and '3.0'"
    got = to_keep(a, 1.0)
    expect(isinstance(got, dict), f"{call} is {type(got).__name__}, expected a dict.")
    for name in ("1", "3.0"):
        hint = "Compare row.local.mean with limit; the path is what comes behind the first dot of row.module."
        expect(name in got, f"{call} has the paths {sorted(map(str, got))}, expected {name!r} among them. {hint}")
    more = sorted(map(str, set(got) - {"1", "3.0"}))
    hint = "What is inherited is not the op's own fault; ops outside modules are left out."
    expect(not more, f"{call} has {more}, too: that module loses nothing itself. {hint}")
    expect(
        all(value is mp.MIXED for value in got.values()), f"{call}: expected mp.MIXED for each path, got {got!r:.80}."
    )
    limits = [row.local.mean for row in a.shadow.rows if "." in row.module]
    got = to_keep(a, 2 * max(limits))
    expect(got == {}, f"to_keep with a limit that no row reaches is {got!r:.60}, expected {{}}: compare with limit.")


# %%
keep = to_keep(a, 1.0)
print("keep:", {path: policy.name for path, policy in keep.items()})
model = mp.FP16_REDUCTIONS.cast(cnn(), keep=keep)
with mp.audit(shadow=True) as after:
    train(model, mp.FP16_REDUCTIONS, steps=1)
worst = max(after.shadow.rows, key=lambda row: row.local.mean)
print(f"the worst op now: {worst.module} {worst.op} {worst.phase}, {worst.local.mean:.2f} ulps")

figure, axes = plt.subplots()
for name, kept in (("mp.FP16_REDUCTIONS", {}), ("the same, with your keep", keep)):
    curve = train(mp.FP16_REDUCTIONS.cast(cnn(), keep=kept), mp.FP16_REDUCTIONS)
    axes.plot(np.abs(np.subtract(curve, in_mixed)), label=name)
axes.set(xlabel="step", ylabel="difference", title="The loss, compared with that of mp.MIXED", yscale="log")
axes.legend()

# %% [markdown]
# Batch norm is wrong by hundreds of ulps, and yet the network learns: its weights adapt to statistics that are wrong in
# the same way in each step. A network that forgives such a fault hides it; the audit does not. FP32 costs next to
# nothing here: memory limits these layers, not arithmetic (MPT 3.3).
#
# Now read `tinymp/ops/softmax.py` and `tinymp/ops/norm.py`: your lines, with `widen`, `reduce` and `store`.

# %% [markdown]
# ## What to remember
#
# - Softmax: subtract the row's largest score; FP16 in and out, FP32 inside (MPT 3.3).
# - A variance is the mean of (x - mean)², not a difference of large numbers.
# - Batch norm: FP16 in and out, statistics, sums and parameters in FP32 (NVG 2.3.1).
# - Cross-entropy is one op on the scores, and gives FP32.
# - `a.shadow` tells what an op loses itself (local) from what it inherits. Mend the first.
#
# ## To think about
#
# 1. How large may a batch be until the FP16 sum of a channel with mean 1 stalls?
# 2. Layer norm adds up along one example, not over the batch. Is FP16 safe there?
