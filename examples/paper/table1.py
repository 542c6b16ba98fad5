"""MPT table 1: six CNNs that classify images, in FP32, in mixed precision, and in mixed precision with a loss scale."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tinymp as mp
from tinymp import data, nn, optim

from .. import cnn, datasets, paper
from . import trials


class Network(NamedTuple):
    """A row: the network, and what the paper reports, per cent."""

    make: Callable[..., nn.Module]
    paper: dict[str, float]
    label_smoothing: float = 0.0


SETTINGS = trials.settings("none", "dynamic")
TITLE = __doc__
MEASURE, FACTOR = "Top-1 accuracy, %", 100
SOURCES, UNIT = ("mnist",), "images"
BATCH, STEPS = 32, 250


def _paper(fp32: float, mixed: float) -> dict[str, float]:
    return {"FP32": fp32, "mixed, not scaled": mixed}  # the paper's needed no scaling (section 4.1)


NETWORKS = {
    "AlexNet": Network(paper.AlexNet, _paper(56.77, 56.93)),
    "VGG-D": Network(paper.VGG, _paper(65.40, 65.43)),
    "GoogLeNet": Network(paper.GoogLeNet, _paper(68.33, 68.43)),
    "Inception v2": Network(paper.InceptionV2, _paper(70.03, 70.02)),
    "Inception v3": Network(paper.InceptionV3, _paper(73.85, 74.13), 0.1),  # section 7 of Szegedy et al., 2016
    "ResNet-50": Network(paper.PreActResNet, _paper(75.92, 76.04)),
}


def label(source: str) -> str:
    """Its name in the table."""
    return {"mnist": "MNIST, 5,000 digits", "digits": "scikit-learn's digits"}.get(source) or Path(source).name


def run(
    name: str, source: str, setting: trials.Setting, seed: int, steps: int, batch: int, device: str
) -> trials.Trial:
    """Train one network under one setting. The seed fixes weights, order and shifts, whatever the setting."""
    network, policy = NETWORKS[name], setting.policy
    mp.manual_seed(seed)
    train_x, train_y, test_x, test_y = datasets.named(source, seed)
    if batch > len(train_x):
        raise ValueError(f"table1: expected a batch of at most {len(train_x)} images, all that there are, got {batch}")
    classes = int(max(train_y.max(), test_y.max())) + 1
    model = policy.cast(network.make(classes, in_channels=train_x.shape[1], scale=paper.SMALL)).to(device)
    loader = data.DataLoader(data.TensorDataset(train_x, train_y), batch, shuffle=True, drop_last=True, seed=seed)
    moves = np.random.default_rng(seed)

    def batches() -> Iterator[tuple]:
        for images, labels in itertools.chain.from_iterable(itertools.repeat(loader)):
            images = mp.from_numpy(datasets.shifted(images.numpy(), 2, moves))
            yield policy.cast(images).to(device), labels.to(device)

    def loss_of(model: nn.Module, batch: tuple) -> mp.Tensor:
        images, labels = batch
        return paper.loss(model(images), labels, label_smoothing=network.label_smoothing)

    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    trial = trials.train(
        model, policy, setting.scaler(), batches(), loss_of, steps, optimizer=optimizer, clip=1.0, batch=batch
    )
    with mp.use(policy):
        trial.score = cnn.accuracy(model, policy.cast(mp.tensor(test_x)).to(device), test_y)
    return trial
