"""Four small trainings, in FP32 and in mixed precision, and the hashes of all that they compute.

    python -m tests.four_programs                    in the environment that tests/guards/test_bits.py holds
    python -m tests.four_programs --here             in yours: your BLAS kernels and threads, your NumPy's vectors

The programs are README's loop, a CNN on MNIST's digits, an LSTM language model and a DCGAN. They use tinymp's public
interface only and convert by `numpy()`, `item()` and `state_dict()`, so that the same text runs on every version.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ABOVE_AVX2 = ("X86_V4", "AVX512", "AVX10")  # how NumPy's names of such CPU features begin


def environment() -> dict[str, str]:
    """The variables under which two machines compute the same bits; they count when a process starts."""
    from numpy._core._multiarray_umath import __cpu_dispatch__

    # NumPy refuses to switch off what it cannot choose at run time, and warns of what this CPU lacks anyway
    off = [feature for feature in __cpu_dispatch__ if feature.startswith(ABOVE_AVX2)]
    return {
        "OPENBLAS_CORETYPE": "Haswell",
        "OPENBLAS_NUM_THREADS": "1",
        "NPY_DISABLE_CPU_FEATURES": " ".join(off),
        "PYTHONWARNINGS": "ignore::ImportWarning",
    }


def digest(arrays: Iterable[Any]) -> str:
    """A hash of the dtypes, the shapes and the bits. The memory order plays no part."""
    import numpy as np

    found = hashlib.sha256()
    for x in map(np.asarray, arrays):
        found.update(f"{x.dtype} {x.shape}".encode() + x.tobytes())
    return found.hexdigest()[:12]


def run(policy: Any, models: list, scaler: Any, step: Callable[[int], float], steps: int) -> str:
    """Train, and say in one line how it ended and what it computed."""
    import numpy as np

    import tinymp as mp

    with mp.use(policy):
        losses = [step(i) for i in range(steps)]
    masters, copies, buffers = [], [], []  # in mixed precision: FP32, FP16, FP32
    for model in models:
        names = {name for name, _ in model.named_parameters()}
        state = {name: np.asarray(value) for name, value in model.state_dict().items()}
        masters += [value for name, value in state.items() if name in names]
        buffers += [value for name, value in state.items() if name not in names]
        copies += [np.asarray(p.array) for p in model.parameters()]
    return (
        f"loss {losses[-1]:.4f}, scale 2^{math.log2(scaler.get_scale()):g}; losses {digest([losses])}, "
        f"weights {digest(masters + copies)}, buffers {digest(buffers)}"
    )


def scaler_for(policy: Any, scale: float) -> Any:
    """For mixed precision one that begins too high, so that a step is skipped, and grows again soon."""
    from tinymp import optim

    return optim.NoLossScaler() if policy.name == "FP32" else optim.DynamicLossScaler(scale, growth_interval=4)


def trained(loss: Any, scaler: Any, optimizer: Any, clipped: Any = None) -> float:
    from tinymp import optim

    scaler.scale(loss).backward()
    if clipped is not None:
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(clipped.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item()


def digits() -> tuple[Any, Any]:
    """1,280 of MNIST's digits as FP32 numbers from 0 to 1, and their labels."""
    import numpy as np

    with np.load(ROOT / "examples" / "digits.npz") as file:
        images, labels = file["mnist_images"], file["mnist_labels"]
    chosen = np.random.default_rng(1).permutation(len(images))[:1280]
    return (images[chosen, None] / 255).astype("float32"), labels[chosen].astype("int64")


def readme(policy: Any) -> str:
    import numpy as np

    import tinymp as mp
    from tinymp import data, nn, ops, optim

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1024, 20)).astype("float32")
    y = (x @ rng.standard_normal((20, 5))).argmax(1)
    mp.manual_seed(0)
    model = policy.cast(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = scaler_for(policy, 2.0**19)
    loader = data.DataLoader(data.TensorDataset(x, y), batch_size=64, shuffle=True, seed=0)
    batches = [batch for _ in range(3) for batch in loader]

    def step(i: int) -> float:
        inputs, labels = batches[i]
        loss = ops.cross_entropy(model(policy.cast(inputs)), labels)
        return trained(loss, scaler, optimizer, model)

    return run(policy, [model], scaler, step, len(batches))


def mnist(policy: Any) -> str:
    import tinymp as mp
    from tinymp import nn, ops, optim

    x, y = digits()
    mp.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)]
    model = policy.cast(nn.Sequential(*layers))
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    scaler = scaler_for(policy, 2.0**19)

    def step(i: int) -> float:
        part = slice(64 * i, 64 * i + 64)
        loss = ops.cross_entropy(model(policy.cast(mp.tensor(x[part]))), mp.tensor(y[part]))
        return trained(loss, scaler, optimizer)

    return run(policy, [model], scaler, step, 8)


