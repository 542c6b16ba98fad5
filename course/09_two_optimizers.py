# %% [markdown]
# # 9. Two optimizers, one scaler: the GAN
#
# *50 minutes.*
#
# **Two networks learn against each other: two losses, two optimizers, and gradients of two sizes. How many loss scales
# do they need, and what happens to one network when the other's gradients overflow?**
#
# - **You know** loss scaling, from lesson 5.
# - **You do**: write the loss of a discriminator so that no logit breaks it, both steps of a GAN, and a measure of what
#   a generator makes.
# - **You can then** train a GAN in FP16 with one scaler, and say at each line whose gradients are where.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), NVG is NVIDIA's guide *Training
# with Mixed Precision*. On Colab, first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.course import check

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 600  # of each training; on a slow machine 400 show something similar

# %% [markdown]
# ## The question, in a picture
#
# The data are points in the plane: eight small clouds on a ring. A **generator** makes points from noise. A
# **discriminator** looks at a point and says how real it is: it gives a *logit*, and sigmoid(logit) is a probability.
# It learns to tell real from made, and the generator learns to be taken for real (Goodfellow et al., 2014,
# [arXiv 1406.2661](https://arxiv.org/abs/1406.2661)). MPT 4.6 trains such a pair, a DCGAN, on faces.
#
# We train it for some steps in FP32, and let the audit count the exponents of both networks' gradients.

# %%
angles = np.arange(8) * np.pi / 4
centres = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # (8, 2)
WIDTH = 0.1  # standard deviation of a cloud


def real_points(count, random):
    """(count, 2): float32 points of the ring."""
    points = centres[random.integers(0, 8, count)] + WIDTH * random.standard_normal((count, 2))
    return points.astype(np.float32)


def noise(count, random):
    """(count, 8): what the generator starts from."""
    return random.standard_normal((count, 8)).astype(np.float32)


def network(*sizes):
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1])


def pair(policy=mp.FP32):
    """(generator, discriminator, optimizer of the first, optimizer of the second)."""
    mp.manual_seed(0)
    g, d = policy.cast(network(8, 64, 64, 2)), policy.cast(network(2, 64, 64, 1))
    return g, d, *(optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.99)) for model in (g, d))


def loss_of(logits, target):
    """The mean cross-entropy between sigmoid(logits) and the target, 0 or 1 for all; FP32."""
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


g, d, g_optimizer, d_optimizer = pair()
random = np.random.default_rng(0)
exponents = {"discriminator": [], "generator": []}
for i in range(STEPS):
    if i % 2:  # the generator's turn
        loss, optimizer = loss_of(d(g(mp.tensor(noise(128, random)))), 1.0), g_optimizer
    else:  # the discriminator's turn
        with mp.no_grad():
            made = g(mp.tensor(noise(128, random)))
        loss, optimizer = loss_of(d(mp.tensor(real_points(128, random))), 1.0) + loss_of(d(made), 0.0), d_optimizer
    loss.backward()
    sizes = np.concatenate([np.abs(p.grad.array).ravel() for p in optimizer.parameters()])
    exponents["generator" if i % 2 else "discriminator"].append(np.log2(sizes[sizes > 0]))
    optimizer.step()
    g.zero_grad()
    d.zero_grad()


def show(axes, points, title):
    real = real_points(1000, np.random.default_rng(1))
    axes.plot(*real.T, ".", color="0.8", markersize=3, label="real")
    axes.plot(*points[:1000].T, ".", color="C1", markersize=2, label="made")
    axes.set(title=title, aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[], yticks=[])


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), width_ratios=[1, 2])
with mp.no_grad():
    show(left, g(mp.tensor(noise(1000, random))).numpy(), f"After {STEPS // 2} steps of each")
left.legend(loc="center", markerscale=4)
for name, found in exponents.items():
    right.hist(np.concatenate(found), bins=np.arange(-32, 2), alpha=0.5, density=True, label=name)
