"""Why did the small SSD of table 2 find less in mixed precision with a loss scale? One decision is flipped at a time.

    python -m examples.paper.case_ssd fp32 mixed --seeds 6 7 8

docs/case_ssd.md tells what it found. All runs of a seed begin with the same weights and see the same scenes; each
leaves one line of JSON in --out, and one that is there already is not run again. Three backbones serve all seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import tinymp as mp
from tinymp import data, nn, ops, optim

from . import scenes, table2, trials
from .average_precision import mean_average_precision

Scaler = Callable[[], optim.LossScaler]
NAME = "Multibox SSD"
SCENES = 1000  # of the test; the first 200 are those of table 2
MEASURES = ("mAP in FP32", "table 2 in FP32", "test loss in FP32", "loss")
# Student's t for 95 %, by the number of pairs (the degrees of freedom and 1); of more it is less
T95 = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)
DRAWS = (("fp32", "fp32-ulp"), ("mixed", "start-2^10"))  # in FP32, in mixed precision
MAPS = {"backbone": mp.FP32, "backbone.features": mp.MIXED, "backbone.extra": mp.MIXED}


class Flip(NamedTuple):
    """A difference to mixed precision with a dynamic scale.

    keep     of the model, as `Policy.cast` takes it
    change   is done to the FP32 model before it is cast
    within   what training and evaluation run in
    """

    policy: mp.Policy = mp.MIXED
    scaler: Scaler = optim.DynamicLossScaler
    keep: dict[str, mp.Policy] | None = None
    change: Callable[[nn.Module], None] = lambda model: None
    within: Callable[[], AbstractContextManager] = nullcontext


def one_ulp(model: nn.Module) -> None:
    """Move each weight to the next larger FP32 number."""
    model.load_state_dict({name: np.nextafter(w, np.float32(np.inf)) for name, w in model.state_dict().items()})


FLIPS = {
    "fp32": Flip(mp.FP32, optim.NoLossScaler),
    "fp32-ulp": Flip(mp.FP32, optim.NoLossScaler, change=one_ulp),
    "mixed": Flip(),
    "mixed-ulp": Flip(change=one_ulp),
    "no-scale": Flip(scaler=optim.NoLossScaler),
    "scale-8": Flip(scaler=partial(optim.StaticLossScaler, 8.0)),
    "start-2^10": Flip(scaler=partial(optim.DynamicLossScaler, 2.0**10)),
    "normalize-fp32": Flip(keep=MAPS),
    "normalize-eps": Flip(within=lambda: patch.object(ops, "normalize", partial(ops.normalize, eps=1e-3))),
    "heads-fp32": Flip(keep={"logits": mp.FP32, "codes": mp.FP32}),
    "backbone-fp32": Flip(keep={"backbone": mp.FP32}),
}


class Noted(mp.Observer):
    """Hears which steps were skipped."""

    def __init__(self) -> None:
        self.steps, self.skipped = 0, list[int]()

    def stepped(self, optimizer: Any, result: optim.StepResult) -> None:
        if not result.applied:
            self.skipped.append(self.steps)
        self.steps += 1


def run(flip: str, seed: int, steps: int, count: int, folder: pathlib.Path) -> dict[str, Any]:
    """Train once, as table 2 does, and test what was learned, in FP32 and (on the scenes of table 2) in MIXED."""
    how, network, noted = FLIPS[flip], table2.NETWORKS[NAME], Noted()
    weights = backbone(seed % 3, folder)
    mp.manual_seed(seed)
    train = scenes.Scenes(steps * table2.BATCH, seed, train=True)
    model = network.make()
    table2.begin(model, weights)
    how.change(model)
    model = how.policy.cast(model, how.keep)

    def batches() -> Iterator[tuple]:
        for images, targets in data.DataLoader(train, table2.BATCH, collate_fn=scenes.batch, prefetch=2):
            yield how.policy.cast(mp.from_numpy(images)), targets

    def loss_of(model: nn.Module, batch: tuple) -> mp.Tensor:
        return sum(model(*batch).values())

    options: dict[str, Any] = {"optimizer": table2.sgd(model, network.lr), "clip": 10.0, "batch": table2.BATCH}
    with how.within(), mp.observe(noted):
        trial = trials.train(model, how.policy, how.scaler(), batches(), loss_of, steps, **options)
    found = {"loss": trial.loss, "skipped": noted.skipped, "scale": trial.loss_scale, "seconds": round(trial.seconds)}
    masters = model.state_dict()
    np.savez(folder / f"{flip}-{seed}.npz", **masters)
    for policy, scenes_of_it in ((mp.FP32, count), (mp.MIXED, min(count, table2.TESTED))):
        test = tested(masters, policy, scenes_of_it)
        found |= {f"{name} in {policy.name}": round(x, 4) for name, x in test.items()}
    return found


def compared(flips: list[str], seed: int, count: int, folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The distances of each flip's gradients of `count` batches from FP32's, at the weights of this seed's FP32 run.

    distance  |g - g32| / |g32|, the mean over the batches
    along     g g32 / |g32|^2 - 1, the mean and its standard error: 0 for an error without a direction
    common    what the errors of two batches have in common, of the length of a gradient: 0 if they are independent
    batches   the distance between FP32's gradients of two batches
    """
    with np.load(folder / f"fp32-{seed}.npz") as file:
        weights = dict(file)
    exact = gradients("fp32", weights, seed, count)
    length = np.linalg.norm(exact, axis=1)
    for flip in flips:
        error = gradients(flip, weights, seed, count) - exact
        along = (error * exact).sum(1) / length**2
        found = {
            "distance": np.mean(np.linalg.norm(error, axis=1) / length),
            "along": along.mean(),
            "its standard error": along.std(ddof=1) / count**0.5,
            "common": max(shared(error), 0.0) ** 0.5 / np.mean(length),
            "batches": np.mean(np.linalg.norm(exact[1:] - exact[:-1], axis=1) / length[1:]),
        }
        yield {"flip": flip, "seed": seed, **{name: float(f"{x:.3g}") for name, x in found.items()}}


