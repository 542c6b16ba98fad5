"""The steps that benchmarks/cpu.py times, in tinymp and in PyTorch: the same layers, data and optimizer."""

from __future__ import annotations

import functools
import importlib.metadata
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import tinymp as mp
from examples import dcgan, paper
from tinymp import fast_path, nn, ops, optim

from . import models

Step = Callable[[], Any]
rng = np.random.default_rng(0)
DIGITS, LABELS = rng.standard_normal((64, 1, 28, 28), np.float32), rng.integers(0, 10, 64)
VOCABULARY, WORDS = 64, rng.integers(0, 64, (2, 64, 32))  # 64 steps, batch 32: the words, and those that follow them
CHARACTERS = rng.integers(0, 77, (2, 16, 128))  # windows of 128, batch 16, and the characters that follow
FACES = rng.standard_normal((32, 1, 64, 64), np.float32)
PICTURES, CLASSES = rng.standard_normal((32, 3, 32, 32), np.float32), rng.integers(0, 10, 32)
WIDTH = 24  # of the DCGAN, the example's default


@functools.cache
def peer() -> str | None:
    """PyTorch's version; None without it. Its functions import it themselves: it is not in the process of a rival."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def in_torch(model: Iterable[nn.Module]) -> Any:
    """The same layers in PyTorch: the lines of tinymp's repr are calls that either library understands."""
    import torch

    def converted(layer: nn.Module) -> Any:
        if isinstance(layer, nn.Sequential):
            return in_torch(layer)
        return eval(f"{type(layer).__name__}({layer.extra_repr()})", vars(torch.nn))

    return torch.nn.Sequential(*map(converted, model))


def _torch_step(model: Any, loss: Callable[[], Any], autocast: str, device: str = "cpu") -> Step:
    from . import peers  # here, as it imports PyTorch

    return peers.Step(loss, peers.torch.optim.Adam(model.parameters()), autocast, device)


# Networks that speak the names of either library, and their batches: 64 digits; 64 words of 32 texts and the words
# that follow them, for 2 LSTM layers of 256; 32 pictures of 32 x 32
CLASSIFIERS: dict[str, tuple[Callable[[Any], Any], np.ndarray, np.ndarray]] = {
    "mnist_cnn": (models.cnn, DIGITS, LABELS),
    "lstm": (functools.partial(models.language_model, vocabulary=VOCABULARY), WORDS[0], WORDS[1].reshape(-1)),
    "resnet": (models.resnet, PICTURES, CLASSES),
}


def classifier(name: str, policy: mp.Policy) -> Step:
    """A step of one of CLASSIFIERS."""
    network, inputs, labels = CLASSIFIERS[name]
    mp.manual_seed(0)
    model = policy.cast(network(nn))
    x, target = policy.cast(mp.tensor(inputs)), mp.tensor(labels)
    return models.training_step(model, lambda: ops.cross_entropy(model(x), target), policy)


def torch_classifier(name: str, autocast: str = "") -> Step:
    """The same in FP32, or under PyTorch's autocast to "float16" or "bfloat16"; so for the other networks."""
    import torch

    network, inputs, labels = CLASSIFIERS[name]
    model, x, target = network(torch.nn), torch.from_numpy(inputs), torch.from_numpy(labels)
    return _torch_step(model, lambda: torch.nn.functional.cross_entropy(model(x), target), autocast)


def gpt(policy: mp.Policy) -> Step:
    """A step of the GPT example: 4 blocks, 128 wide, 4 heads, 77 characters; windows of 128, batch 16, no dropout."""
    mp.manual_seed(0)
    model = policy.cast(paper.GPT(77, 128, 128, 4, 4, dropout=0.0))
    characters, following = mp.tensor(CHARACTERS[0]), mp.tensor(CHARACTERS[1].reshape(-1))
    return models.training_step(model, lambda: ops.cross_entropy(model(characters).flatten(0, 1), following), policy)


def torch_gpt(autocast: str = "", device: str = "cpu") -> Step:
    """The same, with PyTorch's fused attention."""
    import torch

    m = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(77, 128), "position": torch.nn.Embedding(128, 128)})
    gelu = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    block = functools.partial(torch.nn.TransformerEncoderLayer, 128, 4, 512, 0.0, gelu)
    m["blocks"] = torch.nn.ModuleList([block(batch_first=True, norm_first=True) for _ in range(4)])
    m["norm"] = torch.nn.LayerNorm(128)
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(128).to(device)
    characters, following = (torch.from_numpy(x).to(device) for x in (CHARACTERS[0], CHARACTERS[1].reshape(-1)))
    m.to(device)

    def loss() -> Any:
        x = m["embedding"](characters) + m["position"].weight
        for layer in m["blocks"]:
            x = layer(x, hidden, is_causal=True)
        scores = m["norm"](x) @ m["embedding"].weight.T
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), following)

    return _torch_step(m, loss, autocast, device)