right.axvspan(-32, -25, color="0.9", zorder=0)
right.axvspan(-25, -14, color="C5", alpha=0.25, linewidth=0, zorder=0)
right.text(-31.5, 0.005, "zero\nin FP16")
right.text(-24.5, 0.005, "subnormal\nin FP16")
right.set(xlabel="log2 |gradient|", ylabel="share", title="Weight gradients, not scaled", xlim=(-32, 1))
right.legend()

# %% [markdown]
# The gradients of the two networks lie about one power of two apart; those of a single network spread over twenty. So
# one scale can serve both. Few gradients are below FP16's smallest number: MPT 4.6 found that the DCGAN needs no
# loss scale at all. A scale is not for this network, then, but for the day when the discriminator wins and its
# gradients become small. It must not do any harm, and in a GAN there are more ways to use it wrongly.

# %% [markdown]
# ## 1. A loss that no logit breaks
#
# The discriminator's logit z stands for the probability s = sigmoid(z) that a point is real. Its loss is the
# cross-entropy: -ln s for a real point (target 1), -ln(1 - s) for a made one (target 0).
#
# With z = -200, s is 1e-87 and rounds to 0 in FP32, and -ln 0 is infinite. The right answer is 200. So one never
# computes s, but
#
#     loss = max(z, 0) - z * target + ln(1 + exp(-|z|))
#
# Here exp never gets a positive number. And as each loss it is computed in FP32, also where the logits are FP16 (NVG
# 2.3.1): a sum of a few logits of 30,000 is infinite in FP16.


# %% exercise
def cross_entropy(logits, target):
    """The mean over all logits of the formula above, as a float, computed in FP32 or FP64.

    logits: a float16 or float32 array (N,), finite. target: 0.0 or 1.0, the same for all.
    """
    # SOLUTION
    z = logits.astype(np.float64)
    return float(np.mean(np.maximum(z, 0) - z * target + np.log1p(np.exp(-np.abs(z)))))
    # END


# %%
check(cross_entropy)

# %% check
from decimal import Decimal

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.course.checking import close, expect, short


def check_cross_entropy(cross_entropy, random):
    few = random.uniform(-4, 4, int(random.integers(3, 6)))
    for logits, dtype, hint in (
        (few, np.float32, "Check the signs, and take the mean."),
        ([-200.0, 3.0], np.float32, "Use the formula: sigmoid(-200) is 0 in FP32, and ln 0 is infinite."),
        ([200.0, -3.0], np.float32, "exp(200) is infinite in FP32: take exp of -|z|."),
        ([30000.0, -30000.0, 20000.0, -20000.0, 30000.0, -30000.0], np.float16, "Convert to FP32 first."),
        (random.uniform(4, 5, 500), np.float16, "Convert to FP32 first: an FP16 sum or an FP16 exp is not enough."),
    ):
        z = np.array(logits, dtype)
        for target in (0.0, 1.0):
            terms = [(1 + Decimal(abs(float(x))).copy_negate().exp()).ln() for x in z]
            terms = [t + max(Decimal(float(x)), 0) - Decimal(float(x)) * int(target) for t, x in zip(terms, z)]
            call = f"cross_entropy({short(z)} in {'FP16' if dtype == np.float16 else 'FP32'}, {target:g})"
            # each term: a few roundings in FP32 of numbers up to 2 |z|; the mean: pairwise, or N of them in a loop
            atol = float(np.abs(z.astype(np.float64)).mean() + 1) * 8 * 2.0**-23
            close(cross_entropy(z.copy(), target), float(sum(terms) / len(z)), call, len(z) * 2.0**-24, atol, hint)


# %%
logits = np.float16([-20000, -3, 0.5, 9])
print(f"yours {cross_entropy(logits, 1.0):.6f}, tinymp's {loss_of(mp.tensor(logits), 1.0).item():.6f}")

# %% [markdown]
# From here on `loss_of` is used: tinymp's, which also has a backward.

