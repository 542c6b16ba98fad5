"""Mixed-precision training on one page, in NumPy alone.

    python examples/one_page.py

A network of two layers learns handwritten digits in FP16, with the three techniques of *Mixed Precision Training* (MPT,
Micikevicius et al., 2018): FP32 master weights (section 3.1), loss scaling (3.2) and FP32 sums (3.3). The scale follows
the rule of NVIDIA's guide (NVG 2.3.2). At the end the page shows where it has rounded, and what that has lost.

tinymp computes the same numbers, bit for bit: tests/examples/test_one_page.py.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

# ---------------------------------------------------------------------- numbers: kept in FP16, computed with in FP32

ledger = defaultdict(lambda: np.zeros(2, int))  # place: how many numbers it rounded, and how many of them to zero


def widen(x):
    """FP16 to FP32: exact."""
    return x.astype(np.float32)


def store(x, place):
    """FP32 to FP16, the nearest number: the only rounding to FP16 on this page. Beyond 65,504 it gives infinity."""
    y = x.astype(np.float16)
    ledger[place] += x.size, np.count_nonzero(x) - np.count_nonzero(y)
    return y


# ------------------------------------------------------------------- the tape: what was computed, and the way back

tape = []  # (y, its inputs, the function that makes their gradients from that of y)


class Tensor:
    """An array on the tape."""

    def __init__(self, data):
        self.data = data


def backward(loss, scale):
    """The gradients of scale * loss, by tensor: `scale` times as large, so that FP16 can hold them (MPT 3.2)."""
    grads = {loss: np.float32(scale)}  # d(scale * loss) / d(loss)
    for y, inputs, gradients in reversed(tape):
        for x, dx in zip(inputs, gradients(grads.pop(y))):
            grads[x] = store(widen(grads[x]) + widen(dx), "sum of gradients") if x in grads else dx
    return grads


def linear(x, w, b):
    """y = x wᵀ + b. Products of FP16 numbers are exact in FP32, sums are FP32, only the result is rounded (MPT 3.3)."""
    y = Tensor(store(widen(x.data) @ widen(w.data).T + widen(b.data), "linear y"))

    def gradients(dy):
        dy = widen(dy)
        yield store(dy @ widen(w.data), "linear dx")
        yield store(dy.T @ widen(x.data), "linear dw")
        yield store(dy.sum(0), "linear db")

    tape.append((y, (x, w, b), gradients))
    return y


def relu(x):
    """y = max(x, 0). Nothing is rounded."""
    y = Tensor(np.maximum(x.data, 0))

    def gradients(dy):
        yield np.where(y.data > 0, dy, 0)

    tape.append((y, (x,), gradients))
    return y


def cross_entropy(x, labels):
    """The mean of -ln softmax(x)[label], in FP32 from the FP16 logits to the loss (NVG 2.3.1)."""
    rows = np.arange(len(labels))
    z = widen(x.data)
    z -= z.max(1, keepdims=True)
    total = np.exp(z).sum(1, keepdims=True)
    loss = Tensor((np.log(total[:, 0]) - z[rows, labels]).mean())

    def gradients(dy):
        dx = np.exp(z) * (1 / total)
        dx[rows, labels] -= 1
        yield store(dx * (dy / len(labels)), "cross_entropy dx")  # dy is the scale: it comes before the rounding

    tape.append((loss, (x,), gradients))
    return loss


# ------------------------------------------------------------------ training: masters, copies, and the loss scale

LEARNING_RATE, MOMENTUM, BATCH, EPOCHS = 0.05, 0.9, 32, 20
FIRST_SCALE, PATIENCE = 2.0**24, 200


class Weight(Tensor):
    """An FP32 master, which takes the updates, and `data`, its FP16 copy, which the network reads (MPT 3.1)."""

    def __init__(self, master):
        super().__init__(store(master, "weight"))
        self.master, self.momentum = master, np.zeros_like(master)

    def update(self, gradient):
        self.momentum *= MOMENTUM
        self.momentum += gradient
        self.master -= LEARNING_RATE * self.momentum
        self.data = store(self.master, "weight")


def network(random):
    """The weights and biases of two layers: from 64 pixels to 128 hidden numbers, and on to 10 digits."""
    shapes = (128, 64), (128,), (10, 128), (10,)
    return [Weight(random.uniform(-0.1, 0.1, shape).astype(np.float32)) for shape in shapes]


def logits(weights, images):
    """Ten numbers per image, of which the largest names the digit. A new tape begins here."""
    tape.clear()
    w1, b1, w2, b2 = weights
    hidden = relu(linear(Tensor(images), w1, b1))
    return linear(hidden, w2, b2)


@np.errstate(over="ignore", invalid="ignore")  # an overflow is no mistake: it says that the scale is too large
def step(weights, images, labels, scale):
    """One step: forward, backward, unscale, update or skip. Returns the loss, and whether a gradient overflowed."""
    loss = cross_entropy(logits(weights, images), labels)
    grads = backward(loss, scale)
    unscaled = [widen(grads[w]) / scale for w in weights]

    overflow = not all(np.isfinite(g).all() for g in unscaled)
    if not overflow:
        for w, g in zip(weights, unscaled):
            w.update(g)
    return loss.data, overflow


def adjust(scale, good_steps, overflow):
    """The next scale: half after an overflow, twice after PATIENCE steps in a row without one (NVG 2.3.2)."""
    if overflow:
        return scale / 2, 0
    if good_steps + 1 == PATIENCE:
        return scale * 2, 0
    return scale, good_steps + 1


def digits():
    """1797 images of 64 pixels, n / 16 each and so exact in FP16, and their labels."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        images, labels = file["uci_images"], file["uci_labels"]
    order = np.random.default_rng(0).permutation(len(images))
    return (images.reshape(-1, 64) / 16).astype(np.float16)[order], labels.astype(int)[order]


def main():
    images, labels = digits()
    random = np.random.default_rng(0)
    weights = network(random)
    scale, good_steps, skipped = FIRST_SCALE, 0, 0

    print("epoch    loss     scale  skipped  right, of 517 others")
    for epoch in range(EPOCHS):
        losses = []
        for batch in random.permutation(1280).reshape(-1, BATCH):
            loss, overflow = step(weights, images[batch], labels[batch], scale)
            scale, good_steps = adjust(scale, good_steps, overflow)
            skipped += overflow
            losses.append(loss)
        right = logits(weights, images[1280:]).data.argmax(1) == labels[1280:]
        print(f"{epoch + 1:5}  {np.mean(losses):.4f}  {scale:8.0f}  {skipped:7}  {right.mean():.1%}")
    audit(weights, images[batch], labels[batch], scale)


def audit(weights, images, labels, scale):
    """The roundings of one step, the zeros that they make at scale 1 and at `scale`, and what the masters save."""
    zeros = []
    for s in (1, scale):
        ledger.clear()
        backward(cross_entropy(logits(weights, images), labels), s)
        zeros.append({place: lost / count for place, (count, lost) in ledger.items()})

    print(f"\nrounded to FP16   numbers   zeros at scale 1   at scale {scale:.0f}")
    for place, (count, _) in ledger.items():
        print(f"{place:16} {count:8,} {zeros[0][place]:18.1%} {zeros[1][place]:16.1%}")

    w = weights[0]
    off = np.abs(w.master - w.data).max()
    lost = np.mean(store(widen(w.data) - LEARNING_RATE * w.momentum, "weight") == w.data)
    print(f"\nA copy is up to {off:.1e} off its master; without masters {lost:.0%} of the last update would be lost.")


if __name__ == "__main__":
    main()
