"""A long training in which everything goes wrong that may: what it leaves behind, and whether the loss scale survives.

    python -m benchmarks.soak [--steps 20000] [--seed 0] [--out FILE]

A small CNN in mixed precision, with infinite gradients (made by an op, or written into one), batches whose loss is NaN,
a loader of two threads some of whose items take long, batches of changing shapes, audits opened and closed, and
checkpoints, to which it goes back now and then. After the first tenth of the steps and at the end it is counted what
the process holds, with no loop and no audit open. These are the limits; each that is broken is a sentence at the end,
and the exit code is 1:

    memory, and objects of Python     2 % more at the end
    threads, files of the process     none more
    files in the checkpoints' folder  the newest ones that are to stay, no other
    an iteration with an infinity     is skipped and changes nothing: no parameter, no running statistic
    the loss scale                    finite, above 0, and it grows again: not stuck; `update` never warns of that
    the scaler's history              whole: played back, it gives the scale of every iteration, also after a return
    a checkpoint                      puts weights and scaler where they were
    warnings                          none
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim

from .cpu import resident
from .machine import Machine, write

SIZES = 8, 12, 16  # of the images
# Of memory and objects. In 58 MiB it is little more than one 1 MiB arena of Python: without any fault 2.2 % was seen,
# as a step after which nothing grew; the series in the JSON tells a step from a leak
GROWTH = 0.02
KEEP = 3  # checkpoints
SLOW = 0.004  # seconds that a slow item takes


class Pictures:
    """(1, size, size) and a class: in which quarter the bright square is. Every 50th item takes long to load."""

    sizes = np.array([SIZES[i % 3] for i in range(203)])  # 203: the last batch of an epoch is not full

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        if i % 50 == 49:
            time.sleep(SLOW)
        rng, half = np.random.default_rng(i), self.sizes[i] // 2
        x = rng.standard_normal((1, 2 * half, 2 * half), np.float32)
        quarter = int(rng.integers(4))
        x[:, quarter // 2 * half :, quarter % 2 * half :][:, :half, :half] += 2
        return x, quarter


def padded(items: list) -> tuple[mp.Tensor, mp.Tensor]:
    """A batch of images as large as the largest."""
    size = max(x.shape[-1] for x, _ in items)
    x = np.zeros((len(items), 1, size, size), np.float32)
    for one, (image, _) in zip(x, items):
        one[:, : image.shape[1], : image.shape[2]] = image
    return mp.Tensor(x), mp.Tensor(np.array([label for _, label in items]))


class Held:
    """What the process holds: bytes, objects, threads of Python and of the system, open files."""

    def __init__(self) -> None:
        gc.collect()
        end = time.monotonic() + 5
        while any(t.name.startswith("DataLoader") for t in threading.enumerate()) and time.monotonic() < end:
            time.sleep(0.01)  # the loop was left: they end after what they are loading
        gc.collect()
        self.objects = len(gc.get_objects())
        self.threads = sorted(t.name for t in threading.enumerate())
        self.tasks = len(os.listdir("/proc/self/task"))
        self.files = sorted(_opened())


def _opened() -> Iterator[str]:
    """What the process has open: names of files, kinds of others."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself is closed again
            name = os.readlink(f"/proc/self/fd/{number}")
            yield os.path.basename(name) if name.startswith("/") else name.partition(":")[0]


