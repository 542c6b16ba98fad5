"""An entry for `tinymp course race`: no convolution, in FP32."""

import tinymp as mp
from tinymp import nn, optim

policy = mp.FP32
batch = 128


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def optimizer(parameters):
    return optim.SGD(parameters, lr=0.05, momentum=0.9)


def schedule(sgd):
    return optim.CosineAnnealingLR(sgd, T_max=1000)
