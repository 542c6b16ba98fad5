"""Pickles and a checkpoint as an earlier version wrote them, for test_earlier.py, in earlier.xz.

In a checkout of that commit (0054144): `python .../tests/earlier/earlier.py .../tests/earlier/earlier.xz`
"""

import lzma
import pickle
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, "")  # the checkout's own package
import tinymp as mp
from tinymp import data, nn, ops, optim

FEW = {  # the smallest arguments of the layers that need some
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool2d PixelShuffle LocalResponseNorm ZeroPad2d": (2,),
    "AvgPool1d AvgPool2d MaxPool1d MaxPool2d ReflectionPad1d ReflectionPad2d ReplicationPad1d ReplicationPad2d": (2,),
    "BatchNorm1d BatchNorm2d InstanceNorm1d InstanceNorm2d LayerNorm RMSNorm": (2,),
    "Conv1d Conv2d ConvTranspose1d ConvTranspose2d": (1, 2, 1),
    "BahdanauAttention SampledSoftmaxLoss": (2, 3, 2),
    "Embedding EmbeddingBag GRU GRUCell LSTM LSTMCell RNN RNNCell Linear GroupNorm LuongAttention": (2, 2),
    "MultiheadAttention RowConv": (2, 1),
    "PositionalEncoding": (2, 4),
    "TransformerDecoderLayer TransformerEncoderLayer": (2, 1, 2),
    "Unflatten": (1, (1, 2)),
}
MADE = {name: arguments for names, arguments in FEW.items() for name in names.split()}


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def schedules(optimizer):
    return {
        "CosineAnnealingLR": optim.CosineAnnealingLR(optimizer, 9),
        "LinearLR": optim.LinearLR(optimizer),
        "MultiStepLR": optim.MultiStepLR(optimizer, [2, 4]),
        "OneCycleLR": optim.OneCycleLR(optimizer, 1.0, 9),
        "ReduceLROnPlateau": optim.ReduceLROnPlateau(optimizer),
        "StepLR": optim.StepLR(optimizer, 2),
    }


def steps(model, optimizer, scaler, n):
    """n steps on made-up batches; the losses."""
    losses, rng = [], np.random.default_rng(1)
    with mp.use(mp.MIXED):
        for _ in range(n):
            x = mp.MIXED.cast(mp.tensor(rng.standard_normal((8, 4)).astype("float32")))
            loss = ops.cross_entropy(model(x), mp.tensor(np.arange(8) % 3))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def layers():
    """One of each public layer of tinymp.nn that is made of numbers alone."""
    for name in dir(nn):
        cls = getattr(nn, name)
        abstract = {"Module", "TransformerDecoder", "TransformerEncoder", "Upsample"}
        if isinstance(cls, type) and issubclass(cls, nn.Module) and name not in abstract:
            yield name, cls(*MADE.get(name, ()))


def main():
    mp.manual_seed(0)
    objects = {f"nn.{name}": mp.MIXED.cast(layer) for name, layer in layers()}
    states = {name: {k: np.array(v) for k, v in x.state_dict().items()} for name, x in objects.items()}
    policies = "FP32 MIXED BF16 TF32 NO_MASTER STOCHASTIC_ROUNDING FP16_ACCUMULATE FP16_REDUCTIONS PURE_FP16 FP16_VOLTA"
    objects |= {f"policy.{name}": getattr(mp, name) for name in [*policies.split(), "FP8", "FP8_HOPPER"]}
    for rule in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop"):
        model = mp.MIXED.cast(network())
        training = [model, getattr(optim, rule)(model.parameters(), lr=0.1), optim.DynamicLossScaler()]
        steps(*training, 3)
        objects[f"training.{rule}"] = training
    for name, scaler in {"None": optim.NoLossScaler(), "Static": optim.StaticLossScaler(8.0)}.items():
        objects[f"scaler.{name}"] = scaler
    objects["scaler.Observed"] = optim.ObservedLossScaler()
    for name in schedules(optim.SGD(network().parameters(), lr=0.1)):
        model = network()
        objects[f"schedule.{name}"] = schedules(optim.SGD(model.parameters(), lr=0.1))[name]
    dataset = data.TensorDataset(np.arange(6.0), np.arange(6))
    objects |= {"data.TensorDataset": dataset, "data.Subset": data.Subset(dataset, [1, 2])}
    objects["tensor"] = mp.tensor([1.0, 2.0], requires_grad=True)
    objects["SparseRows"] = mp.SparseRows(np.array([1]), np.ones((1, 2), "float32"), (3, 2))
    objects["StepResult"] = optim.StepResult.APPLIED
    model, optimizer, scaler = objects["training.Adam"]
    held = {"pickles": {name: pickle.dumps(x) for name, x in objects.items()}, "states": states}
    with TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        mp.save(path, model=model, optimizer=optimizer, scaler=scaler, schedule=optim.CosineAnnealingLR(optimizer, 9))
        held["checkpoint"] = path.read_bytes()
    held["losses"] = steps(model, optimizer, scaler, 3)
    Path(sys.argv[1]).write_bytes(lzma.compress(pickle.dumps(held)))


if __name__ == "__main__":
    main()
