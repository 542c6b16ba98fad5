"""Where does FP16 lose in a Transformer: in the scores, in softmax, in the residual stream?

python -m examples.paper.train_gpt --audit      what docs/attention.md shows
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import nn
from tinymp.audit.listener import Instrument, Place

from .. import measure
from . import program, trials
from .trials import table

ATTENTION = "scaled_dot_product_attention"
SEED = 1_000_003  # of the batch that is looked at
FIRST = -45  # exponents below it are counted there
SCALES = 1.0, 128.0, 65536.0
POLICIES = {
    "FP32": mp.FP32,
    "mixed": mp.MIXED,
    "attention: FP16 accumulators": mp.study.change(mp.FP16_ACCUMULATE, only=(ATTENTION,)),
    "attention: FP16 sums in softmax": mp.study.change(mp.FP16_REDUCTIONS, only=(ATTENTION,)),
    "layer norms: FP16 sums": mp.study.change(mp.FP16_REDUCTIONS, only=("layer_norm",)),
    "all products: FP16 accumulators": mp.FP16_ACCUMULATE,
    "all sums: FP16": mp.FP16_REDUCTIONS,
}


@dataclass
class Values:
    """Counts of numbers rounded to FP16, the largest before rounding, and their exponents."""

    n: int = 0
    zero: int = 0
    subnormal: int = 0
    largest: float = 0.0
    squares: float = 0.0
    exponents: np.ndarray = field(default_factory=lambda: np.zeros(17 - FIRST, int))

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Count x (FP32), rounded to y. Exact zeros, such as those of a mask, do not count."""
        x, y = x[x != 0], y[x != 0]
        size = np.abs(x)
        self.n += x.size
        self.zero += int((y == 0).sum())
        self.subnormal += int(((y != 0) & (np.abs(y) < 2.0**-14)).sum())
        self.largest = max(self.largest, float(size.max(initial=0.0)))
        self.squares += float((size.astype(float) ** 2).sum())
        places = np.clip(np.frexp(size)[1] - 1, FIRST, 16) - FIRST
        self.exponents += np.bincount(places, minlength=17 - FIRST)


class Watched(Instrument):
    """The numbers that the page is about.

    found     {(what, block): Values}, -1 for what lies outside of the blocks
    absorbed  [additions to the residual stream that changed nothing, all additions]
    """

    def __init__(self, length: int) -> None:
        self.length, self.found, self.absorbed = length, {}, [0, 0]

    def share_lost(self, what: str) -> str:
        """Share of zeros over all blocks, in percent."""
        all_of_it = [v for (name, _), v in self.found.items() if name == what]
        return f"{sum(v.zero for v in all_of_it) / sum(v.n for v in all_of_it):.2%}"

    def _note(self, what: str, place: Place, x: Any, y: Any) -> None:
        block = re.search(r"\.h\.(\d+)", place.module)
        values = self.found.setdefault((what, int(block[1]) if block else -1), Values())
        values.add(mp.backend.to_cpu(x), mp.backend.to_cpu(y))

    def product(self, place: Place, a: Any, b: Any, accumulate: str) -> None:
        if place.op == ATTENTION and place.phase == "forward" and b.shape[-2:] == (a.shape[-1], self.length):
            a, b = (mp.backend.to_cpu(v).astype(np.float32) for v in (a, b))
            scores = np.tril(a @ b) * np.float32(a.shape[-1] ** -0.5)  # those that the mask lets through
            with np.errstate(over="ignore"):
                self._note("scores (not stored)", place, scores, scores.astype(np.float16))

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        inside = x.shape[-2:] == (self.length, self.length)
        if place.op == ATTENTION and place.phase == "forward" and inside:
            self._note("softmax weights", place, x, y)
        elif place.op == ATTENTION and inside and (x < 0).any():  # the others are the weights again
            self._note("gradients of scores", place, x, y)
        elif place.op == "add":
            what = "residual stream" if place.phase == "forward" else "gradients of the residual stream"
            self._note(what, place, x, y)
        elif place.op == "cross_entropy":
            self._note("gradients of logits", place, x, y)

    def ran(self, place: Place, op: Any, inputs: tuple, outputs: tuple) -> None:
        if place.op == "add" and place.phase == "forward" and ".h." in place.module:
            x, branch = (mp.backend.to_cpu(v.array) for v in inputs[:2])
            lost = (mp.backend.to_cpu(outputs[0]) == x) & (branch != 0)
            self.absorbed[0] += int(lost.sum())
            self.absorbed[1] += int((branch != 0).sum())


