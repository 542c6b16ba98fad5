"""The steps that benchmarks/cpu.py times, in tinymp and in PyTorch: the same layers, data and optimizer."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import tinymp as mp
from examples import cnn, dcgan, paper
from examples.paper import table2
from tinymp import nn, ops, optim

from . import models

Step = Callable[[], Any]
rng = np.random.default_rng(0)
DIGITS, LABELS = rng.standard_normal((64, 1, 28, 28), np.float32), rng.integers(0, 10, 64)
VOCABULARY, WORDS = 64, rng.integers(0, 64, (2, 64, 32))  # 64 steps, batch 32: the words, and those that follow them
SENTENCES = rng.integers(4, 4000, (2, 21, 32))  # 20 words, batch 32, and their translations with a first word
CHARACTERS = rng.integers(0, 77, (2, 16, 128))  # windows of 128, batch 16, and the characters that follow
FACES = rng.standard_normal((32, 1, 64, 64), np.float32)
PICTURES, CLASSES = rng.standard_normal((32, 3, 32, 32), np.float32), rng.integers(0, 10, 32)
SCENES = rng.standard_normal((8, 3, 128, 128), np.float32)
OBJECTS = [
    {"boxes": np.array([[9, 8, 40, 51], [60, 70, 85, 110]], np.float32), "labels": np.array([i % 10 + 1, 3])}
    for i in range(8)
]
SPOKEN = rng.standard_normal((100, 32, 29), np.float32)  # frames, utterances, classes
TRANSCRIPTS = rng.integers(1, 29, (32, 40)), np.full(32, 100), rng.integers(20, 41, 32)  # and the lengths of both
PHOTOGRAPH = rng.standard_normal((1, 3, 224, 224), np.float32)
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


def _step(model: nn.Module, loss: Callable[[], mp.Tensor], policy: mp.Policy, scaler: optim.LossScaler) -> Step:
    optimizer = optim.Adam(model.parameters())

    def step() -> None:
        with mp.use(policy):
            scaler.scale(loss()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return step


def _autocast(dtype: str, device: str = "cpu") -> Any:
    """PyTorch's autocast to "float16" or "bfloat16"; for "" none."""
    import torch

    return torch.autocast(device, dtype=getattr(torch, dtype or "bfloat16"), enabled=bool(dtype))


def _torch_step(model: Any, loss: Callable[[], Any], autocast: str) -> Step:
    import torch

    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        with _autocast(autocast):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mnist_cnn(policy: mp.Policy, scaler: optim.LossScaler) -> Step:
    """A step of the MNIST example, batch 64."""
    mp.manual_seed(0)
    model = policy.cast(cnn.network(*DIGITS.shape[1:], classes=10))
    images, labels = policy.cast(mp.tensor(DIGITS)), mp.tensor(LABELS)
    return _step(model, lambda: ops.cross_entropy(model(images), labels), policy, scaler)


def torch_mnist_cnn(autocast: str = "") -> Step:
    """The same in FP32, or under PyTorch's autocast to "float16" or "bfloat16"; so for the other networks."""
    import torch

    model = in_torch(cnn.network(*DIGITS.shape[1:], classes=10))
    images, labels = torch.from_numpy(DIGITS), torch.from_numpy(LABELS)
    return _torch_step(model, lambda: torch.nn.functional.cross_entropy(model(images), labels), autocast)


def lstm(policy: mp.Policy, scaler: optim.LossScaler) -> Step:
    """A step of a language model: embedding 128, 2 LSTM layers of 256, 64 words; 64 steps, batch 32."""
    mp.manual_seed(0)
    model = policy.cast(models.language_model(nn, VOCABULARY))
    words, following = mp.tensor(WORDS[0]), mp.tensor(WORDS[1].reshape(-1))
    return _step(model, lambda: ops.cross_entropy(model(words), following), policy, scaler)