def shared(x: np.ndarray) -> float:
    """The mean product of two different rows."""
    products = x @ x.T
    return float((products.sum() - products.trace()) / (len(x) * (len(x) - 1)))


def gradients(flip: str, weights: dict[str, Any], seed: int, count: int) -> np.ndarray:
    """FP64 (count, parameters): of batches that no training sees."""
    how, model = FLIPS[flip], table2.NETWORKS[NAME].make()
    model.load_state_dict(weights)
    how.change(model)
    model = how.policy.cast(model, how.keep)
    optimizer, found = table2.sgd(model, 0.0), []
    scaler = optim.StaticLossScaler(min(how.scaler().get_scale(), 2.0**11))  # what the dynamic one falls to
    new = scenes.Scenes(count * table2.BATCH, 1000 + seed, train=True)
    for images, targets in data.DataLoader(new, table2.BATCH, collate_fn=scenes.batch):
        with how.within(), mp.use(how.policy):
            loss = sum(model(how.policy.cast(mp.from_numpy(images)), targets).values())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        found.append(np.concatenate([p.grad.numpy().ravel() for p in model.parameters()]).astype(np.float64))
        optimizer.zero_grad()
        scaler.update()
    return np.array(found)


def backbone(seed: int, folder: pathlib.Path) -> list[Any]:
    """The weights that table 2 begins with, kept in a file."""
    path = folder / f"backbone-{seed}.npz"
    if not path.exists():
        np.savez(path, *table2.trained_backbone("mnist", seed, "cpu"))
    with np.load(path) as file:
        return list(file.values())


def tested(masters: dict[str, Any], policy: mp.Policy, count: int) -> dict[str, float]:
    """The scores of a model with these weights under a policy, in per cent, and its loss.

    mAP: of all scenes, over 101 recalls; table 2: of its 200 scenes over 11, as there.
    """
    test = scenes.Scenes(count, 0, train=False)
    model = table2.NETWORKS[NAME].make()
    model.load_state_dict(masters)
    model = policy.cast(model)
    found = table2.detected(model, policy, test, table2.BATCH, "cpu")
    true, model = [test[i][1] for i in range(count)], model.train()
    with mp.no_grad(), mp.use(policy):
        loader = data.DataLoader(test, table2.BATCH, collate_fn=scenes.batch, prefetch=2)
        losses = [sum(model(policy.cast(mp.from_numpy(x)), t).values()).item() for x, t in loader]
    table = slice(min(count, table2.TESTED))
    return {
        "mAP": 100 * mean_average_precision(found, true, 101),
        "table 2": 100 * mean_average_precision(found[table], true[table]),
        "test loss": float(np.mean(losses)),
    }


