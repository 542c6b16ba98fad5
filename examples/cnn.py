"""Train a CNN on 5,000 digits twice, in FP32 and in mixed precision, from the same weights on the same batches.

    python -m examples.cnn

`train` shows the step that every program has, in this order: forward, loss, scale, backward, unscale, clip, update or
skip, next scale (MPT sections 3.1 and 3.2, NVG section 2.3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim

from . import datasets, measure

BATCH = 64


def network(channels: int = 1, height: int = 28, width: int = 28, classes: int = 10) -> nn.Module:
    """Two convolutions, each with batch norm, ReLU and max pooling, and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1, bias=False),  # the batch norm has a bias of its own
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def batches(images: np.ndarray, labels: np.ndarray, seed: int) -> Iterator[tuple[mp.Tensor, mp.Tensor]]:
    """Without end: all images in a new order, then again; each moved by up to two pixels, so that none comes twice."""
    dataset, random = mp.data.TensorDataset(images, labels), np.random.default_rng(seed)
    loader = mp.data.DataLoader(dataset, BATCH, shuffle=True, drop_last=True, seed=seed)
    while True:
        for some, of_them in loader:
            yield mp.from_numpy(datasets.shifted(some.numpy(), 2, random)), of_them


def train(
    policy: mp.Policy,
    scaler: optim.LossScaler,
    *,
    seed: int = 0,
    steps: int = 1240,
    device: str = "cpu",
    lr: float = 2e-3,
    data: str | None = None,
) -> dict[str, Any]:
    """One training; the seed fixes split, weights and batches, whatever the policy. data: a folder of MNIST's files."""
    images, labels, test_images, test_labels = datasets.mnist(data, seed)
    mp.manual_seed(seed)
    classes = int(max(labels.max(), test_labels.max())) + 1
    model = policy.cast(network(*images.shape[1:], classes)).to(device)  # FP16 copies, FP32 masters
    optimizer = optim.Adam(model.parameters(), lr=lr)
    schedule = optim.CosineAnnealingLR(optimizer, T_max=steps)
    run = measure.Run(policy.name)

    @mp.capture  # on a GPU a CUDA graph of the step is replayed; on a CPU this only calls it
    def step(x: mp.Tensor, y: mp.Tensor) -> tuple[mp.Tensor, optim.StepResult]:
        loss = ops.cross_entropy(model(x), y)  # forward in FP16, the loss in FP32
        scaler.scale(loss).backward()  # FP16 gradients, all of them S times as large
        scaler.unscale_(optimizer)  # their own size again, in FP32
        optim.clip_grad_norm_(model.parameters(), 1.0)
        result = scaler.step(optimizer)  # updates the masters and rounds the copies, or skips after an overflow
        scaler.update()  # the next S
        optimizer.zero_grad()
        return loss, result

    with mp.use(policy), run:
        for some, of_them in run.steps(steps, batches(images, labels, seed)):
            loss, result = step(policy.cast(some).to(device), of_them.to(device))
            schedule.step(result)  # the rate does not fall in a step that was skipped
            run.note(loss, result)
    with mp.use(policy):
        right = accuracy(model, policy.cast(mp.tensor(test_images)).to(device), test_labels)
    return run.found(scaler, BATCH, higher_is_better=True, accuracy=right)


def accuracy(model: nn.Module, images: mp.Tensor, labels: np.ndarray) -> float:
    """The share of images whose largest logit is at their label."""
    model.eval()
    with mp.no_grad():
        parts = [model(images[i : i + 250]).argmax(1).numpy() for i in range(0, len(labels), 250)]
    return float((np.concatenate(parts) == labels).mean())


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Both trainings, a table and a picture."""
    return measure.main(train, __doc__, {"test accuracy": "{accuracy:.2%}"}, "images", arguments)


if __name__ == "__main__":
    main()