def torch_lstm(autocast: str = "") -> Step:
    """The same in PyTorch."""
    import torch

    model = models.language_model(torch.nn, VOCABULARY)
    words, following = torch.from_numpy(WORDS[0]), torch.from_numpy(WORDS[1].reshape(-1))
    return _torch_step(model, lambda: torch.nn.functional.cross_entropy(model(words), following), autocast)


def translation(policy: mp.Policy, scaler: optim.LossScaler) -> Step:
    """A step of a translator: 2 layers of 256 on either side, attention, 4,000 words; 20 words, batch 32."""
    mp.manual_seed(0)
    model = policy.cast(paper.NMT(4000, 4000, 256, 2, attention="luong"))
    source, target = mp.tensor(SENTENCES[0][1:]), mp.tensor(SENTENCES[1])
    return _step(model, lambda: model.loss(source, None, target), policy, scaler)


def torch_translation(autocast: str = "") -> Step:
    """The same in PyTorch."""
    import torch

    own = paper.NMT(4000, 4000, 256, 2, attention="luong")
    parts = ("source", "first", "encoder", "target", "decoder", "upper", "output")
    m = torch.nn.ModuleDict({name: in_torch([getattr(own, name)])[0] for name in parts})
    m["proj"] = in_torch([own.attention.proj])[0]
    source, target = map(torch.from_numpy, (SENTENCES[0][1:], SENTENCES[1]))

    def loss() -> Any:
        x = m["source"](source)
        y, (h, c) = m["first"](x)
        y, (more_h, more_c) = m["encoder"](y)
        memory = x + y
        y, _ = m["decoder"](m["target"](target[:-1]), (h[1:], c[1:]))
        scores = m["proj"](y.transpose(0, 1)) @ memory.permute(1, 2, 0)
        context = (scores.softmax(2) @ memory.transpose(0, 1)).transpose(0, 1)
        y, _ = m["upper"](torch.cat([y, context], 2), (more_h, more_c))
        return torch.nn.functional.cross_entropy(m["output"](y + context).flatten(0, 1), target[1:].flatten())

    return _torch_step(m, loss, autocast)


def gpt(policy: mp.Policy, scaler: optim.LossScaler) -> Step:
    """A step of the GPT example: 4 blocks, 128 wide, 4 heads, 77 characters; windows of 128, batch 16, no dropout."""
    mp.manual_seed(0)
    model = policy.cast(paper.GPT(77, 128, 128, 4, 4, dropout=0.0))
    characters, following = mp.tensor(CHARACTERS[0]), mp.tensor(CHARACTERS[1].reshape(-1))
    return _step(model, lambda: ops.cross_entropy(model(characters).flatten(0, 1), following), policy, scaler)


def torch_gpt(autocast: str = "") -> Step:
    """The same, with PyTorch's fused attention."""
    import torch
    from torch.nn import functional

    m = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(77, 128), "position": torch.nn.Embedding(128, 128)})
    for i in range(4):
        for name, rows in (("qkv", 384), ("out", 128), ("up", 512)):
            m[f"{name}{i}"] = torch.nn.Linear(128, rows)
        m[f"down{i}"] = torch.nn.Linear(512, 128)
    for i in range(9):
        m[f"norm{i}"] = torch.nn.LayerNorm(128)
    characters, following = torch.from_numpy(CHARACTERS[0]), torch.from_numpy(CHARACTERS[1].reshape(-1))

    def loss() -> Any:
        x = m["embedding"](characters) + m["position"].weight
        for i in range(4):
            parts = m[f"qkv{i}"](m[f"norm{2 * i}"](x)).unflatten(-1, (3, 4, 32)).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + m[f"out{i}"](y.transpose(1, 2).flatten(2))
            hidden = functional.gelu(m[f"up{i}"](m[f"norm{2 * i + 1}"](x)), approximate="tanh")
            x = x + m[f"down{i}"](hidden)
        return functional.cross_entropy((m["norm8"](x) @ m["embedding"].weight.T).flatten(0, 1), following)

    return _torch_step(m, loss, autocast)


