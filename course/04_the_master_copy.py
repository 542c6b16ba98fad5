# %% [markdown]
# # 4. The master copy
#
# *50 minutes.*
#
# **The gradients of a network are right. In FP32 it learns from them, in FP16 it does not. Where do they go?**
#
# - **You know** numbers (lesson 1) and a step of training (2).
# - **You do**: find the updates that an FP16 weight does not notice; write an optimizer with FP32 masters and FP16
#   copies, and stochastic rounding, which needs no master.
# - **You can then** measure how many updates of a training are lost, and count what a master costs.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740); figures without a source are measured
# here. On Colab, first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.course import check, digits

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 300  # of each training; on a slow machine 150 show the same
RATE = 2.0**-18

# %% [markdown]
# ## The question, in a picture
#
# A network with one hidden layer learns digits. To see the updates clearly, we take the simplest rule that there is:
# each weight moves by `RATE`, against the **sign** of its gradient (signSGD, [arXiv
# 1802.04434](https://arxiv.org/abs/1802.04434)). Adam's steps are of a similar kind: their size hardly depends on the
# size of the gradient.
#
# The rate is small, as it is at the end of many schedules. `mp.NO_MASTER` keeps the weights in FP16 alone.

# %%
images, labels, _, _ = digits()


def network():
    mp.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def batches(steps, size=64):
    generator = np.random.default_rng(0)
    for _ in range(steps):
        chosen = generator.integers(0, len(images), size)
        yield mp.tensor(images[chosen]), mp.tensor(labels[chosen])


