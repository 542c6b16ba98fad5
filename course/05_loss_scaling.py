# %% [markdown]
# # 5. Loss scaling
#
# *50 minutes.*
#
# **A network learns nothing in FP16. In FP32 it learns. You may add one multiplication to the program. Where?**
#
# - **You know** a step of training (lesson 2) and the master copy (4).
# - **You do**: write a training step with a loss scale, in the right order, and a scale that finds itself; race it
#   against tinymp's.
# - **You can then** say from a picture of the gradients whether FP16 loses them, and which scale saves them.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), NVG is NVIDIA's guide *Training with
# Mixed Precision*. On Colab, first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.course import check, digits

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 300  # of each training

# %% [markdown]
# ## The question, in a picture
#
# An autoencoder squeezes a digit through 16 numbers and draws it again. It has six layers with sigmoids. The slope of
# a sigmoid is 1/4 at most, so each layer makes the gradient smaller. And the loss is a mean over 50,000 pixels, so
# the gradient begins small.
#
# We train it for 60 steps in FP32, where nothing is lost, and let tinymp's audit count the exponents of all gradients.

# %%
images = np.round(digits()[0][:, 0] * 0.3081 + 0.1307, 4)  # pixels in 0..1 again
images = images.reshape(len(images), -1)  # 4000 x 784


def autoencoder():
    mp.manual_seed(0)
    sizes = (784, 64, 32, 16, 32, 64, 784)
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.Sigmoid())]
    return nn.Sequential(*layers)


def batches(steps, size=64):
    generator = np.random.default_rng(0)
    return [images[generator.integers(0, len(images), size)] for _ in range(steps)]


