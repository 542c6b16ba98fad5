"""What a training step launches beside tinymp's own kernels and the products of cuBLAS.

CuPy's operations are generic: one launch for each, which goes over all of its operands' memory, writes C-contiguous
results whatever the order of the operands, and knows FP32 copies instead of registers. On activations that is what a
step must not do; a few numbers cost a launch.
"""

import gc
from functools import partial

import numpy as np
import pytest

import tinymp as mp
from benchmarks import models
from examples import mnist
from tinymp import nn, ops, optim

MOST = 5


def foreign_launches(gpu, model, x):
    """What CuPy itself did in a captured step of mixed-precision training, and who asked for it."""
    if not hasattr(gpu.xp, "foreign"):
        pytest.skip("only the stand-in tells what CuPy launches")
    gc.collect()  # a scaler that an earlier test left in the middle of an iteration watches until it is collected
    mp.manual_seed(0)
    model = mp.MIXED.cast(model).to("gpu")
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.1, momentum=0.9), optim.DynamicLossScaler()
    found = []

    def step(x, labels):
        before = len(gpu.xp.foreign)
        loss = ops.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found[:] = gpu.xp.foreign[before:]
        return loss

    step = mp.capture(step, warmup=1)
    for _ in range(2):
        loss = step(mp.MIXED.cast(mp.tensor(x)).to("gpu"), mp.tensor(np.arange(len(x))).to("gpu"))
    assert np.isfinite(loss.item())
    return found


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (partial(models.resnet, nn, width=2), (2, 3, 4, 4)),  # ResNet-20
        (partial(mnist.cnn, 1, 8, 8, 10), (2, 1, 8, 8)),
    ],
    ids=["ResNet-20", "MNIST CNN"],
)
def test_a_step_is_tinymps_own(gpu, make, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    found = foreign_launches(gpu, make(), x)
    assert len(found) <= MOST, "\n" + "\n".join(found)
