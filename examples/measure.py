"""The numbers, the table and the picture of the examples. To understand how they train you need none of it."""

from __future__ import annotations

import argparse
import inspect
import math
import pathlib
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

import tinymp as mp
from tinymp import nn, optim
from tinymp.audit import sampling
from tinymp.audit.exponents import FINITE, LOWEST, ZEROS, exponents
from tinymp.backend.extras import hint
from tinymp.checkpoint import writing
from tinymp.events import here
from tinymp.gradients import values_of
from tinymp.lab import shipped

ROLES = ("weights", "masters", "gradients", "activations", "optimizer")
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart also by those who see no red or green
EXPONENTS = range(-40, 17)  # of gradients, as floor(log2 |g|); what is smaller or larger goes to the ends
EVERY = 20  # one step in so many is watched
ENOUGH = 200  # steps: the times of fewer are not compared

# ------------------------------------------------------------------------------------------------------------- numbers


@dataclass
class Run:
    """The numbers of one training. A `with` of it ends at a FloatingPointError: one that diverges is a result as well.

    curve               the loss of every step; loss: the mean of the last twentieth
    bytes               by role: weights, masters, gradients and activations as backward wrote and found them, and the
                        optimizer's state
    gradient_exponents  how many weight gradients, as they were stored, had each of EXPONENTS; zero_gradients: none
    stopped             why the run ended early
    ends                {steps: after how many of them runs of so many end, where only their start is asked for}
    """

    ends: ClassVar[dict[int, int]] = {}

    policy: str = ""
    loss: float = math.nan
    ms_per_step: float = math.nan
    per_second: float = math.nan
    bytes: dict[str, int] = field(default_factory=dict)
    skipped_steps: int = 0
    loss_scale: float = 1.0
    curve: list[float] = field(default_factory=list)
    gradient_exponents: list[int] = field(default_factory=lambda: [0] * len(EXPONENTS))
    zero_gradients: int = 0
    stopped: str | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        if isinstance(error, FloatingPointError):
            self.stopped = str(error)
        return isinstance(error, FloatingPointError)

    def steps(self, count: int, batches: Iterable[Any]) -> Iterator[Any]:
        """So many batches. What is done with each is timed, and now and then watched; every 10 s there is a line."""
        watch, times, said = Watch(self), [], time.perf_counter()
        count = self.ends.get(count, count)
        for step, batch in zip(range(count), batches):
            start = time.perf_counter()
            with mp.observe(watch) if step % EVERY == 0 or step == count - 1 else nullcontext():
                yield batch
            mp.synchronize()  # a GPU goes on working when the calls have returned
            times.append(time.perf_counter() - start)
            self.ms_per_step = 1000 * statistics.median(times)
            if time.perf_counter() - said > 10:
                said, left = time.perf_counter(), self.ms_per_step / 1000 * (count - step - 1)
                text = f"{self.policy}: step {step + 1} of {count}, loss {self.curve[-1]:.3f}, {left:.0f} s left"
                print(text, file=sys.stderr, flush=True)

    def note(self, loss: mp.Tensor, *results: optim.StepResult) -> None:
        """The loss of a step, and what its optimizers did."""
        self.curve.append(loss.item())
        self.skipped_steps += sum(not result.applied for result in results)

    def found(self, scaler: optim.LossScaler, units: int, higher_is_better: bool, **scores: Any) -> dict[str, Any]:
        """All of it, by name, and how good the model is. units: images, words, ... of a step; scores: the first is the
        measure by which runs are compared.
        """
        self.end(scaler, units)
        measure = {"measure": next(iter(scores)), "higher_is_better": higher_is_better}
        return {**scores, **measure, **self.as_dict()}

    def end(self, scaler: optim.LossScaler, units: float) -> None:
        """The numbers that are known at the end. units: as of `found`."""
        last = self.curve[-max(len(self.curve) // 20, 1) :]
        self.loss, self.loss_scale = statistics.fmean(last or [math.nan]), scaler.get_scale()
        self.per_second = 1000 * units / self.ms_per_step

    def as_dict(self) -> dict[str, Any]:
        """By name."""
        return {**vars(self), "exponents": list(EXPONENTS)}

    def count_exponents(self, lowest: int, counts: Any, zeros: int) -> None:
        """Add so many gradients with each of the exponents from `lowest` on, and so many zeros."""
        places = np.clip(np.arange(lowest, lowest + len(counts)), EXPONENTS.start, EXPONENTS.stop - 1) - EXPONENTS.start
        total = np.bincount(places, counts, len(EXPONENTS)).astype(int) + self.gradient_exponents
        self.gradient_exponents, self.zero_gradients = total.tolist(), self.zero_gradients + zeros


class Watch(mp.Observer):
    """Hears how a training steps, and tells its run the bytes by role and the exponents of the weight gradients."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.gradients: dict[nn.Parameter, int] = {}
        self.optimizers: set[optim.Optimizer] = set()

    def ran(self, op: Any, inputs: tuple, outputs: tuple) -> None:
        if here.backward is not None and here.backward.root.grad_fn is op:  # a backward pass begins
            kept = mp.saved_nbytes(here.backward.root)
            self.run.bytes["activations"] = max(kept, self.run.bytes.get("activations", 0))

    def deposited(self, leaf: Any, gradient: Any, scale: Any) -> None:
        if isinstance(leaf, nn.Parameter):
            self.gradients[leaf] = gradient.nbytes
            counts = exponents(values_of(gradient))
            self.run.count_exponents(LOWEST, counts[FINITE], int(counts[ZEROS]))

    def stepped(self, optimizer: Any, result: Any) -> None:
        self.optimizers.add(optimizer)
        parameters = [p for o in self.optimizers for p in o.parameters()]
        state = [v for o in self.optimizers for entry in o.state_dict()["state"].values() for v in entry.values()]
        self.run.bytes["weights"] = sum(p.nbytes for p in parameters)
        self.run.bytes["masters"] = sum(p.master_nbytes for p in parameters)
        self.run.bytes["gradients"] = sum(self.gradients.values())
        self.run.bytes["optimizer"] = sum(np.asarray(v).nbytes for v in state)


# --------------------------------------------------------------------------------------------------- table and picture


def table(runs: dict[str, dict[str, Any]], scores: dict[str, str], unit: str) -> str:
    """The runs side by side, and the ratio of the last to the first. scores: {label: format}; unit: of per_second."""
    names, found = list(runs), list(runs.values())
    rows = [("", *names, *[f"{names[-1]} / {names[0]}"] * (len(names) > 1))]

    def row(label: str, form: str, value: Callable[[dict], Any], compared: bool = False) -> None:
        values = [value(run) for run in found]
        share = f"{values[-1] / values[0]:.2f}" if compared and values[0] else ""
        rows.append((label, *map(form.format, values), *[share] * (len(names) > 1)))

    timed = min(len(run["curve"]) for run in found) >= ENOUGH
    for label, form in scores.items():
        row(label, "{}", lambda run, form=form: form.format(**run))
    row("final loss", "{:.4f}", itemgetter("loss"))
    row("ms per step", "{:.1f}", itemgetter("ms_per_step"), timed)
    row(f"{unit} per second", "{:.0f}", itemgetter("per_second"), timed)
    for role in ROLES:
        row(f"{role}, KiB", "{:.0f}", lambda run, role=role: run["bytes"].get(role, 0) / 1024, True)
    row("steps skipped", "{}", itemgetter("skipped_steps"))
    row("final loss scale", "{:g}", itemgetter("loss_scale"))
    return sampling.table(rows, most=None)


@contextmanager
def figure(path: pathlib.Path, size: tuple[float, float], dpi: int = 110) -> Iterator[Any]:
    """A new figure of matplotlib, which is then written."""
    from matplotlib.figure import Figure

    yield (new := Figure(figsize=size, layout="constrained"))
    writing.write_figure(path, new, dpi=dpi)


def draw(path: pathlib.Path, runs: dict[str, dict[str, Any]], title: str, pictures: dict[str, np.ndarray]) -> None:
    """The losses, the exponents of the weight gradients with FP16's limits, and below it what the models drew."""
    from matplotlib.ticker import LogFormatter

    panels: Any = [["loss", "exponents"], list(runs)] if pictures else [["loss", "exponents"]]
    with figure(path, (13, 12 if pictures else 5)) as whole:
        whole.suptitle(title)
        axes = whole.subplot_mosaic(panels)
        for (name, run), color in zip(runs.items(), COLORS):
            draw_curve(axes["loss"], run["curve"], name, color=color)
        axes["loss"].set(xlabel="step", ylabel="training loss", title="Loss", yscale="log")
        axes["loss"].yaxis.set_major_formatter("{x:g}")
        axes["loss"].yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        draw_exponents(axes["exponents"], runs)
        for name in panels[0]:
            axes[name].legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9, frameon=False)
        for name, page in pictures.items():
            axes[name].imshow(page, cmap="gray", vmin=0, vmax=255)
            axes[name].set_title(f"{name}: samples, uncurated")
            axes[name].axis("off")


def draw_curve(axes: Any, values: list[float], label: str, **style: Any) -> None:
    """A value per step, faint, and its moving average over a fortieth of the steps."""
    curve = np.asarray(values or [np.nan])
    axes.plot(curve, **style, alpha=0.2, linewidth=0.8)
    window = max(len(curve) // 40, 1)
    smooth = np.convolve(curve, np.ones(window) / window, "valid")
    axes.plot(np.arange(len(smooth)) + window - 1, smooth, **style, label=label)


def draw_exponents(axes: Any, runs: dict[str, dict[str, Any]]) -> None:
    """The exponents of the weight gradients as they were stored, and where FP16 ends."""
    for (name, run), color in zip(runs.items(), COLORS):
        counts, zeros = np.asarray(run["gradient_exponents"], float), run["zero_gradients"]
        total = max(counts.sum() + zeros, 1)
        scaled = " × loss scale, as stored" if run["loss_scale"] != 1 else ""
        label = f"{name}{scaled}: {zeros / total:.1%} zeros"
        axes.stairs(100 * counts / total, [*EXPONENTS, EXPONENTS.stop], color=color, linewidth=1.8, label=label)
    top = axes.get_ylim()[1] * 1.2  # room for the words at the limits
    axes.set(xlabel="exponent of the gradient, floor(log2 |g|)", ylabel="share of all weight gradients, %")
    axes.set(title="Weight gradients over the run", xlim=(EXPONENTS.start, EXPONENTS.stop + 3), ylim=(0, top))
    limits = (-24, "smallest\nsubnormal\n2$^{-24}$"), (-14, "smallest\nnormal\n2$^{-14}$"), (16, "largest\n65504")
    for exponent, limit in limits:
        axes.axvline(exponent, color="0.35", linestyle="--", linewidth=1)
        axes.text(exponent - 0.4, top * 0.985, limit, ha="right", va="top", fontsize=8, color="0.25")
    axes.axvspan(EXPONENTS.start, -24, color="0.5", alpha=0.12)
    axes.text((EXPONENTS.start - 24) / 2, top * 0.4, "zero in FP16", ha="center", fontsize=9, color="0.25")


# -------------------------------------------------------------------------------------------------- the command line


def number(expected: str, kind: type, low: float, high: float = math.inf) -> Callable[[str], Any]:
    """The type of an option: a number of this kind from low to high."""

    def read(text: str) -> Any:
        with suppress(ValueError):
            if low <= (value := kind(text)) <= high:
                return value
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")

    return read


natural = number("an integer of at least 0", int, 0)
positive = number("a positive integer", int, 1)
rate = number("a positive number that FP32 can hold", float, sys.float_info.min, float(np.finfo(np.float32).max))


def policy(text: str) -> str:
    """The name of a policy, in small letters, that can be compared with FP32."""
    known = [name.lower() for name in mp.POLICIES if name != "FP32"]
    if text in known:
        return text
    if mp.BF16 is None and text.startswith(("bf16", "fp8")):  # FP8 is emulated in BF16
        raise argparse.ArgumentTypeError(f"{text} needs ml_dtypes on the CPU: {hint('bf16')}")
    raise argparse.ArgumentTypeError(f"expected one of {', '.join(known)}, got {text!r}")


def loss_scale(text: str) -> str:
    """A name of a loss scaler: "none", "dynamic", or a number."""
    loss_scaler(text)  # or it says what is wrong
    return text


def loss_scaler(text: str) -> optim.LossScaler:
    """A new one of that name."""
    if text == "none":
        return optim.NoLossScaler()
    if text == "dynamic":
        return optim.DynamicLossScaler()
    with suppress(ValueError):
        return optim.StaticLossScaler(float(text))
    raise argparse.ArgumentTypeError(f"expected none, dynamic or a positive number, got {text!r}")


def device(name: str) -> str:
    """Where to train; ValueError where that cannot be."""
    name = mp.default_device() if name == "auto" else name
    try:
        mp.backend.get(name)
    except RuntimeError as error:  # a GPU that does not work
        raise ValueError(str(error)) from error
    return name


class Parser(argparse.ArgumentParser):
    """One whose errors are one line."""

    def error(self, message: str) -> Any:
        self.exit(2, f"{self.prog}: error: {message}\n")


def parser(train: Callable[..., dict[str, Any]], doc: str) -> Parser:
    """The options of an example; those that `train` has as arguments are passed on to it."""
    name = train.__module__.rpartition(".")[2] if train.__module__ != "__main__" else pathlib.Path(sys.argv[0]).stem
    p, known = Parser(prog=shipped.command(name), description=doc.split("\n\n")[0]), inspect.signature(train).parameters
    p.add_argument("--policy", type=policy, default="mixed", metavar="NAME", help="what to compare with FP32 (mixed)")
    p.add_argument(
        "--loss-scale", type=loss_scale, default="dynamic", metavar="S", help="none, a number, or dynamic (the default)"
    )
    for option, kind, what in (
        ("steps", positive, "length of each run"),
        ("seed", natural, "of weights, batches and all else that is random"),
        ("batch", positive, "examples of a step"),
        ("lr", rate, "learning rate"),
        ("data", str, "a file or folder of other data"),
    ):
        if option in known:
            default = known[option].default
            p.add_argument(
                f"--{option}", type=kind, default=default, help=what if default is None else f"{what} ({default})"
            )
    p.add_argument("--device", default="auto", help="cpu, gpu, or auto (the default): the GPU where one works")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs", name), help="where the reports go")
    return p


def main(
    train: Callable[..., dict[str, Any]],
    doc: str,
    scores: dict[str, str],
    unit: str,
    arguments: list[str] | None = None,
    *,
    p: Parser | None = None,
    show: Callable[[pathlib.Path, dict], str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Train under FP32 and under the policy, print the table, write report.json and report.png; returns the runs.

    scores: the rows of the table that are the example's own; unit: the runs count so many per second. p: `parser`'s,
    with more options for `train`; show(folder, what each run has as "shown") writes what else there is to see, and
    gives a text to print.
    """
    p = p or parser(train, doc)
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    plans = {"fp32": (mp.FP32, "none"), options.policy: (mp.POLICIES[options.policy.upper()], options.loss_scale)}
    runs = {}
    try:
        options.device = device(options.device)
        given = {name: value for name, value in vars(options).items() if name not in ("policy", "loss_scale", "out")}
        with reserved(options.out):
            for name, (chosen, scale) in plans.items():
                runs[name] = train(chosen, loss_scaler(scale), **given)
            pictures = {name: page for name, run in runs.items() if (page := run.pop("picture", None)) is not None}
            shown = {name: run.pop("shown", None) for name, run in runs.items()}
            print(f"on the {options.device.upper()}:\n\n{table(runs, scores, unit)}")
            title = f"{p.prog.split()[-1]} on the {options.device.upper()}: FP32 and {options.policy.upper()}"
            draw(options.out / "report.png", runs, title, pictures)
            content = {"runs": runs, "settings": settings_of(options), "environment": dict(mp.info())}
            writing.write_json(options.out / "report.json", jsonable(content))
            said = show(options.out, shown) if show else ""
    except (ValueError, OSError, ImportError) as error:
        p.error(str(error))
    print(f"\nwrote {options.out / 'report.json'} and {options.out / 'report.png'}")
    if said:
        print(f"\n{said}")
    for name, run in runs.items():
        if run["stopped"]:
            print(f"\n{name} stopped after {len(run['curve'])} steps: {run['stopped']}")
    if runs["fp32"]["stopped"]:
        p.exit(1)
    return runs


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the command line, for report.json."""
    return {k: v if isinstance(v, (bool, int, float, list)) else str(v) for k, v in vars(options).items()}


@contextmanager
def reserved(folder: pathlib.Path) -> Iterator[None]:
    """A folder to which files can be written, else OSError; after an error in the block what is new of it is gone."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    writing.check(folder)
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(new[-1])
        raise


def jsonable(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null."""
    if isinstance(value, dict):
        return {name: jsonable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