model = autoencoder()
optimizer = optim.Adam(model.parameters(), lr=0.01)
with mp.audit() as a:
    for x in batches(STEPS // 5):
        loss = ops.mse_loss(model(mp.tensor(x)), mp.tensor(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

figure, axes = plt.subplots(figsize=(9, 4))
a.histograms.draw(axes, role="activation gradient")

# %% [markdown]
# The bars are powers of two. FP16's smallest number is 2⁻²⁴: whatever lies left of it (grey) becomes zero. Between
# 2⁻²⁴ and 2⁻¹⁴ (light blue) a number is *subnormal*: it has fewer digits. And the whole range up to 2¹⁶ is empty. The
# numbers are not too many for FP16, they are in the wrong place.

# %% [markdown]
# ## 1. What is lost
#
# Write a function that says which share of some gradients FP16 makes zero, if they are multiplied by a scale first.
# Zeros that are zero already do not count: they are not lost.


# %% exercise
def lost(gradients, scale):
    """The share (0 to 1) of the gradients that are not 0, but are 0 in FP16 after multiplying by scale.

    gradients: a float32 array. 0.0 if there is nothing to lose.
    """
    # SOLUTION
    alive = gradients[gradients != 0]
    if alive.size == 0:
        return 0.0
    return float(np.mean((alive * np.float32(scale)).astype(np.float16) == 0))
    # END


# %%
check(lost)

# %% check
from fractions import Fraction

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.course.checking import close, expect, short


def check_lost(lost, random):
    few = np.float32([2.0**-26, 2.0**-20, 0, 1])
    got, hint = lost(few, 1), "A gradient that was 0 already is neither lost nor counted."
    if got in (2 / 3, 1):
        hint = "FP16 holds 2^-20, as a subnormal number." if got < 1 else "Divide by how many are not 0."
    close(got, 1 / 3, f"lost({short(few)}, 1)", hint=hint)
    close(lost(few, 1024), 0.0, f"lost({short(few)}, 1024)", hint="Multiply first, round to FP16 then.")
    close(lost(np.zeros(3, np.float32), 8), 0.0, "lost(an array of zeros, 8)", hint="There is nothing to lose.")
    many = np.float32(2.0 ** random.uniform(-40, 0, 500) * random.choice([-1, 1], 500))
    for scale in (1, 2.0 ** int(random.integers(3, 9))):
        want = sum(abs(Fraction(float(g)) * int(scale)) <= Fraction(1, 2**25) for g in many) / 500
        hint = "Negative gradients can be lost, too; and what lies just above 2^-25 is rounded up to 2^-24."
        close(lost(many, scale), want, f"lost(500 gradients of both signs, {scale:g})", rtol=1e-9, hint=hint)


# %%
gradients = {role: [] for role in ("first layer", "last layer")}
model = autoencoder()
for x in batches(10):
    ops.mse_loss(model(mp.tensor(x)), mp.tensor(x)).backward()
    for role, layer in (("first layer", model[0]), ("last layer", model[-2])):
        gradients[role].append(layer.weight.grad.array.ravel().copy())
        layer.weight.grad = None
gradients = {role: np.concatenate(found) for role, found in gradients.items()}

scales = 2.0 ** np.arange(0, 25)
figure, axes = plt.subplots()
for role, found in gradients.items():
    axes.plot(scales, [100 * lost(found, scale) for scale in scales], "o-", label=role)
axes.set_xscale("log", base=2)
axes.set(xlabel="scale", ylabel="gradients lost, %", title="Weight gradients that FP16 makes zero")
axes.legend()

# %% [markdown]
# The first layer is the furthest from the loss. Its gradients are the smallest, and without a scale most are lost.

# %% [markdown]
# ## 2. Which scale?
#
# MPT 3.2: a larger scale has no downside, as long as nothing overflows. FP16's largest number is 65,504. So take the
# largest power of two that leaves every gradient below that. Why a power of two? It changes the exponent and nothing
# else: no digit is rounded.


# %% exercise
def best_scale(gradients):
    """The largest power of two S, as a float, with S * max|gradients| < 65504.

    gradients: a float32 array, not all 0.
    """
    # SOLUTION
    largest = float(np.max(np.abs(gradients)))
    scale = 2.0 ** np.floor(np.log2(65504 / largest))
    return float(scale if scale * largest < 65504 else scale / 2)
    # END


# %%
check(best_scale)


# %% check
def check_best_scale(best_scale, random):
    for largest in (1.0, 0.75, 65504.0 / 4096, 3e6, float(np.float32(2.0 ** random.uniform(-30, 10)))):
        g = np.float32([largest / 3, -largest, 0])
        want = 2.0 ** np.floor(np.log2(65504 / largest))
        want = want if want * largest < 65504 else want / 2
        hint = "The largest magnitude counts, and it may be a negative number."
        if largest == 65504.0 / 4096:
            hint = "S * max|g| must be below 65504, not equal to it."
        if largest > 65504:
            hint = "S may be below 1."
        got = best_scale(g)
        if np.isreal(got) and np.log2(got) % 1:
            hint = "S is a power of two."
        elif got < want:
            hint = "Twice as large a scale does not overflow either."
        close(got, want, f"best_scale({short(g)})", rtol=0, hint=hint)


# %%
scale = best_scale(np.concatenate(list(gradients.values())))
print(
    f"best scale: 2^{np.log2(scale):.0f}; lost in the first layer without it {lost(gradients['first layer'], 1):.0%},",
    end=" ",
)
print(f"with it {lost(gradients['first layer'], scale):.1%}")

# %% [markdown]
# ## 3. A step with a scale
#
# A zero stays a zero: once a gradient is rounded away, no multiplication brings it back. So each gradient must be
# large *before* it is rounded. The chain rule does that for us. Multiply the **loss** by S, and every gradient of the
# backward pass is S times as large (MPT 3.2).
#
# Then the gradients must become what they are again, **in FP32**, before anything looks at them:
#
# 1. forward, and the loss in FP32
# 2. multiply the loss by S, backward
# 3. gradients to FP32, divide by S
# 4. is every gradient finite? If not, skip the step: infinities would ruin the weights for good (NVG 2.3.2)
# 5. update
#
# In tinymp a parameter's gradient is a Tensor, `p.grad`, whose NumPy array is `p.grad.array`. In FP16 it has FP16's
# dtype. `policy.cast(model)` made the weights FP16 and keeps FP32 masters; `optimizer.step()` updates these.


# %% exercise
def scaled_step(model, optimizer, x, scale):
    """One step of the autoencoder with a loss scale. Returns (loss, whether the weights were updated).

    model: FP16. x: an FP16 tensor. scale: a float. The gradients are gone afterwards (optimizer.zero_grad()).
    """
    # SOLUTION
    loss = ops.mse_loss(model(x), x)
    (loss * scale).backward()
    finite = True
    for p in model.parameters():
        p.grad = p.grad.array.astype(np.float32) / np.float32(scale)
        finite = finite and bool(np.isfinite(p.grad.array).all())
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    return loss.item(), finite
    # END


# %%
check(scaled_step)


# %% check
def _steps(random, step, scale):
    """(what step returns, change of the weights) of a small FP16 autoencoder, and the same in FP32."""
    size = int(random.integers(6, 12))
    x = random.uniform(0, 1, (4, size)).astype(np.float32)
    found = []
    for policy, use in ((mp.MIXED, step), (mp.FP32, None)):
        mp.manual_seed(int(x[0, 0] * 1e6))
        model = policy.cast(nn.Sequential(nn.Linear(size, 5), nn.Sigmoid(), nn.Linear(5, size)))
        optimizer = optim.SGD(model.parameters(), lr=0.5)
        before = [p.master.copy() for p in model.parameters()]
        with mp.use(policy):
            inputs = policy.cast(mp.tensor(x))
            if use is None:
                loss = ops.mse_loss(model(inputs), inputs)
                loss.backward()
                optimizer.step()
                result = loss.item(), True
            else:
                result = use(model, optimizer, inputs, scale)
        after = [p.master for p in model.parameters()]
        found.append((result, np.concatenate([(a - b).ravel() for a, b in zip(after, before)]), model))
    return found


class _Uneven(nn.Module):
    """The gradient of `big` is 1,000 times that of `small`, which comes last."""

    def __init__(self):
        super().__init__()
        self.big, self.small = (nn.Parameter(np.zeros(1, np.float32)) for _ in range(2))

    def forward(self, x):
        return x * 0.0 + (self.big * 1000.0 + self.small)


def check_scaled_step(scaled_step, random):
    for scale in (1.0, 2.0 ** int(random.integers(6, 10))):
        (result, change, model), (wanted, right, _) = _steps(random, scaled_step, scale)
        call = f"scaled_step(model, optimizer, x, {scale:g})"
        expect(
            isinstance(result, tuple) and len(result) == 2, f"{call} returns {result!r:.60}, expected (loss, updated)."
        )
        close(
            result[0],
            wanted[0],
            f"the loss of {call}",
            rtol=0.02,
            hint="Return ops.mse_loss(model(x), x) itself, not S times the loss.",
        )
        expect(np.isfinite(change).all(), f"{call} made weights infinite or NaN.")
        expect(np.abs(change).max() > 0, f"{call} changed no weight. Did you call optimizer.step()?")
        ratio = float(np.median(change[right != 0] / right[right != 0]))
        hint = "Divide each p.grad by S before optimizer.step()." if ratio > 2 else "Compare with a step in FP32."
        hint = "Multiply the loss by S before its backward()." if ratio < 0.5 else hint
        expect(abs(ratio - 1) < 0.1, f"{call} moves the weights {ratio:.3g} times as far as FP32 does. {hint}")
        left = [p.grad for p in model.parameters() if p.grad is not None]
        expect(not left, f"{call} leaves gradients behind: call optimizer.zero_grad() at the end.")
    (result, change, model), _ = _steps(random, scaled_step, 2.0**30)
    call = "with a scale of 2^30 gradients overflow, and scaled_step"
    expect(np.isfinite(change).all(), f"{call} made weights infinite or NaN. Look at the gradients before the update.")
    expect(not change.any(), f"{call} changed weights: skip the whole step if one gradient is not finite.")
    expect(result[1] is False or result[1] == 0, f"{call} returns {result!r:.60}: the weights were not updated.")
    expect(
        all(p.grad is None for p in model.parameters()), f"{call} leaves infinite gradients behind for the next step."
    )
    model = mp.MIXED.cast(_Uneven())
    optimizer, seen = optim.SGD(model.parameters(), lr=0.5), []
    step = optimizer.step
    optimizer.step = lambda *rest: (seen.extend(p.grad.dtype for p in model.parameters()), step(*rest))[1]
    x = mp.MIXED.cast(mp.tensor(np.full((4, 3), 10.0, np.float32)))
    with mp.use(mp.MIXED):
        result = scaled_step(model, optimizer, x, 64.0)
    call = "if only the gradient of the first parameter overflows, scaled_step"
    expect(not model.small.master.any(), f"{call} changes the others: ask whether all gradients are finite.")
    expect(not result[1], f"{call} returns {result!r:.60}: the weights were not updated.")
    with mp.use(mp.MIXED):
        scaled_step(model, optimizer, x * 2.0**-8, 1.0)
    hint = "Make them FP32 before you divide: FP16 loses what the scale has saved."
    expect(all(d == np.float32 for d in seen), f"optimizer.step() sees gradients in {seen[:1]}. {hint}")


# %%
def train(step, scale, steps=STEPS):
    model = mp.MIXED.cast(autoencoder())
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    with mp.use(mp.MIXED):
        return [step(model, optimizer, mp.MIXED.cast(mp.tensor(x)), scale)[0] for x in batches(steps)]


def smoothed(curve):
    """The mean of every eight neighbours."""
    return np.convolve(curve, np.full(8, 1 / 8), "valid")


figure, axes = plt.subplots()
for scale, width in ((1, 5), (8, 2), (2**12, 2)):
    axes.plot(smoothed(train(scaled_step, float(scale))), label=f"S = {scale:,}", linewidth=width)
axes.set(xlabel="step", ylabel="loss", ylim=(0.055, 0.08), title="The same network in FP16, with three scales")
axes.legend()

# %% [markdown]
# All begin on a plateau: the network draws the same grey digit for every picture. With S = 4,096 it leaves the plateau,
# with S = 1 and 8 it stays. The question of this lesson has its answer: **multiply the loss.**

# %% [markdown]
# ## 4. Clipping, and where it belongs
#
# Recurrent networks clip: if the norm of all gradients is above a limit, they are made smaller together. A scaled
# gradient has S times the norm. Clip it, and every step is clipped. So unscale first.


# %% exercise
def unscaled_and_clipped(gradients, scale, limit):
    """The gradients in FP32 without the scale, made smaller together if their norm is above limit.

    gradients: a list of float16 arrays, scaled. The norm is that of all numbers of all arrays together.
    """
    # SOLUTION
    plain = [g.astype(np.float32) / np.float32(scale) for g in gradients]
    norm = np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in plain))
    return [g * np.float32(min(1.0, limit / norm)) for g in plain] if norm > 0 else plain
    # END


# %%
check(unscaled_and_clipped)


# %% check
def check_unscaled_and_clipped(unscaled_and_clipped, random):
    scale = 2.0 ** int(random.integers(8, 12))
    plain = [random.normal(size=shape).astype(np.float32) * np.float32(0.01) for shape in ((3, 4), (5,))]
    scaled = [(g * np.float32(scale)).astype(np.float16) for g in plain]
    exact = [g.astype(np.float64) / scale for g in scaled]
    norm = float(np.sqrt(sum((g**2).sum() for g in exact)))
    for limit in (2 * norm, norm / 3):
        got = unscaled_and_clipped([g.copy() for g in scaled], scale, limit)
        call = f"unscaled_and_clipped(gradients of norm {norm:.3g} scaled by {scale:g}, {scale:g}, {limit:.3g})"
        expect(isinstance(got, list) and len(got) == 2, f"{call} returns {got!r:.40}, expected a list of two arrays.")
        for i, g in enumerate(exact):
            hint = "The norm is below the limit: nothing to clip. Did you clip before you divided by S?"
            if limit < norm:
                hint = "The norm is that of both arrays together, after dividing by S; the result's norm is the limit."
            close(got[i], g * min(1, limit / norm), f"{call}[{i}]", rtol=1e-4, hint=hint, dtype=np.float32)
    tiny = [np.float16([2.0**-24, 0])]
    got = unscaled_and_clipped(tiny, 1024.0, 1.0)
    close(
        got[0], [2.0**-34, 0], "an FP16 gradient of 2^-24, divided by 1024,", hint="Divide in FP32: FP16 makes it zero."
    )
    close(unscaled_and_clipped([np.zeros(2, np.float16)], 8.0, 1.0)[0], [0, 0], "clipping gradients that are all zero")


# %% [markdown]
# tinymp takes this for you, and refuses the wrong order. Try it: `optim.clip_grad_norm_` before `scaler.unscale_`
# raises.

# %% [markdown]
# ## 5. A scale that finds itself
#
# Nobody wants to look at histograms first, and gradients change while a network learns. NVG 2.3.2 lets S move:
#
# - begin large;
# - after an overflow the step is skipped, and S is halved;
# - after N steps in a row without overflow S is doubled.
#
# Write it. `update` is called once after each step.


# %% exercise
class DynamicScale:
    """A loss scale that finds itself.

    scale     the S of the next step; at first init_scale
    interval  N: after so many steps in a row without overflow S is doubled, and counting begins anew
    S stays between 1 and max_scale.
    """

    def __init__(self, init_scale=2.0**16, interval=2000, max_scale=2.0**24):
        # SOLUTION
        self.scale = init_scale
        self.interval = interval
        self.max_scale = max_scale
        self.good = 0
        # END

    def update(self, overflowed):
        """overflowed: whether a gradient of this step was not finite, so that it was skipped."""
        # SOLUTION
        if overflowed:
            self.scale = max(self.scale / 2, 1.0)
            self.good = 0
            return
        self.good += 1
        if self.good == self.interval:
            self.scale = min(self.scale * 2, self.max_scale)
            self.good = 0
        # END


# %%
check(DynamicScale)


# %% check
def check_DynamicScale(DynamicScale, random):
    expect(
        DynamicScale().scale == 2.0**16, f"DynamicScale().scale is {DynamicScale().scale!r}, expected 65536.0 at first."
    )
    interval = int(random.integers(3, 7))

    def follow(events, start=1024.0):
        mine = DynamicScale(start, interval)
        for event in events:
            mine.update(event)
        return mine.scale

    call = f"with interval={interval} and a scale of 1024 at first,"
    good = [False] * interval
    close(follow([True]), 512, f"{call} the scale after an overflow", rtol=0)
    close(
        follow(good[1:]),
        1024,
        f"{call} the scale after {interval - 1} good steps",
        rtol=0,
        hint="It is too early to grow.",
    )
    close(follow(good), 2048, f"{call} the scale after {interval} good steps", rtol=0)
    hint = "Counting begins anew after the scale has grown."
    close(follow([*good, False]), 2048, f"{call} the scale after {interval + 1} good steps", rtol=0, hint=hint)
    close(follow([*good, *good]), 4096, f"{call} the scale after {2 * interval} good steps", rtol=0, hint=hint)
    hint = "The steps must be in a row: an overflow sets the count to 0."
    close(
        follow([*good[1:], True, False]),
        512,
        f"{call} the scale after {interval - 1} good steps, an overflow and a good one",
        rtol=0,
        hint=hint,
    )
    close(follow([True] * 20), 1, f"{call} the scale after 20 overflows", rtol=0, hint="It never falls below 1.")
    hint = "Its ceiling is max_scale, 2^24 if nothing else is said."
    close(follow(good * 3, 2.0**23), 2.0**24, "a scale of 2^23 after growing three times", rtol=0, hint=hint)
    higher = DynamicScale(2.0**29, interval, max_scale=2.0**30)
    for _ in range(3 * interval):
        higher.update(False)
    close(higher.scale, 2.0**30, "a scale of 2^29 with max_scale=2.0**30, after growing three times", rtol=0, hint=hint)
    events = [bool(e) for e in random.random(200) < 0.15]
    peer = optim.DynamicLossScaler(1024.0, growth_interval=interval, min_scale=1.0, max_scale=2.0**24)
    for event in events:
        peer.adjust("some gradient" if event else None)
    close(follow(events), peer.get_scale(), f"{call} the scale after 200 steps", rtol=0, hint="tinymp's own was asked.")


# %% [markdown]
# ## 6. The race
#
# Your scale against tinymp's `DynamicLossScaler`, on the same batches. Both begin at 2³⁰, which is too large here, with
# N = 25 instead of 2,000, so that we see them move.


# %%
def race(steps=STEPS):
    mine, curve, scales = DynamicScale(2.0**30, interval=25, max_scale=2.0**30), [], []
    model = mp.MIXED.cast(autoencoder())
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    with mp.use(mp.MIXED):
        for x in batches(steps):
            loss, updated = scaled_step(model, optimizer, mp.MIXED.cast(mp.tensor(x)), mine.scale)
            scales.append(mine.scale)
            mine.update(not updated)
            curve.append(loss)
    return curve, scales


def tinymps(steps=STEPS):
    scaler, curve, scales = optim.DynamicLossScaler(2.0**30, growth_interval=25, max_scale=2.0**30), [], []
    model = mp.MIXED.cast(autoencoder())
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    with mp.use(mp.MIXED):
        for x in batches(steps):
            x = mp.MIXED.cast(mp.tensor(x))
            loss = ops.mse_loss(model(x), x)
            scales.append(scaler.get_scale())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            curve.append(loss.item())
    return curve, scales


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6))
for name, run, style in (("tinymp's", tinymps, {"linewidth": 5, "alpha": 0.4}), ("yours", race, {"linestyle": "--"})):
    curve, scales = run()
    left.plot(smoothed(curve), label=name, **style)
    right.plot(np.log2(scales), label=name, **style)