class Soak:
    """One run: `run`, then `broken` says which limits were. The tests plant faults in `fault` and `after_step`.

    every   after how many steps there is an audit; a checkpoint comes after half as many, a return to one after five
            times as many
    """

    def __init__(self, folder: str | os.PathLike, steps: int = 20_000, seed: int = 0, every: int = 300) -> None:
        mp.manual_seed(seed)
        self.steps, self.every, self.random = steps, every, np.random.default_rng(seed)
        self.model = mp.MIXED.cast(
            nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
                nn.Dropout(0.1), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 4),
            )
        )  # fmt: skip
        self.optimizer = optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = optim.DynamicLossScaler(growth_interval=20)
        sampler = mp.data.BucketBatchSampler(Pictures.sizes, 16, seed=seed)
        self.loader = mp.data.DataLoader(Pictures(), batch_sampler=sampler, num_workers=2, collate_fn=padded)
        self.kept = mp.Checkpointer(
            folder, keep=KEEP, model=self.model, optimizer=self.optimizer, scaler=self.scaler, loader=self.loader
        )
        self.start = self.scaler.get_scale()
        # S after every iteration that counts, by its number; the loss of every step. Filled: they grow no more
        self.trace, self.losses = np.full(steps, np.nan), np.full(steps, np.nan)
        self.saved: dict[int, dict[str, Any]] = {}  # what the checkpoints hold, by their steps
        self.counts: Counter[str] = Counter()
        self.shapes: set[tuple[int, ...]] = set()
        self.rss: list[int] = []
        self.nans = 0  # in a row
        self.still = self.longest = 0  # iterations since S grew, or could not; the most of them
        self.broken: list[str] = []

    # ---- one step

    def fault(self, step: int) -> str:
        """What goes wrong in a step, if anything: "op" and "gradient" make one infinite, "nan" the loss NaN."""
        draw = self.random.random()
        return "op" if draw < 0.01 else "gradient" if draw < 0.02 else "nan" if draw < 0.04 else ""

    def after_step(self, step: int) -> None:
        """Nothing."""

    def step(self, x: mp.Tensor, t: mp.Tensor, fault: str) -> None:
        """Forward, backward, update; what goes wrong must change nothing."""
        if fault == "nan" and self.nans >= self.scaler.max_nonfinite_losses - 1:
            fault = ""  # one more in a row is an error, as it should be
        self.nans = self.nans + 1 if fault == "nan" else 0
        before = self.model.state_dict() if fault else {}
        scores = self.model(mp.MIXED.cast(x)).float()
        if fault == "op":
            scores = scores + ops.sqrt(self.model[-1].bias * 0.0).float()  # sqrt has an infinite slope at 0
        loss = ops.cross_entropy(scores, t)
        loss = loss * math.nan if fault == "nan" else loss
        self.scaler.scale(loss).backward()
        if fault == "gradient":
            parameters = list(self.model.parameters())
            parameters[self.random.integers(len(parameters))].grad[...] = math.inf
        result = self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.counts[fault or "sound"] += 1
        self.counts["skipped"] += not result
        self.shapes.add(x.shape)
        if not fault:
            self.losses[self._steps() - 1] = loss.item()
        elif result:
            self.breaks(f"step {self._steps()} was not skipped, although its {fault} was not finite")
        elif any((x != before[name]).any() for name, x in self.model.state_dict().items()):
            self.breaks(f"step {self._steps()} was skipped for its {fault}, and changed the model")
        self._note_scale()

    def _note_scale(self) -> None:
        scale, last = self.scaler.get_scale(), self.trace[self.scaler.iteration - 2]
        if not (math.isfinite(scale) and scale > 0):
            self.breaks(f"the loss scale became {scale} in step {self._steps()}")
        self.trace[self.scaler.iteration - 1] = scale
        self.still = 0 if scale > last or scale == self.scaler.max_scale else self.still + 1
        self.longest = max(self.longest, self.still)

    def _steps(self) -> int:
        return self.counts["sound"] + self.counts["op"] + self.counts["gradient"] + self.counts["nan"]

    # ---- all steps

    def run(self) -> Soak:
        """All steps, and what was held before and after."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.train(max(self.steps // 10, min(6 * self.every, self.steps // 2)))  # everything happens once
            self.rss.clear()
            self.longest = 0
            self.before = Held()
            self.train(self.steps)
            self.after = Held()
        for text, n in Counter(str(w.message) for w in said).items():
            self.breaks(f"a warning came {n} times: {text}")
        self.judge()
        return self

    def train(self, until: int) -> None:
        """Go on until so many steps have run."""
        while self._steps() < until:
            back, x, t = False, None, None  # a checkpoint at the end of an epoch has no batches left
            for x, t in self.loader:
                i = self._steps()
                audits = i % self.every == self.every - 1
                with mp.audit(shadow=i % 2 == 0) if audits else contextlib.nullcontext() as audit:
                    self.step(x, t, self.fault(i))
                self.after_step(i)
                if audits:
                    self.counts["audits"] += 1
                    self.counts["findings"] += len(str(audit).splitlines()) > 3
                    self.rss.append(self.resident())
                if i % (self.every // 2) == 0:
                    self.save(i)
                back = i % (5 * self.every) == 5 * self.every - self.every // 6
                if back or self._steps() >= until:
                    break
            else:
                self.counts["epochs"] += 1
            del x, t
            if back:
                self.go_back()

    def resident(self) -> int:
        """Bytes, without garbage."""
        gc.collect()
        return resident()

    def save(self, step: int) -> None:
        """A checkpoint, and what it must give back."""
        self.kept.save(step)
        self.counts["checkpoints"] += 1
        self.saved[step] = {"model": self.model.state_dict(), "scaler": self.scaler.state_dict()}
        for old in self.saved.keys() - set(self.kept.steps()):
            del self.saved[old]

    def go_back(self) -> None:
        """To the newest checkpoint; the loader goes on in the middle of its epoch."""
        expected = self.saved[self.kept.load()["step"]]
        self.counts["returns"] += 1
        model = self.model.state_dict()
        same = all(np.array_equal(model[name], x) for name, x in expected["model"].items())
        if not same or self.scaler.state_dict() != expected["scaler"]:
            self.breaks(f"after step {self._steps()} a checkpoint gave back another state than it was given")

    # ---- the limits

    def breaks(self, sentence: str) -> None:
        """A limit is broken."""
        if len(self.broken) < 20:
            self.broken.append(sentence)

    def judge(self) -> None:
        """Hold what was held, and the scale, to the limits."""
        before, after = self.before, self.after
        self.memory = _ends(self.rss)
        for what, (a, b) in {"resident memory": self.memory, "objects": (before.objects, after.objects)}.items():
            if b > a * (1 + GROWTH):
                self.breaks(f"{what} grew by {b / a - 1:.1%}, from {a:,.0f} to {b:,.0f}: more than {GROWTH:.0%}")
        for what in ("threads", "files"):
            left = Counter(getattr(after, what)) - Counter(getattr(before, what))
            if left:
                self.breaks(f"{what} were left: {', '.join(sorted(left.elements()))}")
        if after.tasks > before.tasks:
            self.breaks(f"threads of the system were left: {after.tasks}, before {before.tasks}")
        expected = {self.kept.path(step).name for step in self.kept.steps()[-KEEP:]}
        if found := {path.name for path in self.kept.directory.iterdir()} - expected:
            self.breaks(f"files were left beside the checkpoints: {', '.join(sorted(found))}")
        limit = 25 * self.scaler.growth_interval
        if self.longest > limit:
            self.breaks(f"the loss scale did not grow in {self.longest} iterations in a row: more than {limit}, stuck")
        if wrong := self.unlike():
            self.breaks(f"the history gives another scale than there was in {wrong} iterations")
        if not all(np.isfinite(p.master).all() for p in self.model.parameters()):
            self.breaks("weights are not finite at the end")

    def unlike(self) -> int:
        """In how many iterations S was another than the history says."""
        played = np.full(self.scaler.iteration, self.start)
        for iteration, scale, _ in self.scaler.history:
            played[iteration:] = scale
        return int(np.count_nonzero(played != self.trace[: self.scaler.iteration]))

    def as_dict(self) -> dict[str, Any]:
        """What was found, for JSON."""
        scales = self.trace[: self.scaler.iteration]
        n = max(self.steps // 20, 1)
        return {
            "steps": self._steps(),
            "counts": dict(self.counts),
            "shapes": len(self.shapes),
            "loss": {"at first": float(np.nanmean(self.losses[:n])), "at last": float(np.nanmean(self.losses[-n:]))},
            "memory": {"MiB": [x / 2**20 for x in self.rss], "growth": self.memory[1] / self.memory[0] - 1},
            "objects": [self.before.objects, self.after.objects],
            "threads": [self.before.tasks, self.after.tasks],
            "files": [len(self.before.files), len(self.after.files)],
            "scale": {"least": float(scales.min()), "most": float(scales.max()), "changes": len(self.scaler.history)},
            "iterations without growth": self.longest,
            "broken": self.broken,
        }


def _ends(values: list[int]) -> tuple[float, float]:
    """The medians of the first and of the last quarter."""
    n = -(-len(values) // 4)
    return statistics.median(values[:n]), statistics.median(values[-n:])


def main(arguments: list[str] | None = None) -> int:
    """Run, print what was found, write the JSON. Returns 1 where a limit was broken."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.split("\n\n")[0])
    p.add_argument("--steps", type=int, default=20_000, help="at least 300 (default: 20000)")
    p.add_argument("--seed", type=int, default=0)
    default = pathlib.Path(__file__).with_name("results") / "soak.json"
    p.add_argument("--out", type=pathlib.Path, default=default, help="the JSON to write")
    options = p.parse_args(arguments)
    if options.steps < 300:
        p.error(f"--steps: expected at least 300, so that everything happens, got {options.steps}")
    if not sys.platform.startswith("linux"):
        p.error("what the process holds is read from /proc: run it on Linux")
    mp.backend.cpu.keep_freed_memory()
    machine = Machine()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(folder, options.steps, options.seed, every=min(300, options.steps // 12)).run()
    found = soak.as_dict()
    for name, value in found.items():
        print(f"{name:<26} {value}")
    write(options.out, {**found, "environment": machine.state()})
    for sentence in soak.broken:
        print(f"BROKEN: {sentence}")
    print(f"wrote {options.out}" if soak.broken else f"no limit was broken; wrote {options.out}")
    return int(bool(soak.broken))


if __name__ == "__main__":
    sys.exit(main())