def gan(policy: mp.Policy, scaler: optim.LossScaler, pictures: Any = FACES, width: int = WIDTH) -> Step:
    """An iteration of the DCGAN example, both networks, by default 64 x 64 and batch 32; it returns the loss of one."""
    mp.manual_seed(0)
    g, d = (policy.cast(model) for model in dcgan.networks(pictures.shape[-1], width))
    g_optimizer, d_optimizer = (optim.Adam(model.parameters(), 2e-4, betas=(0.5, 0.999)) for model in (g, d))
    faces, noise = policy.cast(mp.tensor(pictures)), policy.cast(mp.tensor(_noise(pictures)))

    def step() -> mp.Tensor:
        with mp.use(policy):
            loss, *_ = dcgan.step((g, d), (g_optimizer, d_optimizer), scaler, faces, noise)
            g_optimizer.zero_grad()
            d_optimizer.zero_grad()
        return loss

    return step


def _noise(pictures: Any) -> np.ndarray:
    """What the generator makes as many pictures of."""
    return np.random.default_rng(1).standard_normal((len(pictures), dcgan.LATENT, 1, 1), np.float32)


def torch_gan(pictures: Any = None, width: int = WIDTH, autocast: str = "") -> Step:
    """The same in PyTorch, in the same order, on the device of the pictures; for FP16 with a GradScaler."""
    import torch

    faces = torch.from_numpy(FACES) if pictures is None else pictures
    g, d = (in_torch(model).to(faces.device) for model in dcgan.networks(faces.shape[-1], width))
    g_optimizer, d_optimizer = (torch.optim.Adam(model.parameters(), 2e-4, betas=(0.5, 0.999)) for model in (g, d))
    noise = torch.from_numpy(_noise(faces)).to(faces.device)
    scaler = torch.amp.GradScaler(faces.device.type, enabled=autocast == "float16")

    def loss_of(logits: Any, label: float) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))

    def step() -> None:
        with _autocast(autocast, faces.device.type):
            fake = g(noise)
            d_loss = loss_of(d(faces), dcgan.REAL) + loss_of(d(fake.detach()), 0.0)
        scaler.scale(d_loss).backward()
        scaler.step(d_optimizer)
        d.requires_grad_(False)
        with _autocast(autocast, faces.device.type):
            g_loss = loss_of(d(fake), 1.0)
        scaler.scale(g_loss).backward()
        d.requires_grad_(True)
        scaler.step(g_optimizer)
        scaler.update()
        g_optimizer.zero_grad()
        d_optimizer.zero_grad()

    return step


def resnet(policy: mp.Policy, scaler: optim.LossScaler) -> Step:
    """A step of the ResNet with 20 layers for images of 32 x 32, batch 32."""
    mp.manual_seed(0)
    model = policy.cast(models.resnet(nn))
    images, labels = policy.cast(mp.tensor(PICTURES)), mp.tensor(CLASSES)
    return _step(model, lambda: ops.cross_entropy(model(images), labels), policy, scaler)


def torch_resnet(autocast: str = "") -> Step:
    """The same in PyTorch."""
    import torch

    model = models.resnet(torch.nn)
    images, labels = torch.from_numpy(PICTURES), torch.from_numpy(CLASSES)
    return _torch_step(model, lambda: torch.nn.functional.cross_entropy(model(images), labels), autocast)


def evaluation(policy: mp.Policy, _: optim.LossScaler) -> Step:
    """The scores of one image of 224 x 224 by a ResNet-50."""
    mp.manual_seed(0)
    model, image = policy.cast(models.resnet50(nn)).eval(), policy.cast(mp.tensor(PHOTOGRAPH))

    def step() -> mp.Tensor:
        with mp.use(policy), mp.no_grad():
            return model(image)

    return step


def torch_evaluation(autocast: str = "") -> Step:
    """The same in PyTorch."""
    import torch

    model, image = models.resnet50(torch.nn).eval(), torch.from_numpy(PHOTOGRAPH)

    def step() -> Any:
        with torch.no_grad(), _autocast(autocast):
            return model(image)

    return step