def differences(runs: list[dict[str, Any]], flips: list[str], measure: str) -> str:
    """The changes of each flip, seed by seed: pairs, both means, the mean difference to the first flip, its standard
    error and 95 % interval by Student's t.
    """
    of = {flip: {run["seed"]: run[measure] for run in runs if run["flip"] == flip} for flip in flips}
    rows = []
    for flip in flips[1:]:
        seeds = sorted(of[flip].keys() & of[flips[0]].keys())
        change = np.array([of[flip][seed] - of[flips[0]][seed] for seed in seeds])
        error = change.std(ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else math.nan
        t = T95[min(len(seeds), len(T95)) - 1]
        means = [f"{np.mean([of[name][seed] for seed in seeds]):.2f}" for name in (flips[0], flip)]
        interval = f"{change.mean() - t * error:.2f} to {change.mean() + t * error:.2f}"
        rows.append((flip, len(seeds), *means, f"{change.mean():+.2f}", f"{error:.2f}", interval))
    return trials.table((measure, "pairs", flips[0], "flip", "difference", "standard error", "95 % interval"), rows)


def draws(runs: list[dict[str, Any]], measure: str) -> str:
    """Mixed precision less FP32 and its 95 % interval, of the seeds that have all of DRAWS; a seed's runs are taken for
    independent draws about its own mean.
    """
    of = {(run["flip"], run["seed"]): run[measure] for run in runs}
    seeds = [seed for seed in sorted({seed for _, seed in of}) if all((flip, seed) in of for flip in sum(DRAWS, ()))]
    if not seeds:
        return ""
    found = np.array([[[of[flip, seed] for flip in flips] for flips in DRAWS] for seed in seeds])  # seeds, 2, runs
    change = found[:, 1].mean() - found[:, 0].mean()
    rest = found - found.mean((1, 2), keepdims=True) - np.array([-change / 2, change / 2])[:, None]
    free = found.size - len(seeds) - 1
    error = T95[min(free, len(T95) - 1)] * math.sqrt((rest**2).sum() / free * 4 / found.size)
    return f"{measure}, {found.size} runs: {change:+.2f}, {change - error:.2f} to {change + error:.2f}"


def main(arguments: list[str] | None = None) -> None:
    """Run what is not there yet, and print what each flip changes."""
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("flips", nargs="+", choices=FLIPS, metavar="FLIP", help=f"of {', '.join(FLIPS)}")
    p.add_argument("--seeds", nargs="+", type=int, default=list(range(6, 18)), help="(6 to 17)")
    p.add_argument("--steps", type=int, default=table2.STEPS, help=f"({table2.STEPS})")
    p.add_argument("--scenes", type=int, default=SCENES, help=f"of the test ({SCENES})")
    p.add_argument("--gradients", type=int, metavar="N", help="do not train: compare the gradients of N batches")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/case_ssd"), help="(runs/case_ssd)")
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "runs.jsonl"
    log.touch()
    if options.gradients:
        for seed in options.seeds:
            for found in compared(options.flips, seed, options.gradients, options.out):
                print(json.dumps(found), flush=True)
        return
    for seed, flip in itertools.product(options.seeds, options.flips):
        key = {"flip": flip, "seed": seed, "steps": options.steps, "scenes": options.scenes}
        if not any(key.items() <= json.loads(line).items() for line in log.read_text().splitlines()):
            line = json.dumps(key | run(flip, seed, options.steps, options.scenes, options.out))
            with log.open("a") as file:
                print(line, file=file)
            print(line, flush=True)
    runs = [json.loads(line) for line in log.read_text().splitlines()]
    for measure in MEASURES if len(options.flips) > 1 else ():
        print(f"\n{differences(runs, options.flips, measure)}\n{draws(runs, measure)}")


if __name__ == "__main__":
    main()
