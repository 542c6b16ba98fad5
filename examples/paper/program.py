"""Code shared by the programs for translation, speech and text. A program is a `Task` and one call of `of`."""

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
    """The task of a program: its data, model, batches, loss and scores.

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
    lr: float
    clip: ClassVar[float]
    optimizer: Callable[..., optim.Optimizer]

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


def of(task: type[Task], doc: str, **more: dict[str, Any]) -> tuple[Callable[..., dict], Callable[..., dict]]:
    """The program's `train` and `main`, as cnn.py has them; main also prints what the task shows. more: its options."""

    def train(
        policy: mp.Policy,
        scaler: optim.LossScaler,
        *,
        seed: int = 0,
        steps: int = task.steps,
        device: str = "cpu",
        batch: int = task.batch,
        lr: float | None = None,
        data: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        work = task(batch, data, **options)
        lr = work.lr if lr is None else lr
        trial, model = run(work, policy, scaler, seed=seed, steps=steps, device=device, lr=lr)
        scores = {f"held-out {name}": trial.scores[name] for name in task.measures}
        score = {"measure": next(iter(scores)), "higher_is_better": task.higher, "shown": (work, policy, model)}
        return {**trial.as_dict(), "lr": lr, "zeros": trial.zeros, **scores, **score}

    def show(folder: pathlib.Path, shown: dict[str, tuple]) -> str:
        work = [work for work, *_ in shown.values()][-1]
        return f"{work.about}\n\n{work.show(folder, {name: rest for name, (_, *rest) in shown.items()})}"

    def main(arguments: list[str] | None = None) -> dict[str, Any]:
        p = measure.parser(train, doc)
        p.prog = shipped.command(f"paper.{task.name}")
        for option, how in more.items():
            p.add_argument(f"--{option}", **how)
        scores = {f"held-out {name}": f"{{held-out {name}{form}}}" for name, form in task.measures.items()}
        scores["gradients that are 0"] = "{zeros:.1%}"
        return measure.main(train, doc, scores, task.items, arguments, p=p, show=show)

    train.__module__ = task.__module__
    return train, main