def signs(model, policy, x, y):
    """The loss, and the sign of each gradient, as a list of arrays."""
    loss = ops.cross_entropy(model(policy.cast(x)), y)
    loss.backward()
    found = [np.sign(p.grad.array) for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    return loss.item(), found


def train(policy, steps=STEPS):
    model = policy.cast(network())
    optimizer, curve = optim.SGD(model.parameters(), lr=RATE), []
    with mp.use(policy):
        for x, y in batches(steps):
            loss, found = signs(model, policy, x, y)
            for p, sign in zip(model.parameters(), found):
                p.grad = sign
            optimizer.step()
            optimizer.zero_grad()
            curve.append(loss)
    return curve


def smooth(curve, n=25):
    return np.convolve(curve, np.ones(n) / n, mode="valid") if len(curve) > n else curve


curves = {policy: train(policy) for policy in (mp.FP32, mp.NO_MASTER)}
figure, axes = plt.subplots()
for policy, curve in curves.items():
    axes.plot(smooth(curve), label=policy.name)
axes.set(xlabel="step", ylabel="loss (mean of 25 steps)", title="The same steps, with FP32 and with FP16 weights")
axes.legend()

# %%
x, y = next(batches(1))
_, in_fp32 = signs(network(), mp.FP32, x, y)
with mp.use(mp.NO_MASTER):
    _, in_fp16 = signs(mp.NO_MASTER.cast(network()), mp.NO_MASTER, x, y)
same = np.mean(np.concatenate([(a == b).ravel() for a, b in zip(in_fp32, in_fp16)]))
print(f"{same:.1%} of the first gradients have the same sign in FP16 as in FP32")

# %% [markdown]
# So nearly all gradients point the right way. They are lost later, at the weight.

# %% [markdown]
# ## 1. Which updates are lost?
#
# An update takes the weight w to w + Δw. If w + Δw, rounded to FP16, is w again, the update is lost. Say it for whole
# arrays. No loop is needed.


# %% exercise
def lost_updates(weights, updates):
    """Where an update is lost: it is not 0, but the FP16 weight stays as it is. An array of bool.

    weights: a float16 array. updates: a float32 array of the same shape. They are added in FP32, and the sum is rounded
    once, to FP16.
    """
    # SOLUTION
    after = (weights.astype(np.float32) + updates).astype(np.float16)
    return (updates != 0) & (after == weights)
    # END


# %%
check(lost_updates)

# %% check
from dataclasses import replace

import numpy as np

import tinymp as mp
from tinymp import nn, optim
from tinymp.audit.bytes import total
from tinymp.course.checking import close, expect, short


def check_lost_updates(lost_updates, random):
    def ask(weights, updates, want, hint):
        w, d = np.float16(weights), np.float32(updates)
        close(lost_updates(w.copy(), d.copy()), want, f"lost_updates({short(w)}, {short(d)})", rtol=0, hint=hint)

    got = lost_updates(np.float16([[1, 1]]), np.float32([[1, 1]]))
    expect(isinstance(got, np.ndarray), f"lost_updates returns {type(got).__name__}, expected an array of bool.")
    ask([1, 1], [2.0**-9, -(2.0**-9)], [False, False], "2^-9 is two steps of FP16 at 1: the weight moves.")
    ask([1, 2], [0, 0], [False, False], "An update of 0 is no update: it is not lost.")
    ask([1, 1 + 2.0**-10], [2.0**-11, 2.0**-11], [True, False], "Half a step is a tie: it goes to the even neighbour.")
    hint = "Keep the sign of the update: below a power of two FP16's steps are half as long as above it."
    ask([1, 1], [1.5 * 2.0**-12, -1.5 * 2.0**-12], [True, False], hint)
    hint = "Do not round the update itself. Add in FP32 first: one rounding, at the end."
    ask([1], [2.0**-11 * (1 + 2.0**-12)], [False], hint)
    ask([0, 2.0**-24], [2.0**-26, -(2.0**-26)], [True, True], "Where weights are tiny, FP16's steps are 2^-24.")
    shape = int(random.integers(20, 40)), 10
    weights = (2.0 ** random.uniform(-20, 3, shape) * random.choice([-1, 1], shape)).astype(np.float16)
    w = weights.astype(np.float64)
    updates = np.float32(w * 2.0 ** random.uniform(-14, -9, shape) * random.choice([-1, 1], shape)).astype(np.float64)
    towards = np.where(updates > 0, np.inf, -np.inf).astype(np.float16)
    half = np.abs(np.nextafter(weights, towards).astype(np.float64) - w) / 2
    near = np.abs(np.abs(updates) - half) < 2.0**-20 * np.abs(w)  # FP32's own rounding would decide
    want = (np.abs(updates) < half) & ~near & (updates != 0)
    got = lost_updates(weights.copy(), np.where(near, 0, updates).astype(np.float32))
    hint = "A ratio alone does not say it: try the addition, and see whether the weight is the same."
    close(got, want, f"lost_updates(weights, updates) for {weights.shape} numbers", rtol=0, hint=hint)


# %% [markdown]
# tinymp's audit has such a meter: `a.updates`. It watches a training that *has* masters, and says what would be lost
# without them. Does it count as you do?

# %%
model = mp.MIXED.cast(network())
optimizer = optim.SGD(model.parameters(), lr=RATE)
with mp.use(mp.MIXED), mp.audit() as a:
    _, found = signs(model, mp.MIXED, x, y)
    before = [(p.array.copy(), p.master.copy()) for p in model.parameters()]
    for p, sign in zip(model.parameters(), found):
        p.grad = sign
    optimizer.step()
yours = sum(
    np.count_nonzero(lost_updates(copy, p.master - master)) for p, (copy, master) in zip(model.parameters(), before)
)
meter = a.updates.total
print(f"of {meter.elements:,} updates are lost: {yours:,} (yours), {meter.lost:,} (tinymp's meter)")
figure, axes = plt.subplots()
a.updates.draw(axes)

# %% [markdown]
# Orange is lost: two thirds of the first layer's weights do not move, and nearly nine of ten in the last (`model.3`).
# The update is the same for all. But the last layer's weights begin larger: up to 1/√128, those of the first up to
# 1/√784. (The black strokes count another rule, that of MPT 3.1; it comes next.)

# %% [markdown]
# ## 2. The limit of a weight
#
# FP16 numbers are not equally far apart. How large must an update be, for this weight to notice? An update away from 0
# must reach the middle between the weight and its next neighbour.


# %% exercise
def half_spacing(weights):
    """Half the distance from |w| to the next larger FP16 number, for each weight w. float32.

    weights: a float16 array, any values below 65504 in magnitude: negative ones, 0, subnormal ones.
    """
    # SOLUTION
    return np.spacing(np.abs(weights)).astype(np.float32) / 2
    # END


# %%
check(half_spacing)


# %% check
def check_half_spacing(half_spacing, random):
    def ask(w, hint):
        size = np.abs(w)
        want = (np.nextafter(size, np.float16(np.inf)).astype(np.float64) - size.astype(np.float64)) / 2
        close(half_spacing(w.copy()), want, f"half_spacing({short(w)})", rtol=1e-6, hint=hint)

    ask(np.float16([1, 1.5, 2]), "From 1 to 2 FP16 numbers are 2^-10 apart, from 2 to 4 2^-9.")
    ask(np.float16([-1, -3]), "The distance from |w|: a weight may be negative.")
    hint = "Below 2^-14 the numbers stay 2^-24 apart. Half of that is 2^-25, which only FP32 can hold."
    ask(np.float16([0, 2.0**-24, 2.0**-15]), hint)
    many = 2.0 ** random.uniform(-22, 15, 200) * random.choice([-1, 1], 200)
    ask(many.astype(np.float16), "The spacing depends on the exponent of w alone.")


# %%
shown = 2.0 ** np.linspace(-16, 0, 2000)
figure, axes = plt.subplots()
axes.plot(shown, half_spacing(shown.astype(np.float16)), label="half the spacing: smaller updates are lost")
axes.plot(shown, shown / 2048, ":", color="0.4", label="w / 2048 and w / 4096")
axes.plot(shown, shown / 4096, ":", color="0.4")
axes.axhline(RATE, color="C1", label="this lesson's update")
weights = np.concatenate([p.array.ravel() for p in model.parameters()])
low, high = np.quantile(np.abs(weights.astype(np.float32)), [0.1, 0.9])
axes.axvspan(low, high, color="0.9", label="8 of 10 of the network's weights")
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set(xlabel="weight", ylabel="update", title="A staircase between two lines")
axes.legend(loc="upper left")

# %% [markdown]
# MPT 3.1 speaks of the ratio |w / Δw|, and names 2048. The picture shows two lines, as the stairs need two: an update
# *above* both is never lost, one between them may be. Which ratio is lost for sure, whatever the weight?

# %% exercise
# The smallest power of two R such that every update with |w / dw| >= R is lost, at every normal FP16 weight w.
surely_lost = 4096  # SOLUTION

# %%
check(surely_lost=surely_lost)


# %% check
def check_surely_lost(surely_lost, random):
    hint = "From 2048 on it *may* be lost. Take a weight just below a power of two, like 1.999, and w / 2500."
    close(surely_lost, 4096, "surely_lost", rtol=0, hint=hint if surely_lost == 2048 else "Look at the lower line.")


# %% [markdown]
# ## 3. Masters
#
# The cure of MPT 3.1: keep each weight twice. The **master** is FP32, and all updates go to it. The **copy** is FP16,
# and the network computes with it. After each step the copy is made anew from the master, with one rounding.
#
# An update that is too small for the copy is not lost: the master adds it up. Some day the copy moves by a whole step.
#
# Beware of NumPy: a Python number times a float16 array is a float16 array.


# %% exercise
class MasterSGD:
    """SGD with FP32 masters.

    masters  a list of float32 arrays, at first equal to the weights
    copies   a list of float16 arrays: the masters, rounded once
    """

    def __init__(self, weights, lr):
        """weights: a list of float32 arrays, which stay as they are. lr: a float."""
        # SOLUTION
        self.lr = np.float32(lr)
        self.masters = [w.copy() for w in weights]
        self.copies = [m.astype(np.float16) for m in self.masters]
        # END

    def step(self, gradients):
        """w <- w - lr * g, in FP32. gradients: a list of float16 arrays. Then masters and copies are new."""
        # SOLUTION
        for master, g in zip(self.masters, gradients):
            master -= self.lr * g.astype(np.float32)
        self.copies = [m.astype(np.float16) for m in self.masters]
        # END


# %%
check(MasterSGD)


# %% check
def check_MasterSGD(MasterSGD, random):
    shapes = (int(random.integers(2, 5)), 3), (5,)
    weights = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    given = [w.copy() for w in weights]
    lr = float(2.0 ** -int(random.integers(9, 12)) * 1.1)
    mine = MasterSGD(given, lr)
    for i, w in enumerate(weights):
        close(mine.masters[i], w, f"masters[{i}] at first", rtol=0, dtype=np.float32)
        close(mine.copies[i], w.astype(np.float16), f"copies[{i}] at first", rtol=0, dtype=np.float16)
    exact = [w.astype(np.float64) for w in weights]
    for n in range(1, 41):
        gradients = [(2.0 ** random.uniform(-6, 1, w.shape)).astype(np.float16) for w in weights]
        mine.step([g.copy() for g in gradients])
        exact = [w - lr * g.astype(np.float64) for w, g in zip(exact, gradients)]
        call = f"after {n} step{'s' * (n > 1)} with lr={lr:.4g},"
        for i, w in enumerate(exact):
            hint = "Update the FP32 masters, not the FP16 copies, by lr * g: multiply in FP32."
            if (np.asarray(mine.masters[i]) > weights[i]).all():
                hint = "All gradients are positive here: w - lr * g becomes smaller."
            if np.array_equal(mine.masters[i], weights[i]):
                hint = "They did not change at all: the master must get the update."
            # a step rounds lr, its product and the difference, each by 2^-24 of numbers below 8
            close(mine.masters[i], w, f"{call} masters[{i}]", 0, n * 2.0**-20, hint, np.float32)
            rounded = np.asarray(mine.masters[i]).astype(np.float16)
            hint = "A copy is its master, rounded once, made anew in every step."
            close(mine.copies[i], rounded, f"{call} copies[{i}]", rtol=0, hint=hint, dtype=np.float16)
    for i, (w, kept) in enumerate(zip(given, weights)):
        expect(
            np.array_equal(w, kept), f"step changes weights[{i}], which was handed in: the masters need a copy of it."
        )
    small = np.float16([2.0**-16, 2.0**-20])
    mine = MasterSGD([np.zeros(2, np.float32)], 2.0**-10)
    mine.step([small.copy()])
    hint = "lr * g is too small for FP16: make g FP32 before the multiplication."
    want = -small.astype(np.float64) / 1024
    close(
        mine.masters[0], want, f"from 0, after a step with lr=2^-10 and g={short(small)}, masters[0]", 1e-6, hint=hint
    )


# %%
def train_yours(steps=STEPS):
    mine = MasterSGD([p.array for p in network().parameters()], RATE)
    model, curve = mp.NO_MASTER.cast(network()), []
    with mp.use(mp.NO_MASTER):
        for x, y in batches(steps):
            loss, found = signs(model, mp.NO_MASTER, x, y)
            mine.step(found)
            for p, copy in zip(model.parameters(), mine.copies):
                p.array = copy.copy()
            curve.append(loss)
    return curve


curves["yours"], curves[mp.MIXED] = train_yours(), train(mp.MIXED)
figure, axes = plt.subplots()
widths = {mp.FP32: 6, mp.NO_MASTER: 2, mp.MIXED: 3, "yours": 1.5}
for name, width in widths.items():
    label = "your masters" if name == "yours" else name.name
    axes.plot(smooth(curves[name]), linewidth=width, alpha=0.3 if name is mp.FP32 else 1, label=label)
axes.lines[-1].set(linestyle="--", color="black")
axes.set(xlabel="step", ylabel="loss (mean of 25 steps)", title="With masters FP16 learns as FP32 does")
axes.legend()
apart = max(abs(a - b) for a, b in zip(curves["yours"], curves[mp.MIXED]))
print(f"your losses and those of mp.MIXED differ by at most {apart:.1g}")

# %% [markdown]
# MPT figure 2a shows this for a speech model, which ended 80 % worse without masters. And MPT 3.1 says that not every
# network needs them. It depends on the size of the updates: with a rate of 2⁻¹² you would hardly see a difference here.

# %% [markdown]
# ## 4. Without a master: roll dice
#
# Rounding to nearest loses a small update *every* time. Stochastic rounding loses it *most* of the time: a number
# between two FP16 neighbours goes up with a probability that grows with its distance from the lower one,
#
# P(up) = (x - low) / (high - low).
#
# On average the result is x (Gupta et al. 2015, [arXiv 1502.02551](https://arxiv.org/abs/1502.02551)). An update of a
# hundredth of the spacing moves the weight in one of a hundred steps, by the whole spacing.


# %% exercise
def stochastic(x, random):
    """Round x to FP16: to one of its two FP16 neighbours, with P(up) as above. What FP16 holds exactly stays.

    x: a float32 array with |x| < 65504; also negative and subnormal numbers. random: NumPy's Generator;
    random.random(shape) draws numbers from 0 to 1, one for each number of x. Returns float16.
    """
    # SOLUTION
    near = x.astype(np.float16)
    below = np.nextafter(near, np.float16(-np.inf))
    low = np.where(near.astype(np.float32) > x, below, near)
    high = np.nextafter(low, np.float16(np.inf))
    a, b = low.astype(np.float32), high.astype(np.float32)
    return np.where(random.random(x.shape) < (x - a) / (b - a), high, low)
    # END


# %%
check(stochastic)


# %% check
def check_stochastic(stochastic, random):
    def draw(x):
        return stochastic(x.copy(), np.random.default_rng(int(random.integers(2**32))))

    exact = np.float32([1, -0.5, 0, 2.0**-24, 1000])
    close(draw(exact), exact, f"stochastic({short(exact)}, random)", 0, hint="FP16 holds these.", dtype=np.float16)
    # P(|share - p| > t) <= 2 exp(-2 n t^2) (Hoeffding): 5e-14 with these numbers
    n, t = 40_000, 0.02
    for low, name in ((1.0, ""), (-1.0 - 2.0**-10, "negative "), (3 * 2.0**-24, "subnormal ")):
        low = np.float64(np.float16(low))
        high = np.float64(np.nextafter(np.float16(low), np.float16(np.inf)))
        part = float(random.uniform(0.2, 0.35))
        for x in np.float32([low + part * (high - low), high - part * (high - low)]):
            p = (float(x) - low) / (high - low)
            call = f"stochastic({n:,} times the {name}number {x:.8g}, random)"
            got = np.asarray(draw(np.full((n // 100, 100), x, np.float32)))
            expect(got.shape == (n // 100, 100), f"{call} has shape {got.shape}, expected x's, {(n // 100, 100)}.")
            expect(got.dtype == np.float16, f"{call} is {got.dtype}, expected float16.")
            others = got[(got != low) & (got != high)]
            if others.size:
                said = f"{others[0]:.8g}, which is no neighbour: these are {low:.8g} and {high:.8g}"
                expect(False, f"{call} gives {said}. Rounding to nearest may have gone up already.")
            share = float(np.mean(got == high))
            hint = "P(up) = (x - low) / (high - low), in FP32."
            if share in (0.0, 1.0):
                hint = "All went the same way. Has each its own random number? Is `low` really not above x?"
            elif abs(share - (1 - p)) < t:
                hint = "That is the probability of going down."
            expect(abs(share - p) <= t, f"{call} goes up in {share:.1%}, expected {p:.1%}, within {t:.0%}. {hint}")
    x = random.normal(size=300).astype(np.float32)
    same = [np.asarray(stochastic(x.copy(), np.random.default_rng(5))) for _ in range(2)]
    hint = "Draw from `random`, the argument."
    expect(np.array_equal(*same), f"stochastic gives two results for the same x and the same random. {hint}")


# %%
def train_stochastic(steps=STEPS):
    model, curve, random = mp.NO_MASTER.cast(network()), [], np.random.default_rng(0)
    with mp.use(mp.NO_MASTER):
        for x, y in batches(steps):
            loss, found = signs(model, mp.NO_MASTER, x, y)
            for p, sign in zip(model.parameters(), found):
                p.array = stochastic(p.array.astype(np.float32) - np.float32(RATE) * sign.astype(np.float32), random)
            curve.append(loss)
    return curve


DICE = replace(mp.STOCHASTIC_ROUNDING, name="DICE", master=False)  # tinymp's: every rounding is stochastic
curves["dice"], curves[DICE] = train_stochastic(), train(DICE)
figure, axes = plt.subplots()
for name, label in ((mp.FP32, "FP32"), (mp.NO_MASTER, "FP16, to nearest"), (DICE, "FP16, tinymp's dice")):
    axes.plot(smooth(curves[name]), linewidth=6 if name is mp.FP32 else 2, label=label)
axes.lines[0].set_alpha(0.3)
axes.plot(smooth(curves["dice"]), "--", color="black", label="FP16, your dice")
axes.set(xlabel="step", ylabel="loss (mean of 25 steps)", title="Without masters: to nearest, and stochastic")
axes.legend()

# %% [markdown]
# Here dice do what a master does. Not everywhere: MPT's first version (appendix A) rounded the FP16 copies of the
# masters this way, and one of its models became some 30 % worse. Each weight carries noise as large as its spacing.

# %% [markdown]
# ## 5. What does it cost?
#
# Count the bytes that one weight needs in a training with Adam: the weight itself, its master, its gradient, and Adam's
# two averages. A `Policy` says what they are:
#
# - `policy.storage` is the dtype of weights and gradients, `policy.state` that of the averages;
# - `policy.master` says whether there are masters. A float32 weight needs none: it is its own master.


# %% exercise
def bytes_per_weight(policy):
    """The bytes of a weight with all that belongs to it, with Adam under a policy. An int.

    policy.storage.itemsize is the number of bytes of a number in storage; likewise policy.state.
    """
    # SOLUTION
    master = 4 if policy.master and policy.storage != np.float32 else 0
    return 2 * policy.storage.itemsize + master + 2 * policy.state.itemsize
    # END


# %%
check(bytes_per_weight)


# %% check
def check_bytes_per_weight(bytes_per_weight, random):
    policies = [mp.FP32, mp.NO_MASTER, mp.MIXED, mp.PURE_FP16, replace(mp.MIXED, name="FP16_STATE", state=np.float16)]
    inputs, outputs = (int(n) for n in random.integers(3, 9, 2))
    for policy in policies:
        with mp.use(policy), mp.audit() as a:
            layer = policy.cast(nn.Linear(inputs, outputs, bias=False))
            layer(policy.cast(mp.ones(2, inputs))).sum().backward()
            optim.Adam(layer.parameters()).step()
        kept = {role: sizes for role, sizes in a.bytes.measured.items() if role != "activations"}
        want = total(kept) / (inputs * outputs)
        parts = {role: sum(sizes.values()) // (inputs * outputs) for role, sizes in kept.items()}
        said = ", ".join(f"{size} {role}" for role, size in parts.items())
        hint = f"tinymp's byte ledger says: {said} (optimizer: Adam's averages)."
        close(bytes_per_weight(policy), want, f"bytes_per_weight(mp.{policy.name})", rtol=0, hint=hint)


# %%
for policy in (mp.FP32, mp.MIXED, mp.NO_MASTER, mp.PURE_FP16):
    print(f"{policy.name:9}  {bytes_per_weight(policy):2} bytes per weight")

# %% [markdown]
# Mixed precision saves **nothing** on the weights! What it saves are the activations: halves, and no master. There are
# the more of them the larger the batch. An audit counts the bytes of a step; on the device "meta", where arrays have no
# memory, it does so before the step is made. Here for a small CNN.


# %%
def ratio(policy, images):
    """Bytes of a step in FP32 divided by its bytes under the policy."""
    with mp.device("meta"), mp.use(policy), mp.audit() as a:
        cnn = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
        )
        policy.cast(cnn)(policy.cast(mp.zeros(images, 1, 28, 28))).sum().backward()
        optim.Adam(cnn.parameters()).step()
    return a.bytes.ratio


sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
figure, axes = plt.subplots()
for policy in (mp.MIXED, mp.NO_MASTER):
    ratios = [ratio(policy, n) for n in sizes]
    axes.plot(sizes, ratios, "o-", label=policy.name)
    print(policy.name, *(f"{n}: {ratio:.2f}" for n, ratio in zip(sizes, ratios)), sep="  ")
axes.axhline(1, color="0.6", linewidth=1)
axes.set(xlabel="images in a batch", ylabel="FP32 takes so many times as much", title="Memory of a step with Adam")
axes.set(ylim=(0.9, 2))
axes.set_xscale("log", base=2)
axes.legend()

# %% [markdown]
# The price of the master is 4 bytes per weight. Beside the activations of a large batch it is small (MPT 3.1 says the
# same of its models: overall memory is roughly halved).
#
# Now find your lines in tinymp: `Parameter.write` puts the new value into the master, and one rounding into the copy.

# %%
import inspect

print(inspect.getsource(nn.Parameter.write))

# %% [markdown]
# ## What to remember
#
# - An update below half the spacing of FP16 at its weight is lost, **every time**. From |w / Δw| = 2048 on it may be
# lost, from 4096 on it is.
# - A master is FP32 and collects what the copy cannot see. The copy is made from it with one rounding per step.
# - Stochastic rounding keeps small updates on average, at the price of noise.
# - A master costs 4 bytes per weight. What mixed precision saves are activations.
#
# ## To think about
#
# 1. The loss scale of lesson 5 multiplies all gradients by 1024. Why does it not replace the master?
# 2. A schedule lets the learning rate fall to 0. When does a training without masters stop, and would you notice?
# 3. BF16 has 8 significant bits instead of 11. Which two numbers take the place of 2048 and 4096?
# 4. Could you keep the master in 3 bytes?