# %% [markdown]
# ## 2. The discriminator's loss
#
# It sees real points (target 1) and made points (target 0); the loss is the sum of both means.
#
# But who learns from it? The made points come from the generator, and backward would go on into it, with the wrong
# aim: the *discriminator's* loss tells the generator how to be recognised. `made.detach()` is the same array without
# the graph behind it: backward ends there. It also saves the time and the memory of a backward.


# %% exercise
def discriminator_loss(g, d, real, noise):
    """loss_of real points (target 1) plus loss_of points that g makes of the noise (target 0). An FP32 tensor.

    g, d: generator and discriminator; g(noise) are points, d(points) are logits. Its backward leaves gradients in d's
    parameters, and none in g's.
    """
    # SOLUTION
    made = g(noise).detach()
    return loss_of(d(real), 1.0) + loss_of(d(made), 0.0)
    # END


# %%
check(discriminator_loss)


# %% check
def _pair(random):
    """A generator and a discriminator, real points and noise."""
    size = int(random.integers(5, 8))
    mp.manual_seed(int(random.integers(1000)))
    g = nn.Sequential(nn.Linear(3, size), nn.Tanh(), nn.Linear(size, 2))
    d = nn.Sequential(nn.Linear(2, size), nn.Tanh(), nn.Linear(size, 1))
    return g, d, random.normal(1, 1, (6, 2)).astype(np.float32), random.normal(size=(6, 3)).astype(np.float32)


def _layers(model, x):
    """The model's result in FP64, from its own weights."""
    weights = [p.master.astype(np.float64) for p in model.parameters()]
    return np.tanh(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]


def check_discriminator_loss(discriminator_loss, random):
    g, d, real, z = _pair(random)
    loss = discriminator_loss(g, d, mp.tensor(real), mp.tensor(z))
    call = "discriminator_loss(g, d, real, noise)"
    expect(isinstance(loss, mp.Tensor), f"{call} returns {type(loss).__name__}, expected a tensor (for its backward).")
    of_real, of_made = np.logaddexp(0, -_layers(d, real)).mean(), np.logaddexp(0, _layers(d, _layers(g, z))).mean()
    hint = "Real points have target 1, made points 0; the two means are added."
    close(loss, of_real + of_made, f"the value of {call}", 1e-4, hint=hint)
    expect(loss.requires_grad, f"{call} has no graph behind it: detach the made points, not the loss.")
    loss.backward()
    expect(
        all(p.grad is None for p in g.parameters()),
        f"the backward of {call} leaves gradients in the generator: detach what it made.",
    )
    got = d[2].bias.grad
    expect(got is not None, f"the backward of {call} leaves no gradients in the discriminator.")
    slopes = [1 / (1 + np.exp(-_layers(d, x))) for x in (real, _layers(g, z))]
    want = slopes[0].mean() - 1 + slopes[1].mean()
    close(
        got.array, [want], "the gradient of the last bias", 1e-3, 1e-6, "Both parts of the loss need their gradients."
    )


# %% [markdown]
# ## 3. One scaler, and an overflow
#
# The scaler is told of both losses and of both optimizers, and of the end of the iteration:
#
#     scaler.scale(d_loss).backward()
#     d_result = scaler.step(d_optimizer)     looks at the discriminator's gradients
#     scaler.scale(g_loss).backward()
#     g_result = scaler.step(g_optimizer)     looks at the generator's gradients
#     scaler.update()                         adjusts S, once
#
# Why one `update`? S must not change between the two steps: it would no longer be the S with which some gradient was
# made. And what if one overflows? `step` decides for its own optimizer. `update` halves S if **any** of them has
# overflowed, once.
#
# In one iteration S is 1,024. The discriminator's gradients overflow, the generator's do not. What happens? Write
# "applied" or "skipped" for the discriminator's step and for the generator's, and the S of the next iteration.

# %% exercise
after_overflow = ("skipped", "applied", 512.0)  # SOLUTION

# %%
check(after_overflow=after_overflow)