def lstm(policy: Any) -> str:
    """Words of which each has one of three successors, in 32 texts at once; the state goes on from step to step."""
    import numpy as np

    import tinymp as mp
    from tinymp import nn, ops, optim

    words, batch, length, steps = 500, 32, 16, 8
    rng = np.random.default_rng(0)
    successors = rng.integers(0, words, (words, 3))
    text = np.zeros((steps * length + 1, batch), "int64")
    for before, after in itertools.pairwise(text):
        after[:] = successors[before, rng.integers(0, 3, batch)]

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(words, 128)
            self.lstm = nn.LSTM(128, 128, 2, dropout=0.1)
            self.dropout = nn.Dropout(0.1)
            self.decoder = nn.Linear(128, words)

        def forward(self, inputs: Any, state: Any) -> tuple[Any, Any]:
            y, state = self.lstm(self.dropout(self.embedding(inputs)), state)
            return self.decoder(self.dropout(y)), state

    mp.manual_seed(0)
    model = policy.cast(LanguageModel())
    optimizer = optim.Adam(model.parameters(), lr=6e-3, betas=(0.9, 0.99))
    scaler = scaler_for(policy, 2.0**22)
    state = None

    def step(i: int) -> float:
        nonlocal state
        inputs, targets = text[i * length : i * length + length], text[i * length + 1 : i * length + length + 1]
        logits, state = model(mp.tensor(inputs), state)
        state = tuple(part.detach() for part in state)
        loss = ops.cross_entropy(logits.reshape(-1, words), mp.tensor(targets.reshape(-1)))
        return trained(loss, scaler, optimizer, model)

    return run(policy, [model], scaler, step, steps)


def dcgan(policy: Any) -> str:
    import numpy as np

    import tinymp as mp
    from tinymp import nn, ops, optim

    x = np.pad(digits()[0], ((0, 0), (0, 0), (2, 2), (2, 2))) * 2 - 1  # 32 x 32 pixels from -1 to 1
    rng, batch, width = np.random.default_rng(0), 32, 32

    def up(before: int, after: int, stride: int, padding: int) -> list:
        layer = nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False)
        return [layer, nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]

    def down(before: int, after: int) -> list:
        return [nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]

    mp.manual_seed(0)
    layers = [*up(32, 4 * width, 1, 0), *up(4 * width, 2 * width, 2, 1), *up(2 * width, width, 2, 1)]
    generator = policy.cast(nn.Sequential(*layers, nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Tanh()))
    layers = [nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2), *down(width, 2 * width), *down(2 * width, 4 * width)]
    discriminator = policy.cast(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * width, 1)))
    of_g, of_d = (optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in (generator, discriminator))
    scaler = scaler_for(policy, 2.0**18)

    def loss_of(logits: Any, label: float) -> Any:
        return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, label))

    def step(i: int) -> float:
        real = policy.cast(mp.tensor(x[batch * i : batch * i + batch]))
        noise = policy.cast(mp.tensor(rng.standard_normal((batch, 32, 1, 1)).astype("float32")))
        fake = generator(noise)
        loss_d = loss_of(discriminator(real), 0.9) + loss_of(discriminator(fake.detach()), 0.0)
        scaler.scale(loss_d).backward()
        scaler.step(of_d)
        loss_g = loss_of(discriminator(fake), 1.0)
        scaler.scale(loss_g).backward()
        scaler.step(of_g)
        scaler.update()
        of_d.zero_grad()
        of_g.zero_grad()
        return loss_d.item() + loss_g.item()

    return run(policy, [generator, discriminator], scaler, step, 6)


PROGRAMS = {"readme": readme, "mnist": mnist, "lstm": lstm, "dcgan": dcgan}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Hashes of four trainings, in FP32 and in mixed precision.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PROGRAMS)}; all if none is given")
    parser.add_argument("--here", action="store_true", help="in this environment, not in the one that the test holds")
    parser.add_argument("--without", metavar="MODULE", help="as where this module is not installed")
    parser.add_argument("--definitions", action="store_true", help="without the fast paths of ops")
    options = parser.parse_args(arguments)
    if not options.here:
        again = [sys.executable, "-m", "tests.four_programs", "--here"]
        again += sys.argv[1:] if arguments is None else arguments
        sys.exit(subprocess.run(again, cwd=ROOT, env=os.environ | environment()).returncode)
    if options.without:
        sys.modules[options.without] = None  # type: ignore[assignment]  # so its import fails
    import tinymp as mp
    from tinymp import fast_path

    if options.definitions:
        fast_path.off |= {"forward", "backward"}
    for name in options.names or PROGRAMS:
        for policy in (mp.FP32, mp.MIXED):
            print(f'    "{name} {policy.name}": "{PROGRAMS[name](policy)}",', flush=True)


if __name__ == "__main__":
    main()