def gan(policy: mp.Policy, pictures: Any = FACES, width: int = WIDTH) -> Step:
    """An iteration of the DCGAN example, both networks, by default 64 x 64 and batch 32; it returns the loss of one."""
    mp.manual_seed(0)
    g, d = (policy.cast(model) for model in dcgan.networks(pictures.shape[-1], width))
    g_optimizer, d_optimizer = (optim.Adam(model.parameters(), 2e-4, betas=(0.5, 0.999)) for model in (g, d))
    scaler = optim.NoLossScaler() if policy is mp.FP32 else optim.DynamicLossScaler()
    faces, noise = policy.cast(mp.tensor(pictures)), policy.cast(mp.tensor(_noise(pictures)))

    def step() -> mp.Tensor:
        with mp.use(policy):
            loss, *_ = dcgan.step((g, d), (g_optimizer, d_optimizer), scaler, faces, noise)
            g_optimizer.zero_grad()
            d_optimizer.zero_grad()
        return loss

    return step


def _noise(pictures: Any) -> np.ndarray:
    """Input of the generator for as many pictures."""
    return np.random.default_rng(1).standard_normal((len(pictures), dcgan.LATENT, 1, 1), np.float32)


def torch_gan(pictures: Any = None, width: int = WIDTH, autocast: str = "") -> Step:
    """The same in PyTorch, in the same order, on the device of the pictures; for FP16 with a GradScaler."""
    import torch

    from . import peers

    faces = torch.from_numpy(FACES) if pictures is None else pictures
    g, d = (in_torch(model).to(faces.device) for model in dcgan.networks(faces.shape[-1], width))
    g_optimizer, d_optimizer = (torch.optim.Adam(model.parameters(), 2e-4, betas=(0.5, 0.999)) for model in (g, d))
    noise = torch.from_numpy(_noise(faces)).to(faces.device)
    scaler = torch.amp.GradScaler(faces.device.type, enabled=autocast == "float16")

    def loss_of(logits: Any, label: float) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))

    def step() -> None:
        with peers.autocast(autocast, faces.device.type):
            fake = g(noise)
            d_loss = loss_of(d(faces), dcgan.REAL) + loss_of(d(fake.detach()), 0.0)
        scaler.scale(d_loss).backward()
        scaler.step(d_optimizer)
        d.requires_grad_(False)
        with peers.autocast(autocast, faces.device.type):
            g_loss = loss_of(d(fake), 1.0)
        scaler.scale(g_loss).backward()
        d.requires_grad_(True)
        scaler.step(g_optimizer)
        scaler.update()
        g_optimizer.zero_grad()
        d_optimizer.zero_grad()

    return step


NETWORKS: dict[str, tuple[Callable[..., Step], Callable[..., Step]]] = {  # in tinymp, and in PyTorch
    **{n: (functools.partial(classifier, n), functools.partial(torch_classifier, n)) for n in CLASSIFIERS},
    "gpt": (gpt, torch_gpt),
    "gan": (gan, torch_gan),
}
AUDITS: dict[str, dict[str, Any]] = {"audited": {}, "with shadow": {"shadow": True}, "with trace": {}}
_open: list[Any] = []  # the folder of a trace, which goes with the process
AUTOCAST = {"PyTorch FP32": "", "PyTorch FP16": "float16", "PyTorch BF16": "bfloat16"}


def make(network: str, kind: str) -> Step:
    """The step of one of NETWORKS as "FP32", "mixed", "definitions", one of AUTOCAST, or mixed under one of AUDITS.

    "definitions" is FP32 without fast paths, which it turns off for the whole process; an audit listens to all of it.
    PyTorch's FP16 LSTM does not run on a CPU.
    """
    own, theirs = NETWORKS[network]
    if kind in AUDITS:
        _open.append(tempfile.TemporaryDirectory())
        mp.audit(**AUDITS[kind] | ({"trace": _open[0].name} if kind == "with trace" else {})).__enter__()
    if kind in AUTOCAST:
        return theirs(autocast=AUTOCAST[kind])
    if kind == "definitions":
        fast_path.enabled.clear()
    return own(mp.FP32 if kind in ("FP32", "definitions") else mp.MIXED)


def product(dtype: str) -> Step:
    """A product of matrices of 1024 x 1024: in "float16" tinymp's, with one rounding, in "float32" NumPy's own."""
    a, b = np.random.default_rng(0).standard_normal((2, 1024, 1024), np.float32)
    if dtype == "float32":
        return lambda: a @ b
    x, y = mp.tensor(a).half(), mp.tensor(b).half()
    return lambda: ops.matmul(x, y)


CHAIN = 500


def tiny(dtype: str) -> Step:
    """Forward and backward of CHAIN sums of one number, recorded."""
    x, one = mp.tensor([1.0], dtype=dtype, requires_grad=True), mp.tensor([1.0], dtype=dtype)

    def step() -> None:
        y = x
        for _ in range(CHAIN):
            y = ops.add(y, one)
        y.backward()

    return step