def ssd(policy: mp.Policy, scaler: optim.LossScaler) -> Step:
    """A step of the SSD of examples/table2.py on scenes of 128 x 128, batch 8: matching, losses and update, too."""
    mp.manual_seed(0)
    model, images = policy.cast(table2.ssd()), policy.cast(mp.tensor(SCENES))
    return _step(model, lambda: sum(model(images, OBJECTS).values()), policy, scaler)


def torch_ssd(autocast: str = "") -> Step:
    """The same. Which default box shall find which object, tinymp decides on the host in either."""
    import torch
    from torch.nn import functional

    from examples.paper.detection import Objects
    from examples.paper.ssd import NEGATIVES

    own = table2.ssd()
    objects = [Objects(**target) for target in OBJECTS]
    images = torch.from_numpy(SCENES)
    first, *more = (in_torch(part) for part in (own.backbone.features, *own.backbone.extra))
    classes, shifts = (
        [in_torch([layer])[0] for layer in head.module_list]
        for head in (own.head.classification_head, own.head.regression_head)
    )
    model = torch.nn.ModuleList([first, *more, *classes, *shifts])
    model.register_parameter("scale", torch.nn.Parameter(torch.full((own.backbone.channels[0], 1, 1), 20.0)))

    def loss() -> Any:
        x = first(images)
        maps = [functional.normalize(x) * model.scale]
        for part in more:
            maps.append(x := part(x))
        logits, codes = (
            torch.cat([layer(x).permute(0, 2, 3, 1).reshape(len(x), -1, k) for layer, x in zip(head, maps)], 1)
            for head, k in ((classes, own.num_classes), (shifts, 4))
        )
        labels, wanted = map(torch.from_numpy, own.matched(objects))
        positive = labels > 0
        shift = functional.smooth_l1_loss(codes[positive], wanted, reduction="sum")
        each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        hardest = each.detach().masked_fill(positive, -1.0).argsort(1, descending=True).argsort(1)
        learns = positive | (hardest < NEGATIVES * positive.sum(1, keepdim=True))
        return (shift + each[learns].sum()) / positive.sum()

    return _torch_step(model, loss, autocast)


NETWORKS: dict[str, tuple[Callable[..., Step], Callable[..., Step]]] = {  # in tinymp, and in PyTorch
    "mnist_cnn": (mnist_cnn, torch_mnist_cnn),
    "lstm": (lstm, torch_lstm),
    "translation": (translation, torch_translation),
    "gpt": (gpt, torch_gpt),
    "gan": (gan, torch_gan),
    "resnet": (resnet, torch_resnet),
    "evaluation": (evaluation, torch_evaluation),
    "ssd": (ssd, torch_ssd),
}


def ctc() -> Step:
    """ctc_loss of 32 utterances, forward and backward, in FP32."""
    x, targets = ops.log_softmax(mp.tensor(SPOKEN), -1).detach().requires_grad_(), mp.tensor(TRANSCRIPTS[0])

    def step() -> None:
        ops.ctc_loss(x, targets, *TRANSCRIPTS[1:]).backward()
        x.grad = None

    return step


def torch_ctc() -> Step:
    """The same in PyTorch."""
    import torch

    x, given = torch.from_numpy(SPOKEN).log_softmax(-1).requires_grad_(), [torch.from_numpy(a) for a in TRANSCRIPTS]

    def step() -> None:
        torch.nn.functional.ctc_loss(x, *given).backward()
        x.grad = None

    return step


AUTOCAST = {"PyTorch FP32": "", "PyTorch FP16": "float16", "PyTorch BF16": "bfloat16"}


def make(network: str, kind: str) -> Step:
    """The step of one of NETWORKS as "FP32", "mixed" or one of AUTOCAST. PyTorch's FP16 LSTM does not run on a CPU."""
    own, theirs = NETWORKS[network]
    if kind in AUTOCAST:
        return theirs(autocast=AUTOCAST[kind])
    return own(mp.MIXED, optim.DynamicLossScaler()) if kind == "mixed" else own(mp.FP32, optim.NoLossScaler())
