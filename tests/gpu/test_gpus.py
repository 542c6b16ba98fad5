"""The base and the fast paths on older GPUs than an H100, with fewer multiprocessors and less shared memory.

The stand-in plays them: it refuses what a block of theirs may not ask for.
"""

import numpy as np
import pytest

import tinymp as mp
from cuda_on_cpu import device
from oracle import randn
from tinymp import nn, ops


def network():
    """Convolutions with and without a stride, norms, attention, pools, and a recurrent layer."""
    mp.manual_seed(0)
    images = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(2)),
    )
    return nn.ModuleList([images, nn.LSTM(6, 16, batch_first=True), nn.LayerNorm(16), nn.Linear(16, 10)])


def gradients(place, x, labels):
    with mp.device(place):
        net = mp.MIXED.cast(network())
        images, lstm, norm, head = net
        y = lstm(images(mp.MIXED.cast(mp.tensor(x)))[..., :6])[0]
        y = norm(ops.scaled_dot_product_attention(y, y, y))
        loss = ops.cross_entropy(head(y.mean(1)), mp.tensor(labels))
        mp.optim.StaticLossScaler(128.0).scale(loss).backward()
    return [loss.item()] + [p.grad.numpy().astype(np.float64) / 128 for p in net.parameters()]


@pytest.mark.parametrize("name", device.GPUS)
def test_a_network_has_the_gradients_of_the_cpu(gpu, name):
    if not hasattr(gpu.xp, "launched"):
        pytest.skip("a GPU is what it is")
    x, labels = randn(4, 3, 12, 12).astype("float32"), np.arange(4)
    expected = gradients("cpu", x, labels)
    with device.playing(name):
        found = gradients("gpu", x, labels)
    assert abs(found[0] - expected[0]) <= 2e-3
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert np.abs(one - other).max() <= 0.02 * np.abs(other).max() + 1e-6