left.set(xlabel="step", ylabel="loss", ylim=(0.055, 0.08), title="Loss")
right.set(xlabel="step", ylabel="log2 S", title="The loss scale")
left.legend()
# %% [markdown]
# A saw: up, too far, back. Each fall is a step that was skipped.
#
# Now read tinymp's own: `optim.scaler.Rule` in `tinymp/optim/scaler.py`. You will find each of your
# lines. The scaler around it names the first parameter that overflowed, keeps a history, knows a loss that is NaN
# (no scale cures that), and gives up after too many skips.

# %%
import inspect

print(inspect.getsource(optim.scaler.Rule))

# %% [markdown]
# ## What to remember
#
# - Small gradients are zero in FP16, and a zero cannot be repaired afterwards. **Scale the loss**, before the first
#   rounding.
# - The order: forward, loss, scale, backward, unscale in FP32, finite?, clip, apply or skip, adjust S.
# - A power of two rounds nothing. The best S is the largest that does not overflow.
# - A dynamic scale looks for it: halve and skip after an overflow, double after N good steps.
#
# ## To think about
#
# 1. Adam divides by the size of the gradients. Why does it not cure S = 1?
# 2. What happens to weight decay if you forget to unscale?
# 3. BF16 has FP32's exponents. Does it need a loss scale? (Lesson 10.)