# %% check
def check_after_overflow(after_overflow, random):
    g, d, real, z = _pair(random)
    optimizers, scaler = [optim.SGD(m.parameters(), lr=0.1) for m in (d, g)], optim.DynamicLossScaler(1024.0)
    results = []
    for model, optimizer, x in zip((d, g), optimizers, (real, z)):
        scaler.scale(model(mp.tensor(x)).mean()).backward()
        if model is d:
            d[0].weight.grad[0, 0] = np.inf
        results.append("applied" if scaler.step(optimizer).applied else "skipped")
    scaler.update()
    want = (*results, scaler.get_scale())
    expect(
        isinstance(after_overflow, (tuple, list)) and len(after_overflow) == 3,
        f"after_overflow is {after_overflow!r:.60}; expected two words and a number: ('applied', 'applied', 1024.0).",
    )
    hints = (
        "The discriminator's step would put infinities into its weights.",
        "`step` looks only at the gradients of its own optimizer; the generator's are fine.",
        "One overflow is enough: S is halved, once for the iteration.",
    )
    for name, got, right, hint in zip(
        ("discriminator's step", "generator's step", "next S"), after_overflow, want, hints
    ):
        expect(got == right, f"after_overflow: the {name} is {got!r}; that is not what tinymp does. {hint}")


# %% [markdown]
# ## 4. A step of the GAN
#
# Now all of it. One more trap: the generator's loss, loss_of(d(g(noise)), 1), goes back **through** the discriminator,
# and leaves gradients there, too. They belong to nobody. If they are not removed, the next iteration adds its own to
# them.


# %% exercise
def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    """One iteration. Returns (d_loss, g_loss, d_result, g_result): floats, not scaled, and what scaler.step returned.

    First the discriminator's step with discriminator_loss; then the generator's, whose loss is loss_of its points with
    target 1, as the new discriminator sees them. One scaler for both, one update. No gradients are left in g and d.
    """
    # SOLUTION
    d_loss = discriminator_loss(g, d, real, noise)
    scaler.scale(d_loss).backward()
    d_result = scaler.step(d_optimizer)
    g_loss = loss_of(d(g(noise)), 1.0)
    scaler.scale(g_loss).backward()
    g_result = scaler.step(g_optimizer)
    scaler.update()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    return d_loss.item(), g_loss.item(), d_result, g_result
    # END


# %%
check(gan_step)


# %% check
def _reference(g, d, real, z, lr):
    """(both losses) of an iteration in FP32, in which each network's gradients are its own."""
    bce = ops.binary_cross_entropy_with_logits
    real_, z_ = mp.tensor(real), mp.tensor(z)
    with mp.no_grad():
        made = g(z_)
    first = bce(d(real_), mp.ones((len(real), 1))) + bce(d(made), mp.zeros((len(z), 1)))
    first.backward()
    optim.SGD(d.parameters(), lr=lr).step()
    second = bce(d(g(z_)), mp.ones((len(z), 1)))
    second.backward()
    optim.SGD(g.parameters(), lr=lr).step()
    g.zero_grad()
    d.zero_grad()
    return first.item(), second.item()


def _masters(model):
    return np.concatenate([p.master.ravel().astype(np.float64) for p in model.parameters()])


