"""After the paper: a CNN, a language model and a GAN in FP16, BF16 and FP8."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import tinymp as mp

from . import datasets, dcgan, language_model, mnist, program, report, trials

NOT_SCALED, DYNAMIC = "FP16, not scaled", "FP16, dynamic scale"


class Network(NamedTuple):
    """A row: a program's arguments, its length, what is measured (less is better), and no numbers of the paper."""

    program: Any
    arguments: tuple[str, ...]
    steps: int
    batch: int
    measure: str
    paper: dict[str, float | str]


NETWORKS = {
    "MNIST CNN": Network(mnist, (), 800, 64, "test error, %", {}),
    "LSTM": Network(language_model, ("--config", "large-batch"), 120, 128, "perplexity", {}),
    "DCGAN": Network(
        dcgan, ("--size", "32", "--width", "16", "--frechet-samples", "500"), 500, 32, "Fréchet distance", {}
    ),
}
SETTINGS = {
    name: trials.Setting(mp.POLICIES[policy], scale)
    for name, policy, scale in (
        ("FP32", "FP32", "none"),
        (NOT_SCALED, "MIXED", "none"),
        (DYNAMIC, "MIXED", "dynamic"),
        ("BF16", "BF16", "none"),
        ("FP8", "FP8", "none"),
    )
    if policy in mp.POLICIES  # without ml_dtypes there is no BF16
}
TITLE = __doc__
MEASURE = "Less is better: " + ", ".join(f"of the {name} the {n.measure}" for name, n in NETWORKS.items())
FACTOR, UNIT, SOURCES = 1, "examples", ("",)
STEPS = BATCH = 0  # each row's own


def label(source: str) -> str:
    """The data's name in the table."""
    return Path(source).name or "the program's own"


def check(source: str, batch: int) -> None:
    """Whether the data can be read, before any run begins."""
    if source:
        raise ValueError("--data: the rows of this table have their own data")
    datasets.mnist(None, 0)
    dcgan.load(_options(NETWORKS["DCGAN"], "cpu", 1, 2, 0))


def run(name: str, source: str, setting: str, seed: int, steps: int, batch: int, device: str) -> trials.Trial:
    """Train one model under one setting. The seed fixes weights and batches, whatever the setting."""
    network, chosen, start = NETWORKS[name], SETTINGS[setting], time.process_time()
    options = _options(network, device, steps, batch, seed)
    if network.program is language_model:
        return program.run(language_model.TASK(options), chosen.policy, chosen.scaler(), seed, device)[0]
    if network.program is mnist:
        found = mnist.train(chosen.policy, chosen.scaler(), datasets.mnist(None, seed), options)
        score = 100 * (1 - found.accuracy)
    else:
        with tempfile.TemporaryDirectory() as folder:  # of pictures, which nobody looks at
            options.out = Path(folder)
            found, _ = dcgan.train(chosen.policy, chosen.scaler(), seed, dcgan.load(options), options)
        score = found.frechet_distance
    common = {f.name: getattr(found, f.name) for f in fields(report.Run)}
    return trials.Trial(**common, score=score, seconds=time.process_time() - start)


def _options(network: Network, device: str, steps: int, batch: int, seed: int) -> Any:
    sizes = {"steps": steps, "batch-size" if network.program is dcgan else "batch": batch, "seed": seed}
    said = [*network.arguments, "--device", device, *(f"--{name}={value}" for name, value in sizes.items())]
    return network.program.parser().parse_args(said)


def draw(folder: Path, done: dict[Any, trials.Trial]) -> None:
    """formats.png: every run as a point."""
    trials.draw_scores(folder / "formats.png", sys.modules[__name__], done)
