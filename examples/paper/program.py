"""What the programs for translation, speech and text share. A program is a `Task` and one call of `main`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, ClassVar

import tinymp as mp
from tinymp import nn, optim
from tinymp.lab import shipped

from .. import measure
from . import trials


class Task:
    """What a program trains: data, once read; a model of it; what a step learns from; how it is judged.

    name       of the program, as in `python -m examples.paper.NAME`
    about      the data in a sentence, once they are read; own_data: whether it takes no others
    measures   of a trained model: their names, and how they are printed; the first is compared; higher: is better
    items      what a batch is made of, such as "sentences"
    steps, batch, lr    how it is trained if the command line says nothing else
    clip       the largest norm of all gradients together
    optimizer(parameters, lr)   what trains it
    model()                     a new one in FP32; its weights are drawn from tinymp's generator
    batches(seed)               batches without end, of NumPy arrays, which depend on the seed alone
    loss(model, batch)          the mean loss, FP32, of a batch, which is brought to where the model is
    scores(model)               {name: value} of its measures on what was held out
    """

    name: ClassVar[str]
    about: str
    measures: ClassVar[dict[str, str]]
    higher: ClassVar[bool]
    own_data: ClassVar[bool] = False
    items: ClassVar[str]
    steps: ClassVar[int]
    batch: int
    lr: ClassVar[float]
    clip: ClassVar[float]

    def __init__(self, batch: int, data: str | None) -> None:
        """Read the data. ValueError, OSError or ImportError say what is wrong with it, or with the options."""
        if self.own_data and data:
            raise ValueError(f"--data {data}: {self.name} has data of its own")
        self.batch = batch

    def show(self, folder: pathlib.Path, models: dict[str, tuple[mp.Policy, nn.Module]]) -> str:
        """Write pictures of what the models do into a folder, and return a text of it."""
        return ""


def run(
    task: Task, policy: mp.Policy, scaler: optim.LossScaler, *, seed: int, steps: int, device: str, lr: float
) -> tuple[trials.Trial, nn.Module]:
    """Train a model, and judge it. The seed fixes weights, batches and dropout, whatever the policy."""
    mp.manual_seed(seed)
    model = policy.cast(task.model()).to(device)
    how = {"optimizer": task.optimizer(model.parameters(), lr), "clip": task.clip, "batch": task.batch}
    trial = trials.train(model, policy, scaler, task.batches(seed), task.loss, steps, **how)
    model.eval()
    with mp.no_grad(), mp.use(policy):
        trial.scores = task.scores(model)
    trial.score = trial.scores[next(iter(task.measures))]
    return trial, model


def trainer(task: type[Task], keep: Callable[..., None] = lambda *_: None) -> Callable[..., dict[str, Any]]:
    """The program's `train`, as cnn.py has one. keep(task, policy, model): what is done with each trained model."""

    def train(
        policy: mp.Policy,
        scaler: optim.LossScaler,
        *,
        seed: int = 0,
        steps: int = task.steps,
        device: str = "cpu",
        batch: int = task.batch,
        lr: float = task.lr,
        data: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        work = task(batch, data, **options)
        trial, model = run(work, policy, scaler, seed=seed, steps=steps, device=device, lr=lr)
        keep(work, policy, model)
        scores = {f"held-out {name}": trial.scores[name] for name in task.measures}
        score = {"measure": next(iter(scores)), "higher_is_better": task.higher}
        return {**trial.as_dict(), "zeros": trial.zeros, **scores, **score}

    train.__module__ = task.__module__
    return train


def main(task: type[Task], doc: str, arguments: list[str] | None = None, **more: dict[str, Any]) -> dict[str, Any]:
    """Both trainings, a table, report.json and report.png, and what the task shows. more: options of the task."""
    works: list[Task] = []
    models: dict[str, tuple[mp.Policy, nn.Module]] = {}

    def keep(work: Task, policy: mp.Policy, model: nn.Module) -> None:
        works.append(work)
        models[policy.name.lower()] = policy, model

    train = trainer(task, keep)
    p = measure.parser(train, doc)
    p.prog = shipped.command(f"paper.{task.name}")
    for option, how in more.items():
        p.add_argument(f"--{option}", **how)
    scores = {f"held-out {name}": f"{{held-out {name}{form}}}" for name, form in task.measures.items()}
    scores["gradients that are 0"] = "{zeros:.1%}"

    def show(folder: pathlib.Path) -> str:
        return f"{works[-1].about}\n\n{works[-1].show(folder, models)}"

    return measure.main(train, doc, scores, task.items, arguments, p=p, show=show)