def check_gan_step(gan_step, random):
    g, d, real, z = _pair(random)
    size = len(g[0].bias.array)
    mp.manual_seed(int(random.integers(1000)))
    mine = [
        mp.MIXED.cast(nn.Sequential(nn.Linear(a, size), nn.Tanh(), nn.Linear(size, b))) for a, b in ((3, 2), (2, 1))
    ]
    for model, other in zip((g, d), mine):
        with mp.no_grad():
            for p, q in zip(model.parameters(), other.parameters()):
                p.copy_(q.master)
    optimizers = [optim.SGD(model.parameters(), lr=0.5) for model in mine]
    scaler = optim.StaticLossScaler(2.0 ** int(random.integers(6, 9)))
    for i in range(2):
        before = [_masters(model) for model in (g, d)]
        want = _reference(g, d, real, z, 0.5)
        ways = [_masters(model) - b for model, b in zip((g, d), before)]
        start = [_masters(model) for model in mine]
        with mp.use(mp.MIXED):
            inputs = [mp.MIXED.cast(mp.tensor(x)) for x in (real, z)]
            got = gan_step(*mine, *optimizers, scaler, *inputs)
        call = "gan_step" if i == 0 else "the second gan_step"
        expect(isinstance(got, tuple) and len(got) == 4, f"{call} returns {got!r:.60}, expected four things.")
        for j, name in enumerate(("discriminator's", "generator's")):
            hint = "Return the losses without the scale. The generator's target is 1."
            if j:
                hint += " The discriminator steps first, with its own gradients only."
            close(got[j], want[j], f"the {name} loss of {call}", 0.03, 0.01, hint)
        expect(
            all(getattr(result, "applied", False) for result in got[2:]),
            f"{call} returns {got[2]!r:.40} and {got[3]!r:.40}, expected what scaler.step returned, twice.",
        )
        expect(scaler.iteration == i + 1, f"{call} called scaler.update() {scaler.iteration - i} times, expected once.")
        for name, model, b, way, hint in (
            ("generator", mine[0], start[0], ways[0], "Only the generator's own loss may reach it: detach."),
            (
                "discriminator",
                mine[1],
                start[1],
                ways[1],
                "Only its own loss may move it; it steps before the generator.",
            ),
        ):
            moved = _masters(model) - b
            expect(moved.any(), f"{call} does not change the {name}.")
            # FP16 has 11 bits, and tanh and the logits are rounded once per op: a few per cent of the way are plenty
            off = float(np.linalg.norm(moved - way) / np.linalg.norm(way))
            expect(off < 0.1, f"{call} moves the {name} otherwise than FP32 does (by {off:.0%} of the way). {hint}")
        for name, model in zip(("generator", "discriminator"), mine):
            left = [p for p in model.parameters() if p.grad is not None]
            expect(not left, f"{call} leaves gradients in the {name}; the next iteration would add its own to them.")
        for model, other in zip((g, d), mine):
            with mp.no_grad():
                for p, q in zip(model.parameters(), other.parameters()):
                    p.copy_(q.master)


# %%
def train(policy, scaler, steps=STEPS):
    """(generator, losses (steps, 2), results (steps, 2): 1 where a step was applied)."""
    g, d, g_optimizer, d_optimizer = pair(policy)
    random, found = np.random.default_rng(0), []
    with mp.use(policy):
        for _ in range(steps):
            real, z = (policy.cast(mp.tensor(x)) for x in (real_points(128, random), noise(128, random)))
            found.append(gan_step(g, d, g_optimizer, d_optimizer, scaler, real, z))
    return g, np.array([f[:2] for f in found]), np.array([[r.applied for r in f[2:]] for f in found])


def points_of(g, policy, count=4000):
    with mp.use(policy), mp.no_grad():
        return g(policy.cast(mp.tensor(noise(count, np.random.default_rng(2))))).float().numpy()


scaler = optim.DynamicLossScaler(growth_interval=50)  # not 2,000, so that we see it move
fp32, fp32_losses, _ = train(mp.FP32, optim.NoLossScaler())
mixed, mixed_losses, results = train(mp.MIXED, scaler)
made = {"FP32": points_of(fp32, mp.FP32), "mixed": points_of(mixed, mp.MIXED)}

figure, axes = plt.subplots(1, 4, figsize=(12, 3), width_ratios=[1, 1, 1.3, 1.3])
for one, (name, points) in zip(axes, made.items()):
    show(one, points, name)
for name, losses in (("FP32", fp32_losses), ("mixed", mixed_losses)):
    axes[2].plot(losses[:, 0], label=f"{name}: D", alpha=0.8)
    axes[2].plot(losses[:, 1], label=f"{name}: G", alpha=0.8)
axes[2].set(title="Losses", xlabel="iteration")
axes[2].legend(ncols=2)
axes[3].step(
    [0, *(i for i, *_ in scaler.history), STEPS],
    np.log2([2**16, *(s for _, s, _ in scaler.history), scaler.get_scale()]),
    where="post",
)
for column, (name, y) in enumerate((("D", 0.3), ("G", 0.1))):
    skipped = np.flatnonzero(~results[:, column])
    axes[3].plot(skipped, np.full(len(skipped), axes[3].get_ylim()[0] - y), "|", label=f"{name} skipped")
