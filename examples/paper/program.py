"""What the programs for translation, speech and text share: command line, runs, what is printed and written.

A program is a `Task` and one call of `main`. Its trainings are those of `trials.train`.
"""

from __future__ import annotations

import abc
import argparse
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import tinymp as mp
from tinymp import nn, optim
from tinymp.lab import shipped

from .. import measure
from ..measure import loss_scale, natural, policy, positive, rate
from . import report, trials


class Task(abc.ABC):
    """What a program trains: data, once read; a model of it; what a step learns from; how it is judged.

    name       of the program, as in `python -m examples.NAME`
    about      the data in a sentence, once they are read
    measures   of a trained model: their names, and "%" where they are shares; the first is the one that is compared
    higher     whether a larger one is better
    unit       what a run counts per second, such as "words"; items: what a batch is made of, such as "sentences"
    baselines  what simpler ways reach in the first measure, by name; computed when asked for, as a table never does
    steps, batch, lr, loss_scale    how it is trained if the command line says nothing else
    clip       the largest norm of all gradients together
    shown      options that matter only to what is shown at the end
    """

    name: ClassVar[str]
    about: str
    measures: ClassVar[dict[str, str]]
    higher: ClassVar[bool]
    unit: ClassVar[str]
    items: ClassVar[str]
    baselines: dict[str, float]
    steps: int
    batch: int
    lr: float
    clip: float
    loss_scale = "dynamic"
    shown: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: argparse.Namespace) -> None:
        """Read the data. ValueError, OSError or ImportError say what is wrong with it, or with the options."""
        for name in ("steps", "batch", "lr", "loss_scale"):
            setattr(self, name, getattr(options, name) or getattr(self, name))

    @abc.abstractmethod
    def model(self) -> nn.Module:
        """A new one in FP32; its weights are drawn from tinymp's generator."""

    @abc.abstractmethod
    def optimizer(self, parameters: Iterable, lr: float) -> optim.Optimizer:
        """What trains it."""

    @abc.abstractmethod
    def batches(self, seed: int) -> Iterator[Any]:
        """Batches without end, of NumPy arrays, which depend on the seed alone."""

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> mp.Tensor:
        """The mean loss, FP32, of a batch, which is brought to where the model is."""

    @abc.abstractmethod
    def size(self, batch: Any) -> int:
        """How many units are in a batch."""

    @abc.abstractmethod
    def scores(self, model: nn.Module) -> dict[str, float]:
        """Its measures on what was held out."""

    @abc.abstractmethod
    def show(self, folder: pathlib.Path, models: dict[str, tuple[mp.Policy, nn.Module]]) -> str:
        """Write pictures of what the models do into a folder, and return a text of it. models: FP32's and the last."""


class Plan(NamedTuple):
    """One run."""

    setting: trials.Setting
    seed: int


def run(
    task: Task,
    policy: mp.Policy,
    scaler: optim.LossScaler,
    seed: int,
    device: str,
    label: str = "",
) -> tuple[trials.Trial, nn.Module]:
    """Train a model, and judge it. The seed fixes weights, batches and dropout, whatever the policy."""
    mp.manual_seed(seed)
    model = policy.cast(task.model()).to(device)
    trial = trials.train(
        model,
        policy,
        scaler,
        task.batches(seed),
        task.loss,
        task.steps,
        optimizer=task.optimizer(model.parameters(), task.lr),
        clip=task.clip,
        size_of=task.size,
        name=label,
    )
    model.eval()
    with mp.no_grad(), mp.use(policy):
        trial.scores = task.scores(model)
    trial.score = trial.scores[compared(task)[0]]
    return trial, model


def trainer(task: type[Task], parser: Callable[[], argparse.ArgumentParser], *arguments: str) -> Callable[..., dict]:
    """One run with these arguments of the program, for `tinymp ablate examples.paper.NAME:train`."""

    def train(policy: mp.Policy, scaler: optim.LossScaler, *, seed: int, steps: int, device: str) -> dict[str, Any]:
        work = task(parser().parse_args([*arguments, f"--steps={steps}"]))
        trial, _ = run(work, policy, scaler, seed, device)
        score = {"measure": f"held-out {compared(task)[0]}", "higher_is_better": task.higher}
        return {**trial.as_dict(), "curve": trial.curve, **score, score["measure"]: trial.score}

    return train


def plans(task: Task, options: argparse.Namespace) -> dict[str, Plan]:
    """All runs of a program, by their labels: FP32 first."""
    policy, seeds = mp.POLICIES[options.policy.upper()], range(options.seed, options.seed + options.seeds)
    fp32 = trials.Setting(mp.FP32, "none")
    found = {"fp32" if seed == options.seed else f"fp32, seed {seed}": Plan(fp32, seed) for seed in seeds}
    for scale in ("none", "128", "dynamic") if options.compare else (task.loss_scale,):
        label = f"{options.policy}, {scale}" if options.compare else options.policy
        found[label] = Plan(trials.Setting(policy, scale), options.seed)
    return found