def values_table(found: dict[tuple, Values], scale: float) -> str:
    """By what and layer: size, and what storing lost."""
    rows = []
    for (what, layer), v in sorted(found.items(), key=lambda item: (ORDER.index(item[0][0]), item[0][1])):
        factor = scale if "gradients" in what else 1.0
        where = f"{what}, block {layer}" if layer >= 0 else what + ", embedding" * ("stream" in what)
        sizes = f"{(v.squares / max(v.n, 1)) ** 0.5 / factor:.2g}", f"{v.largest / factor:.3g}"
        rows.append((where, *sizes, f"{v.zero / v.n:.2%}", f"{v.subnormal / v.n:.1%}"))
    return table(("", "root mean square", "largest", "became 0", "subnormal"), rows)


ORDER = (
    "scores (not stored)",
    "softmax weights",
    "residual stream",
    "gradients of logits",
    "gradients of the residual stream",
    "gradients of scores",
)


def draw(path: Path, found: dict[tuple, Values], scale: float) -> None:
    """The exponents: values left, gradients without their scale right, and where FP16 ends."""
    sides = [w for w in ORDER if "gradients" not in w], [w for w in ORDER if "gradients" in w]
    with trials.figure(path, 1, 2, (13, 4.6)) as axes:
        for one, names, shift in zip(axes.flat, sides, (0, int(np.log2(scale)))):
            for what, color in zip(names, measure.COLORS):
                counts = sum(v.exponents for (w, _), v in found.items() if w == what)
                shares = 100 * counts / max(counts.sum(), 1)
                one.stairs(shares, np.arange(FIRST, 18) - shift, color=color, linewidth=1.8, label=what)
            for edge, label in ((-24, "2$^{-24}$"), (-14, "2$^{-14}$"), (16, "65,504")):
                one.axvline(edge, color="0.35", linestyle="--", linewidth=1)
                one.text(edge - 0.4, one.get_ylim()[1], label, ha="right", va="top", fontsize=8, rotation=90)
            one.set(xlabel="exponent, floor(log2 |x|)", ylabel="share, %", xlim=(-46, 18))
            one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=9, frameon=False)
        axes.flat[0].set(title="Values")
        axes.flat[1].set(title="Gradients, without a loss scale")


def audited(task: program.Task, trained: nn.Module, device: str, folder: Path) -> str:
    """Losses of one step of a trained GPT on an unseen batch, as Markdown. Draws audit.png."""
    state, batch = trained.state_dict(), next(task.batches(SEED))
    length = batch[0].shape[1]

    def one_step(policy: mp.Policy, scale: float, *instruments: Instrument) -> tuple[float, np.ndarray]:
        """A forward and backward pass from the masters: the loss, and the weight gradients without their scale."""
        model = task.model()
        model.load_state_dict(state, strict=False)  # the masters
        model = policy.cast(model).to(device)
        with mp.use(policy), mp.audit(*instruments):
            loss = task.loss(model, batch)
            (loss * scale).backward()
        rows = [p.grad.numpy().astype(np.float64).reshape(-1) / scale for p in model.parameters()]
        return loss.item(), np.concatenate(rows)

    _, exact = one_step(mp.FP32, 1.0)

    def off(gradient: np.ndarray) -> str:
        return f"{np.linalg.norm(gradient - exact) / np.linalg.norm(exact):.2%}"

    lost = []
    for scale in SCALES:
        watched = Watched(length)
        _, gradient = one_step(mp.MIXED, scale, watched)
        lost.append((f"{scale:g}", *[watched.share_lost(what) for what in ORDER if "gradients" in what], off(gradient)))
    variants = []
    for name, policy in POLICIES.items():
        loss, gradient = one_step(policy, 1.0 if policy is mp.FP32 else SCALES[-1])
        variants.append((name, f"{loss / np.log(2):.4f}", off(gradient)))
    draw(folder / "audit.png", watched.found, SCALES[-1])
    became_0 = [f"{what}: became 0" for what in ORDER if "gradients" in what]
    tables = (
        values_table(watched.found, SCALES[-1]),
        f"{watched.absorbed[0] / watched.absorbed[1]:.2%} of the additions to the residual stream changed nothing.",
        table(("loss scale", *became_0, "error of the weight gradients"), lost),
        table(("the same step in", "bits per character", "error of the weight gradients"), variants),
    )
    return "\n\n".join([*tables, f"wrote {folder / 'audit.png'}"])
