"""Why did the small SSD of table 2 find less in mixed precision with a loss scale? One decision is flipped at a time.

    python -m examples.paper.case_ssd fp32 mixed --seeds 6 7 8

docs/case_ssd.md tells what it found. All runs of a seed begin with the same weights and see the same scenes; each
leaves one line of JSON in --out, and one that is there already is not run again. Three backbones serve all seeds.
"""

from __future__ import annotations

import argparse
import json
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
MAPS = {"backbone": mp.FP32, "backbone.features": mp.MIXED, "backbone.extra": mp.MIXED}


class Flip(NamedTuple):
    """How a run differs from mixed precision with a dynamic scale.

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

    options = {"optimizer": table2.sgd(model, network.lr), "clip": 10.0, "batch": table2.BATCH}
    with how.within(), mp.observe(noted):
        trial = trials.train(model, how.policy, how.scaler(), batches(), loss_of, steps, **options)
    found = {"loss": trial.loss, "skipped": noted.skipped, "scale": trial.loss_scale, "seconds": round(trial.seconds)}
    masters = model.state_dict()
    np.savez(folder / f"{flip}-{seed}.npz", **masters)
    for policy, scenes_of_it in ((mp.FP32, count), (mp.MIXED, min(count, table2.TESTED))):
        test = tested(masters, policy, scenes_of_it)
        found |= {f"{name} in {policy.name}": round(x, 4) for name, x in test.items()}
    return found


def backbone(seed: int, folder: pathlib.Path) -> list[Any]:
    """The weights that table 2 begins with, kept in a file."""
    path = folder / f"backbone-{seed}.npz"
    if not path.exists():
        np.savez(path, *table2.trained_backbone("mnist", seed, "cpu"))
    with np.load(path) as file:
        return list(file.values())


def tested(masters: dict[str, Any], policy: mp.Policy, count: int) -> dict[str, float]:
    """How well a model with these weights finds things under a policy, in per cent, and its loss.

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


def main() -> None:
    """Run what is not there yet."""
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("flips", nargs="+", choices=FLIPS, metavar="FLIP", help=f"of {', '.join(FLIPS)}")
    p.add_argument("--seeds", nargs="+", type=int, default=list(range(6, 18)), help="(6 to 17)")
    p.add_argument("--steps", type=int, default=table2.STEPS, help=f"({table2.STEPS})")
    p.add_argument("--scenes", type=int, default=SCENES, help=f"of the test ({SCENES})")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/case_ssd"), help="(runs/case_ssd)")
    options = p.parse_args()
    mp.backend.cpu.keep_freed_memory()
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "runs.jsonl"
    log.touch()
    for seed in options.seeds:
        for flip in options.flips:
            key = {"flip": flip, "seed": seed, "steps": options.steps, "scenes": options.scenes}
            if not any(key.items() <= json.loads(line).items() for line in log.read_text().splitlines()):
                line = json.dumps(key | run(flip, seed, options.steps, options.scenes, options.out))
                with log.open("a") as file:
                    print(line, file=file)
                print(line, flush=True)


if __name__ == "__main__":
    main()