def parser(task: type[Task], description: str) -> argparse.ArgumentParser:
    """The options that all programs have. A program adds its own."""
    p = argparse.ArgumentParser(prog=shipped.command(f"paper.{task.name}"), description=description)
    usual = {name: getattr(task, name, "the configuration's") for name in ("steps", "batch", "lr", "loss_scale")}
    p.add_argument("--policy", type=policy, default="mixed", metavar="NAME", help="what to compare with FP32 (mixed)")
    p.add_argument(
        "--loss-scale",
        type=loss_scale,
        metavar="S",
        help="none, a number, or dynamic (default: {loss_scale})".format(**usual),
    )
    p.add_argument(
        "--compare", action="store_true", help="run FP32, and the policy without scaling, with scale 128 and dynamic"
    )
    p.add_argument("--seeds", type=positive, default=1, help="run FP32 with so many seeds (default: 1)")
    p.add_argument("--seed", type=natural, default=0, help="of weights, batches and dropout (default: 0)")
    p.add_argument("--steps", type=positive, help="of each run (default: {steps})".format(**usual))
    p.add_argument("--batch", type=positive, help="per step (default: {batch})".format(**usual))
    p.add_argument("--lr", type=rate, help="the highest learning rate (default: {lr})".format(**usual))
    p.add_argument(
        "--device", default="auto", help="where to train: cpu, gpu, or auto (the default), the GPU where one works"
    )
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs", task.name), help="where reports go")
    return p


def main(task: type[Task], p: argparse.ArgumentParser, arguments: list[str] | None = None) -> dict[str, trials.Trial]:
    """Run the trainings, print the table, write report.json and report.png, and what the task shows."""
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    try:
        options.device = mp.default_device() if options.device == "auto" else options.device
        mp.backend.get(options.device)
        options.out.mkdir(parents=True, exist_ok=True)
        work = task(options)
        planned = plans(work, options)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        p.error(str(error))
    print(work.about)
    runs, models = {}, {}
    *_, last = planned
    for label, plan in planned.items():
        policy = plan.setting.policy
        runs[label], model = run(work, policy, plan.setting.scaler(), plan.seed, options.device, label)
        if label in ("fp32", last):
            models[label] = policy, model

    title = f"{work.about} On the {options.device.upper()}"
    print(f"on the {options.device.upper()}:\n\n{table(task, runs)}\n\n{verdict(work, runs)}")
    settings = measure.settings_of(options) | {"about": work.about, "baselines": work.baselines}
    settings |= {name: getattr(work, name) for name in ("steps", "batch", "lr", "loss_scale")}
    report.write_json(options.out / "report.json", runs, settings)
    draw(options.out / "report.png", runs, task, title)
    print(f"\nwrote {options.out / 'report.json'} and {options.out / 'report.png'}")
    print(f"\n{work.show(options.out, models)}")
    return report.finish(p, runs)


def text(task: type[Task] | Task, name: str, value: float) -> str:
    """A measure as it is printed."""
    return f"{100 * value:.2f} %" if task.measures[name] == "%" else f"{value:.2f}"


def compared(task: type[Task] | Task) -> tuple[str, int]:
    """The measure that is compared, and by what its values are multiplied where they are printed."""
    name, form = next(iter(task.measures.items()))
    return name, 100 if form == "%" else 1


def table(task: type[Task], runs: dict[str, trials.Trial]) -> str:
    """The runs side by side, with the measures of the program first."""
    found = {label: {**vars(run), "zeros": run.zeros} for label, run in runs.items()}
    for run in found.values():
        run["texts"] = {name: text(task, name, run["scores"][name]) for name in task.measures}
    rows = {f"held-out {name}": f"{{texts[{name}]}}" for name in task.measures}
    return measure.table(found, {**rows, "gradients that are 0": "{zeros:.1%}"}, task.unit)


def verdict(task: Task, runs: dict[str, trials.Trial]) -> str:
    """What is compared, beside what simpler ways reach and beside what FP32 makes of other seeds."""
    first, factor = compared(task)
    lines = [f"{first} of {name}: {text(task, first, value)}" for name, value in task.baselines.items()]
    return "\n".join([*lines, *report.beside_seeds(runs, lambda run: factor * run.score)])


def draw(path: pathlib.Path, runs: dict[str, trials.Trial], task: type[Task], title: str) -> None:
    """report.png: the losses, the weight gradients' exponents, and how many gradients were 0 (as in MPT figure 5)."""
    shown = {label: run for label, run in runs.items() if ", seed" not in label}
    first, _ = compared(task)
    with trials.figure(path, 1, 3, (19, 5.5)) as axes:
        left, middle, right = axes.flat
        left.figure.suptitle(title)
        for (label, run), color in zip(shown.items(), measure.COLORS):
            measure.draw_curve(left, run.curve, f"{label}: {first} {text(task, first, run.score)}", color=color)
            if run.zero_shares:
                steps, shares = zip(*run.zero_shares)
                of = f"{label}: mean {run.zeros:.1%}"
                right.plot(steps, [100 * share for share in shares], color=color, label=of)
        for label, run in runs.items():
            if label not in shown:
                measure.draw_curve(left, run.curve, f"{label}: {text(task, first, run.score)}", color="0.6")
        left.set(xlabel="step", ylabel="training loss", title="Loss", yscale="log")
        measure.draw_exponents(middle, {label: vars(run) for label, run in shown.items()})
        right.set(xlabel="step", ylabel="gradient values that are 0, %", title="Zeros", ylim=(0, None))
        for one in axes.flat:
            one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9, frameon=False)