axes[3].set(title="log2 of the scale S", xlabel="iteration")
axes[3].legend()
print(f"skipped steps: discriminator {np.sum(~results[:, 0])}, generator {np.sum(~results[:, 1])}")

# %% [markdown]
# The two trainings agree. (The points of the first picture are worse: there each network had half of the steps.)
# Every 50 iterations S is doubled, the gradients of the discriminator overflow, its step is skipped, and S falls back.
# The generator's gradients are smaller, and its step is applied in the same iteration.

# %% [markdown]
# ## 5. How many clouds?
#
# The losses of a GAN say little: each network is measured against the other. MPT 4.6 had to compare faces by eye. On a
# ring one can count. A generator that makes only one cloud, but that perfectly, fools the discriminator for a while:
# *mode collapse*.


# %% exercise
def share_per_cloud(points, centres, radius):
    """For each centre the share (0 to 1) of all points that lie nearer to it than radius. A float array (K,).

    points: a float array (N, 2). centres: (K, 2), more than 2 * radius from each other.
    """
    # SOLUTION
    distances = np.linalg.norm(points[:, None] - centres, axis=2)
    return np.mean(distances < radius, axis=0)
    # END


# %%
check(share_per_cloud)


# %% check
def check_share_per_cloud(share_per_cloud, random):
    count = int(random.integers(3, 6))
    places = np.stack([3.0 * np.arange(count), random.permutation(count)], axis=1)
    which, n = random.integers(0, count - 1, 50), 50
    angle = random.uniform(0, 2 * np.pi, n)
    away = random.choice([0.3, 0.9, 1.2, 5.0], n)  # of the radius
    points = places[which] + (away * np.stack([np.cos(angle), np.sin(angle)])).T
    want = [sum(abs(complex(*p) - complex(*c)) < 1.0 for p in points) / n for c in places]
    hint = "The distance is sqrt(dx^2 + dy^2); divide by the number of all points, also of those that lie nowhere."
    call = f"share_per_cloud(50 points, {count} centres, 1.0)"
    close(share_per_cloud(points, places.copy(), 1.0), want, call, 1e-9, hint=hint)
    hint = "The radius counts: nothing is nearer than that."
    close(
        share_per_cloud(points + 1e4, places.copy(), 1.0), np.zeros(count), "the shares of points far away", hint=hint
    )


# %%
for name, points in (("real", real_points(4000, np.random.default_rng(3))), *made.items()):
    shares = share_per_cloud(points, centres, 3 * WIDTH)
    print(f"{name:<6} {np.sum(shares > 0.01)} of 8 clouds; {shares.sum():4.0%} of all points in one of them;", end=" ")
    print("per cloud " + " ".join(f"{s:3.0%}" for s in shares))

# %% [markdown]
# ## 6. A distance between two sets
#
# For pictures nobody knows the clouds. What one takes is the **Fréchet distance** (Heusel et al., 2017,
# [arXiv 1706.08500](https://arxiv.org/abs/1706.08500)): describe each set by its mean m and its covariance C, as if it
# were one Gaussian, and measure
#
#     |m1 - m2|^2 + trace(C1 + C2 - 2 (C1 C2)^(1/2))
#
# The trace of that root is the sum of the roots of the eigenvalues of C1 C2 (`np.linalg.eigvals`; they are real and
# not negative, but for rounding). `examples/dcgan.py` measures faces with it.
#
# A covariance is a mean of squares of differences. Points may come in FP16, where 300 squared is infinite: convert.


# %% exercise
def frechet_distance(a, b):
    """The formula above, for two sets of points, float arrays (N, D) and (M, D), perhaps float16. A float.

    Computed in FP64; covariances as np.cov computes them (divided by N - 1). N, M and D are 2 or more.
    """
    # SOLUTION
    a, b = a.astype(np.float64), b.astype(np.float64)
    c1, c2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    roots = np.sqrt(np.maximum(np.linalg.eigvals(c1 @ c2).real, 0))
    return float(np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(c1) + np.trace(c2) - 2 * roots.sum())
    # END


