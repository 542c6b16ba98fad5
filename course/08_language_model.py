# %% [markdown]
# # 8. Recurrent nets and the language model
#
# *45 minutes.*
#
# **A language model reads one character after the other. What it learns from an error must travel back through time.
# How many characters back does that news get in FP16?**
#
# - **You know** loss scaling, from lesson 5.
# - **You do**: cut a text into streams; compute a scale from a probability and the size of a batch; write an LSTM cell,
#   a training step with a scale and clipping, and a perplexity.
# - **You can then** feed a long text to a recurrent network in pieces, and say which loss scale it needs.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740). On Colab, first upload the wheel and
# run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.course import check, words

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 160  # of each training; on a slow machine 80 show the same

# %% [markdown]
# ## The question, in a picture
#
# The text is what NumPy's functions say of themselves: 200,000 characters. The network sees one character at a time
# and gives a probability to each possible next one. An LSTM (Hochreiter and Schmidhuber, 1997) keeps a *state* of 64
# numbers, its memory.
#
# After some steps in FP32 we take the loss of the **last** of 64 predictions alone, and look at the gradients of all 64
# inputs. As in a training it is divided by 2,048, for 32 pieces of 64 characters.

# %%
text = words().lower()
letters = sorted(set(text))
codes = np.array([letters.index(c) for c in text])
training, held_out = np.split(codes, [len(codes) * 19 // 20])


class LanguageModel(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        mp.manual_seed(0)
        self.embedding = nn.Embedding(len(letters), 32)
        self.lstm = nn.LSTM(32, hidden)
        self.output = nn.Linear(hidden, len(letters))

    def forward(self, inputs, state=None):
        """Logits (T, B, letters) for codes (T, B), and the state after the last one."""
        y, state = self.lstm(self.embedding(mp.tensor(inputs)), state)
        return self.output(y), state

    def loss(self, inputs, targets, state=None):
        """(the FP32 mean of -ln p(target), the state)."""
        logits, state = self(inputs, state)
        return ops.cross_entropy(logits.flatten(0, 1), mp.tensor(targets.reshape(-1))), state


def windows(count, length, seed):
    starts = np.random.default_rng(seed).integers(0, len(training) - length, count)
    return training[starts + np.arange(length + 1)[:, None]]


model = LanguageModel()
optimizer = optim.Adam(model.parameters(), lr=1e-2)
for i in range(STEPS // 3):
    piece = windows(32, 32, seed=i)
    model.loss(piece[:-1], piece[1:])[0].backward()
    optimizer.step()
    optimizer.zero_grad()


def by_age(policy, scale):
    """Gradients of the inputs, (64, 32 * 32): row t is of characters read t steps before the last."""
    piece = windows(32, 64, seed=10_000)
    policy.cast(model)
    with mp.use(policy):
        inputs = policy.cast(mp.tensor(model.embedding.weight.numpy()[piece[:-1]])).requires_grad_()
        logits = model.output(model.lstm(inputs)[0][-1])
        loss = ops.cross_entropy(logits, mp.tensor(piece[-1]), reduction="sum") / 2048
        (loss * scale).backward()
    for p in model.parameters():
        p.grad = None
    return inputs.grad.array.astype(np.float64).reshape(64, -1)[::-1] / scale


gradients = {
    "FP32": by_age(mp.FP32, 1),
    "FP16": by_age(mp.MIXED, 1),
    "FP16, loss x 16,384": by_age(mp.MIXED, 2.0**14),
}
mp.FP32.cast(model)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6))
left.plot(np.log2(np.median(np.abs(gradients["FP32"]), axis=1)))
left.axhspan(-55, -25, color="0.9", zorder=0)
left.text(1, -53, "zero in FP16")
left.set(xlabel="characters back", ylabel="log2 of the median |gradient|", title="FP32", ylim=(-55, -12))
for name, found in gradients.items():
    right.plot(100 * np.mean(found == 0, axis=1), label=name)
right.set(xlabel="characters back", ylabel="gradients that are zero, %", title="How far does the news get?")
right.legend()

# %% [markdown]
# With each step back the gradient is multiplied by slopes of sigmoids and by weights, and becomes smaller. In FP16 it
# ends after some ten characters: the length of a word. A loss scale of 14 powers of two gives some twenty more.
#
# So a recurrent network makes small gradients in two ways: it divides by the number of characters in a batch, and it
# multiplies by slopes once per step in time.

# %% [markdown]
# ## 1. A text as batches
#
# Gradients cannot go back through 200,000 characters: all activations would have to be kept. So one cuts the text
# (*truncated backpropagation through time*), but lets the state go on: a piece begins with the memory at the end of the
# piece before. We lay `count` long streams side by side, one per column:
#
#     a text:  T h e   q u i c k   b r o w n        3 streams of 5:   T u b
#                                                                     h i r
#                                                                     e c o
#                                                                       k w
#                                                                     q   n
#
# and take `length` rows at a time. Column j of the next batch goes on where column j of this one has ended.


# %% exercise
def streams(codes, count, length):
    """Yield (inputs, targets), integer arrays (length, count), until the streams end: once through the text.

    codes: an integer array (N,). It is cut into `count` streams of (N - 1) // count codes each, one after the other;
    what is left at the end is not used. Column j is stream j. A target is the code that follows its input in the text.
    A last batch of fewer than `length` rows is left out.
    """
    # SOLUTION
    rows = (len(codes) - 1) // count
    inputs = codes[: rows * count].reshape(count, rows).T
    targets = codes[1 : rows * count + 1].reshape(count, rows).T
    for i in range(0, rows - length + 1, length):
        yield inputs[i : i + length], targets[i : i + length]
    # END


# %%
check(streams)

# %% check
from fractions import Fraction

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.course.checking import close, expect


def check_streams(streams, random):
    extra, count, length = int(random.integers(1, 3)), int(random.integers(3, 5)), int(random.integers(5, 7))
    rows = 3 * length + int(random.integers(1, length))
    for size in (rows * count + extra, rows * count, 2 * length * count + 1):
        codes = random.permutation(size)  # each code once, so that one sees where it comes from
        call = f"streams(a text of {size}, {count}, {length})"
        got = streams(codes.copy(), count, length)
        try:
            got = list(got)
        except TypeError:
            expect(False, f"{call} returns {type(got).__name__}, expected something to loop over: use `yield`.")
        each = (size - 1) // count
        expect(
            len(got) == each // length,
            f"{call} yields {len(got)} batches, expected {each // length}: a stream has {each} codes. "
            "The last one needs a target, too; a batch that would be shorter is left out.",
        )
        for i, batch in enumerate(got):
            expect(isinstance(batch, tuple) and len(batch) == 2, f"{call} yields {type(batch).__name__}, not a pair.")
            for part, ahead, name in ((batch[0], 0, "inputs"), (batch[1], 1, "targets")):
                want = [[codes[j * each + i * length + t + ahead] for j in range(count)] for t in range(length)]
                hint = "Column j is stream j: first all of stream 0 in the text, then all of stream 1."
                if i:
                    hint = "Each column goes on where it ended in the batch before."
                if ahead:
                    hint = "A target is the code after its input in the text, also at the end of a batch."
                close(part, want, f"{name} {i} of {call}", rtol=0, hint=hint)


# %%
for i, (inputs, _) in zip(range(2), streams(training, 4, 40)):
    print(f"batch {i}, column 2: {''.join(letters[c] for c in inputs[:, 2])!r}")

# %% [markdown]
# ## 2. Which scale?
#
# The loss is a mean over N = length x count predictions. Its gradient at a logit is p / N, where p is the probability
# that the model gives to that letter (and (p - 1) / N for the right one). A good model gives a small p to most letters.
# So two numbers tell what happens in FP16: p and N.


# %% exercise
def scale_for_mean(p, n):
    """The smallest power of two S, at least 1, with which S * p / n is a normal FP16 number (2^-14 or more).

    p: a float above 0. n: an integer. Returns a float.
    """
    # SOLUTION
    scale = 1.0
    while scale * p / n < 2.0**-14:
        scale *= 2
    return scale
    # END


# %%
check(scale_for_mean)


# %% check
def check_scale_for_mean(scale_for_mean, random):
    cases = [(0.25, 1024), (0.5, 4), (2.0**-13, 2), (2.0**-4, 4096)]
    cases += [(float(2.0 ** random.uniform(-12, -1)), int(random.integers(1000, 40000))) for _ in range(3)]
    for p, n in cases:
        want = 1
        while want * Fraction(p) / n < Fraction(1, 2**14):
            want *= 2
        hint = "S is a power of two. S * p / n may be equal to 2^-14: that is a normal number."
        if want == 1 and Fraction(p) / n > Fraction(1, 2**14):
            hint = "p / n is large enough: S is 1, not less."
        close(scale_for_mean(p, n), float(want), f"scale_for_mean({p:.6g}, {n})", rtol=0, hint=hint)


# %%
for name, p, n in (
    ("this lesson, before it has learned", 1 / len(letters), 32 * 32),
    ("this lesson, a letter of 1 in 10,000", 1e-4, 32 * 32),
    ("MPT 4.5, before it has learned", 1 / 8193, 1024 * 20),
):
    print(f"{name:<38} p / N = 2^{math.log2(p / n):.1f}   S = {scale_for_mean(p, n):,.0f}")

# %% [markdown]
# The last row is the large model of MPT 4.5: 1,024 streams, 20 words at a time (Jozefowicz et al., 2016,
# [arXiv 1602.02410](https://arxiv.org/abs/1602.02410)), and a softmax over the right word and 8,192 others. Most of its
# gradients at the logits are zero in FP16 from the first step on. The paper used S = 128, and got the result of FP32.
#
# Our gradients are some two thousand times larger, and survive. To see what the paper saw, we make them as small, by a
# scale *below* 1, `2.0**-10`. What is not lost is unscaled again, so nothing else changes.

# %% [markdown]
# ## 3. An LSTM cell
#
# From its input x and its last output h the cell computes four vectors of H numbers each:
#
#     i = sigmoid(Wi x + bi + Ui h + ci)     how much of the new is written
#     f = sigmoid(Wf x + bf + Uf h + cf)     how much of the memory is kept
#     g =    tanh(Wg x + bg + Ug h + cg)     the new
#     o = sigmoid(Wo x + bo + Uo h + co)     how much of the memory is shown
#
#     c' = f c + i g        the memory
#     h' = o tanh(c')       the output
#
# The four matrices W are one, `weight_ih`, in the order **i, f, g, o**, one below the other; so are the four U,
# `weight_hh`, and the vectors b, `bias_ih`, and c, `bias_hh`.
#
# From c' back to c the gradient is multiplied by f, without a weight. If f is near 1, it stays as it is: this is what
# the LSTM was invented for.


# %% exercise
def lstm_cell(x, h, c, weight_ih, weight_hh, bias_ih, bias_hh):
    """One step in time. Returns (h', c'), float32 arrays (B, H).

    float32 arrays: x (B, E); h and c (B, H); weight_ih (4H, E), weight_hh (4H, H), bias_ih and bias_hh (4H,).
    """
    # SOLUTION
    i, f, g, o = np.split(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh, 4, axis=1)
    i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
    c = f * c + i * np.tanh(g)
    return o * np.tanh(c), c
    # END


# %%
check(lstm_cell)


# %% check
def check_lstm_cell(lstm_cell, random):
    b, e, size = int(random.integers(2, 4)), int(random.integers(5, 7)), int(random.integers(3, 5))
    shapes = ((b, e), (b, size), (b, size), (4 * size, e), (4 * size, size), (4 * size,), (4 * size,))
    x, h, c, *weights = (random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    peer = nn.LSTM(e, size)
    with mp.no_grad():
        for p, w in zip(peer.parameters(), weights):
            p.copy_(w)
        _, want = peer(mp.tensor(x[None]), (mp.tensor(h[None]), mp.tensor(c[None])))
    call = f"lstm_cell(x {x.shape}, h and c {h.shape}, ...)"
    got = lstm_cell(x.copy(), h.copy(), c.copy(), *(w.copy() for w in weights))
    expect(
        isinstance(got, tuple) and len(got) == 2, f"{call} returns {type(got).__name__}, expected the pair (h', c')."
    )
    whole = sum(a.astype(np.float64) @ w.T for a, w in ((x, weights[0]), (h, weights[1]))) + weights[2] + weights[3]
    hint = "Compare each line with the formulas; nn.LSTM was asked."
    for order in ("ifog", "igfo", "figo"):
        z = dict(zip(order, np.split(whole, 4, axis=1)))
        i, f = (1 / (1 + np.exp(-z[k])) for k in "if")
        other = f * c + i * np.tanh(z["g"])
        if np.shape(got[1]) == other.shape and np.allclose(np.asarray(got[1], np.float64), other, 1e-3):
            hint = f"Your order of the four parts is {', '.join(order)}; PyTorch's is i, f, g, o."
    if np.shape(got[0]) == (b, size) and np.allclose(got[0], want[1].numpy()[0], 1e-3):
        hint = "Return (h', c'), in this order."
    # inside, sums of E + H + 2 numbers below 1 in FP32; slopes are at most 1
    tolerance = 8 * (e + size + 2) * 2.0**-24
    close(got[1], want[1].numpy()[0], f"c' of {call}", 1e-5, tolerance, hint)
    close(got[0], want[0].numpy()[0], f"h' of {call}", 1e-5, tolerance, "c' is right. h' = o tanh(c').", np.float32)


# %%
weights = [p.array for p in model.lstm.parameters()]
h = c = np.zeros((1, 64), np.float32)
sentence = training[6000:6080]
for code in sentence:
    h, c = lstm_cell(model.embedding.weight.array[[code]], h, c, *weights)
_, (whole, _) = model(sentence[:, None])
print(f"largest difference from nn.LSTM after {len(sentence)} characters: {np.abs(whole.numpy()[0] - h).max():.1e}")

# %% [markdown]
# ## 4. A step of training
#
# Everything together, in the order of lesson 5:
#
# 1. the loss, from the state of the step before
# 2. scale, backward
# 3. unscale (`scaler.unscale_(optimizer)`), **then** clip: `optim.clip_grad_norm_(model.parameters(), limit)` returns
#    the norm that it found, a tensor
# 4. `scaler.step(optimizer)`, `scaler.update()`, `optimizer.zero_grad()`
# 5. hand the state on without its history. It is a pair of tensors, h and c: `tuple(s.detach() for s in state)` is the
#    same pair without the graph behind it, through which the next backward would go on into this piece.
#
# Why clip? Multiplied once per step in time, gradients can also grow. One such step would throw the weights far away.


# %% exercise
def recurrent_step(model, optimizer, scaler, inputs, targets, state, limit):
    """One step of truncated backpropagation through time. Returns (loss, norm, state).

    model.loss(inputs, targets, state) returns an FP32 loss and the next state, a pair of tensors. state: the one
    before, None at first. scaler: a loss scaler of tinymp. limit: the largest norm of the gradients without scale.
    loss: a float, not scaled. norm: that of the gradients without scale, before clipping, a float. The state that is
    returned is detached. The gradients are gone afterwards.
    """
    # SOLUTION
    loss, state = model.loss(inputs, targets, state)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = optim.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item(), norm.item(), tuple(s.detach() for s in state)
    # END


# %%
check(recurrent_step)


# %% check
class _Reader(nn.Module):
    def __init__(self, letters, seed):
        super().__init__()
        mp.manual_seed(seed)
        self.embedding, self.lstm, self.output = nn.Embedding(letters, 5), nn.LSTM(5, 6), nn.Linear(6, letters)

    def loss(self, inputs, targets, state=None):
        y, state = self.lstm(self.embedding(mp.tensor(inputs)), state)
        return ops.cross_entropy(self.output(y).flatten(0, 1), mp.tensor(targets.reshape(-1))), state


def check_recurrent_step(recurrent_step, random):
    seed, letters = int(random.integers(1000)), int(random.integers(7, 12))
    text = random.integers(0, letters, (9, 3))
    for limit in (100.0, 0.01):
        plain, mine = _Reader(letters, seed), mp.MIXED.cast(_Reader(letters, seed))
        optimizer, scaler = (
            optim.SGD(mine.parameters(), lr=0.5),
            optim.StaticLossScaler(2.0 ** int(random.integers(8, 12))),
        )
        before, states = [p.master.astype(np.float64) for p in mine.parameters()], (None, None)
        for i in (0, 4):
            inputs, targets = text[i : i + 4], text[i + 1 : i + 5]
            loss, right = plain.loss(inputs, targets, states[0])
            loss.backward()
            norm = np.sqrt(sum(float((p.grad.array.astype(np.float64) ** 2).sum()) for p in plain.parameters()))
            with mp.use(mp.MIXED):
                got = recurrent_step(mine, optimizer, scaler, inputs, targets, states[1], limit)
            call = f"recurrent_step(..., limit={limit:g})"
            expect(isinstance(got, tuple) and len(got) == 3, f"{call} returns {got!r:.60}, not (loss, norm, state).")
            close(got[0], loss.item(), f"the loss of {call}", 0.02, hint="Return the loss itself, without the scale.")
            hint = "It is the norm before clipping, of the gradients without the scale."
            close(got[1], norm, f"the norm of {call}", 0.05, hint=hint)
            expect(
                isinstance(got[2], (tuple, list)) and len(got[2]) == 2,
                f"the state of {call} is {type(got[2]).__name__}, expected the pair of model.loss, detached.",
            )
            expect(
                not any(getattr(s, "requires_grad", False) for s in got[2]),
                f"the state of {call} still has the graph of this step behind it: detach both of its tensors.",
            )
            close(
                got[2][0],
                right[0].numpy(),
                f"the state of {call}",
                0.02,
                0.01,
                "Begin with the state handed in, and give back that after this piece.",
            )
            left = [p.grad for p in mine.parameters() if p.grad is not None]
            expect(not left, f"{call} leaves gradients behind: call optimizer.zero_grad() at the end.")
            expect(scaler.iteration == 1 + i // 4, f"{call} did not call scaler.update(), once.")
            change = np.concatenate([(p.master - b).ravel() for p, b in zip(mine.parameters(), before)])
            moved, wanted = float(np.sqrt((change**2).sum())), 0.5 * min(norm, limit)
            expect(moved > 0, f"{call} changed no weight. Did you call scaler.step(optimizer)?")
            hint = f"The gradients' norm is {norm:.3g} and the limit {limit:g}."
            close(moved, wanted, f"the way of the weights in {call}", 0.05, hint=hint)
            for p, q in zip(plain.parameters(), mine.parameters()):
                p.grad = None
                with mp.no_grad():
                    p.copy_(q.master)
            before = [p.master.astype(np.float64) for p in mine.parameters()]
            states = tuple(s.detach() for s in right), got[2]
    before = [p.master.copy() for p in mine.parameters()]
    with mp.use(mp.MIXED):
        recurrent_step(mine, optimizer, optim.StaticLossScaler(2.0**60), text[:4], text[1:5], None, 1.0)
    same = all(np.array_equal(p.master, b) for p, b in zip(mine.parameters(), before))
    expect(same, "with a scale of 2^60 gradients overflow, and recurrent_step changes weights: scaler.step skips this.")


# %%
def train(policy, scale, steps=STEPS, count=32, length=32):
    """(the model, its losses, an audit of every 20th step)."""
    model = policy.cast(LanguageModel())
    optimizer, scaler = optim.Adam(model.parameters(), lr=1e-2), optim.StaticLossScaler(scale)
    curve, state = [], None
    with mp.use(policy), mp.audit(every=20) as a:
        for _, (inputs, targets) in zip(range(steps), streams(training, count, length)):
            loss, _, state = recurrent_step(model, optimizer, scaler, inputs, targets, state, 0.25)
            curve.append(loss)
    return model, curve, a


runs = {
    "FP32": train(mp.FP32, 1.0),
    "FP16, loss / 1,024": train(mp.MIXED, 2.0**-10),
    "FP16, loss x 64": train(mp.MIXED, 2.0**6),
}
figure, axes = plt.subplots()
for (name, (_, curve, a)), style in zip(runs.items(), ({"linewidth": 5, "alpha": 0.4}, {}, {"linestyle": "--"})):
    axes.plot(curve, label=name, **style)
    rows = [row for row in a.ledger if row.phase == "backward" and row.rounded]
    if rows:
        print(f"{name}: {sum(r.zero for r in rows) / sum(r.rounded for r in rows):.1%} of the gradients became 0")
axes.set(xlabel="step", ylabel="loss, nats per character", title="The same network on the same text")
axes.legend()
# %% [markdown]
# Nearly half of the small gradients are gone, and the others have a digit or two: the network learns little more than
# how frequent letters are. A scale that is 16 powers of two larger gives the training of FP32.

# %% [markdown]
# ## 5. Perplexity
#
# How good is a language model? Its *perplexity* is exp of the mean of -ln p over all predictions: with a perplexity of
# 7 it is as unsure as somebody who must choose among 7 equally likely letters (MPT figure 5).
#
# The last batch may be smaller, so its mean counts less. And a sum over many batches must not be made in FP16 (lesson
# 1).


# %% exercise
def perplexity(losses, sizes):
    """exp of the mean of -ln p over all predictions of all batches, as a float.

    losses: the mean of -ln p of each batch, a float array or list (perhaps float16). sizes: how many predictions each
    batch has, integers. inf where it is too large for a float (a mean above 709).
    """
    # SOLUTION
    losses, sizes = np.asarray(losses, np.float64), np.asarray(sizes, np.float64)
    mean = float((losses * sizes).sum() / sizes.sum())
    return math.exp(mean) if mean < 709 else math.inf
    # END


# %%
check(perplexity)


# %% check
def check_perplexity(perplexity, random):
    close(perplexity([0.0], [5]), 1.0, "perplexity([0.0], [5])", hint="A model that is always sure and right.")
    a, b = float(random.uniform(1, 2)), float(random.uniform(4, 5))
    want = float(np.exp((100 * a + 10 * b) / 110))
    hint = "Each batch counts as often as it has predictions."
    close(perplexity([a, b], [100, 10]), want, f"perplexity([{a:.6g}, {b:.6g}], [100, 10])", 1e-5, hint=hint)
    batches, size = int(random.integers(3000, 4000)), int(random.integers(1000, 1100))
    losses = random.uniform(2, 3, batches).astype(np.float16)
    exact = sum(Fraction(float(x)) for x in losses) / batches
    call = f"perplexity({batches} FP16 losses between 2 and 3, {batches} times {size})"
    hint = "In FP16 a sum stalls or becomes infinite: convert the losses first."
    # a naive FP32 sum of n terms errs by n 2^-24 of it at most, and exp makes a relative error of that absolute one
    close(perplexity(losses, [size] * batches), np.exp(float(exact)), call, 3 * batches * 2.0**-24, hint=hint)
    close(perplexity([800.0], [3]), np.inf, "perplexity([800.0], [3])", hint="It should be inf, without an error.")


# %%
def held_out_perplexity(model, policy):
    losses, sizes, state = [], [], None
    with mp.use(policy), mp.no_grad():
        for inputs, targets in streams(held_out, 32, 32):
            loss, state = model.loss(inputs, targets, state)
            losses.append(loss.item())
            sizes.append(inputs.size)
    return perplexity(losses, sizes)


for name, (model, *_) in runs.items():
    policy = mp.FP32 if name == "FP32" else mp.MIXED
    print(f"{name:<20} perplexity {held_out_perplexity(model, policy):5.2f} on text that it has not seen")
shares = np.bincount(training, minlength=len(letters)) + 1
loss = -np.log(shares / shares.sum())[held_out].mean()
print(f"{'letters by frequency':<20} perplexity {perplexity([loss], [1]):5.2f}: without a look at the letters before")

# %% [markdown]
# With gradients that small the network is not even as good as somebody who only knows how frequent each letter is.
#
# ## 6. It writes
#
# Draw a letter from the probabilities, give it to the network as its next input, and so on. The *temperature* changes
# the probabilities first, softmax(logits / temperature): below 1 the model becomes sure of itself, above 1 wild.


# %%
def write(model, temperature, length=120):
    random, code, state, written = np.random.default_rng(0), letters.index("\n"), None, ""
    with mp.use(mp.MIXED), mp.no_grad():
        for _ in range(length):
            logits, state = model(np.array([[code]]), state)
            z = logits.numpy()[0, 0].astype(np.float64) / temperature
            p = np.exp(z - z.max())
            code = int(random.choice(len(letters), p=p / p.sum()))
            written += letters[code]
    return written


for temperature in (0.1, 0.6, 1.2):
    print(f"--- temperature {temperature}\n{write(runs['FP16, loss x 64'][0], temperature)}\n")

# %% [markdown]
# ## What to remember
#
# - A language model makes small gradients twice: by the mean over N predictions (p / N), and by each step back in
#   time. A loss scale takes the news of an error further.
# - Streams side by side; the state goes on, the gradient does not (`detach`).
# - Scale, backward, unscale, clip, step, update. Clip what is unscaled.
# - Sums of losses, softmax and perplexity belong in FP32.
#
# ## To think about
#
# 1. In the first picture the newest gradients are near 2⁻¹⁵ and the oldest near 2⁻⁴⁷. FP16 holds 2⁻²⁴ to 2¹⁶. Is there
#    one scale that keeps both?
# 2. Would BF16 reach further back? (Lesson 10.)