# %%
check(frechet_distance)


# %% check
def check_frechet_distance(frechet_distance, random):
    def cross(sizes, centre):  # points on the axes: their covariance is diagonal, 2 s^2 / (N - 1)
        steps = np.diag(sizes)
        return np.concatenate([steps, -steps]) + centre

    d = int(random.integers(2, 5))
    s, t, shift = (random.uniform(0.5, 2, d) for _ in range(3))
    call = f"frechet_distance of two sets of {2 * d} points"
    close(frechet_distance(cross(s, 0), cross(s, 0)), 0.0, f"{call} that are equal", 0, 1e-6)
    want = float((shift**2).sum())
    close(frechet_distance(cross(s, 0), cross(s, shift)), want, f"{call} that differ by their mean", 1e-6)
    want = float(2 / (2 * d - 1) * ((s - t) ** 2).sum())
    hint = "Is the root taken, and of the eigenvalues? Are the covariances divided by N - 1?"
    close(frechet_distance(cross(s, 0), cross(t, 0)), want, f"{call} that differ by their covariance", 1e-6, hint=hint)

    def two(a, b):  # 2 x 2 has a closed form
        c1, c2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
        root = np.sqrt(np.trace(c1 @ c2) + 2 * np.sqrt(np.linalg.det(c1) * np.linalg.det(c2)))
        return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(c1) + np.trace(c2) - 2 * root)

    a, b = (random.normal(size=(n, 2)) @ random.normal(size=(2, 2)) for n in (6, 9))
    hint = "Covariances are matrices, not only variances: the product C1 C2 is a matrix product."
    close(frechet_distance(a, b), two(a, b), "frechet_distance of sets of 6 and 9 points", 1e-6, 1e-9, hint)
    a, b = (random.normal(1000, 30, (n, 2)).astype(np.float16) for n in (70, 90))
    want, hint = (
        two(a.astype(np.float64), b.astype(np.float64)),
        "Convert to FP64 first: a mean near 1000 is rounded to 0.5.",
    )
    close(frechet_distance(a, b), want, "frechet_distance of FP16 points near 1000", 1e-4, 1e-6, hint)


# %%
truth = real_points(4000, np.random.default_rng(3))
collapsed = centres[0] + WIDTH * np.random.default_rng(4).standard_normal((4000, 2))
one_blob = np.random.default_rng(5).standard_normal((4000, 2)) * truth.std()
others = real_points(4000, np.random.default_rng(6))
for name, points in (("other real points", others), *made.items(), ("one cloud only", collapsed), ("a blob", one_blob)):
    print(f"{name:<18} {frechet_distance(truth, points):.4f}")

# %% [markdown]
# The collapsed generator is found. But look at the last line: a single round blob without any cloud is as near as real
# points, or nearer, for it has their mean and their covariance, and the measure sees nothing else. For pictures one
# therefore measures *features*, of a network that has learned to see. A measure is good for what it measures: here the
# count of clouds says more.
#
# ## What to remember
#
# - One scaler for both networks: scale each loss, a `step` for each optimizer, **one** `update` at the end.
# - An overflow skips the step of its own optimizer only. The scale falls for both.
# - `detach` keeps the discriminator's loss out of the generator; the generator's loss goes through the discriminator,
# and what it leaves there must go.
# - Losses from logits, in FP32, never from probabilities.
# - A GAN is measured by what it makes, not by its losses.
#
# ## To think about
#
# 1. Both networks overflow in one iteration. How often is S halved, and how often should it be?
# 2. You give each network a scaler of its own. What becomes better, what becomes worse?
# 3. Why is it enough for `gan_step` to call `zero_grad` at the end? What could go wrong with `zero_grad` only for the
# generator?
# 4. The generator's step is skipped ten times in a row, and the discriminator's never. What may happen?
