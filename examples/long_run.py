"""Train the CNN of cnn.py for long: it is kept in a folder, goes on after a stop, and several processes may share it.

python -m examples.long_run --checkpoint kept             # Ctrl-C and SIGTERM end the step, and keep what ran
python -m examples.long_run --checkpoint kept --resume    # goes on as if it had never been stopped, bit for bit
mpiexec -n 2 python -m examples.long_run --parallel       # each process takes its part of each batch
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import checkpoint, ops, optim
from tinymp.checkpoint import writing

from . import cnn, datasets, measure


class Stop:
    """The first SIGINT or SIGTERM that came within the block, if one has; a second one ends the program at once."""

    number, name = 0, None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The block."""

        def note(number: int, frame: Any) -> None:
            self.number, self.name = number, signal.Signals(number).name
            for one, handler in before.items():
                signal.signal(one, handler)

        before = {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


class Kept:
    """A run in a file, with the options that it had: those of a run that goes on must be the same.

    ValueError where they are not, OSError where nothing can be written.
    """

    def __init__(self, path: Path | None, every: int, resume: bool, options: dict[str, Any]) -> None:
        self.path, self.every, self.options = path, every, options
        self.goes_on = resume and path is not None and path.exists()
        if path is not None:
            writing.check(path.parent)
        had = checkpoint.peek(path).get("options", {}) if self.goes_on else options
        differ = [name for name in {**options, **had} if had.get(name) != options.get(name)]
        if differ:
            said = ", ".join(f"{name} {had.get(name)}, not {options.get(name)}" for name in differ)
            raise ValueError(f"the run in {path} had {said}: give it the same options, or leave --resume out")

    def load(self, run: measure.Run, parts: dict[str, Any]) -> None:
        """Put run and parts where they were."""
        if self.goes_on:
            vars(run).update(mp.load(self.path, **parts)["run"])

    def save(self, run: measure.Run, parts: dict[str, Any], now: bool = False) -> None:
        """Write all that it takes to go on, after a step that is due or `now`; never of a run that has diverged."""
        if self.path is not None and not run.stopped and (now or len(run.curve) % self.every == 0):
            with suppress(FloatingPointError):  # weights that are not finite: the next loss will tell
                mp.save(self.path, **parts, run=vars(run), options=self.options)


def train(
    policy: mp.Policy,
    scaler: optim.LossScaler,
    *,
    seed: int = 0,
    steps: int = 1240,
    device: str = "cpu",
    lr: float = 2e-3,
    data: str | None = None,
    kept: Kept | None = None,
    stop: Stop | None = None,
    group: Any = None,
) -> dict[str, Any]:
    """The training of cnn.py, by all processes of the group together."""
    kept, stop, group = kept or Kept(None, 1, False, {}), stop or Stop(), group or mp.parallel.Group()
    images, labels, test_images, test_labels = datasets.mnist(data, seed)
    mp.manual_seed(seed)
    model = policy.cast(cnn.network(*images.shape[1:], int(max(labels.max(), test_labels.max())) + 1)).to(device)
    ddp = mp.parallel.DistributedDataParallel(model, group)  # of one process: it does nothing
    dataset = mp.data.TensorDataset(images, labels)
    loader = mp.data.DataLoader(dataset, cnn.BATCH, shuffle=True, drop_last=True, seed=seed, group=group)
    random = np.random.default_rng(seed + group.rank)
    optimizer = optim.Adam(model.parameters(), lr=lr)
    schedule = optim.CosineAnnealingLR(optimizer, T_max=steps)
    run = measure.Run(policy.name)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "schedule": schedule}
    parts |= {"loader": loader, "random": random}  # all that changes from step to step
    kept.load(run, parts)

    ended = None
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    with mp.use(policy), run:
        for some, of_them in run.steps(steps - len(run.curve), batches):
            x = policy.cast(mp.from_numpy(datasets.shifted(some.numpy(), 2, random))).to(device)
            loss = ops.cross_entropy(model(x), of_them.to(device))
            scaler.scale(loss).backward()  # and the processes add up their gradients
            result = scaler.step(optimizer)  # all of them skip, or none
            scaler.update()
            schedule.step(result)
            optimizer.zero_grad()

            run.note(loss, result)
            run.curve[-1] = group.mean(run.curve[-1])
            ended = group.agreed(stop.name)[0]  # all of them stop at the same step
            if ended:
                break
            kept.save(run, parts)
    kept.save(run, parts, now=True)
    run.stopped = run.stopped or ended  # the run that is kept goes on
    ddp.sync_buffers()
    part = slice(group.rank, None, group.size)
    with mp.use(policy):
        right = cnn.accuracy(model, policy.cast(mp.tensor(test_images[part])).to(device), test_labels[part])
    return run.found(scaler, cnn.BATCH, higher_is_better=True, accuracy=group.mean(right, len(test_labels[part])))


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """One training, and what came of it."""
    p = measure.parser(train, __doc__)
    p.add_argument("--checkpoint", type=Path, metavar="DIR", help="keep the run in a file of this folder")
    p.add_argument("--every", type=measure.positive, default=100, help="steps between two checkpoints (100)")
    p.add_argument("--resume", action="store_true", help="go on with the run that --checkpoint has kept")
    p.add_argument("--parallel", action="store_true", help="share the batches of all processes of mpiexec, on CPUs")
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    policy, stop = mp.POLICIES[options.policy.upper()], Stop()
    try:
        if options.resume and options.checkpoint is None:
            raise ValueError("--resume goes on with what --checkpoint DIR has kept: name the folder")
        device = "cpu" if options.parallel else measure.device(options.device)
        group = mp.parallel.init() if options.parallel else mp.parallel.Group()
        if cnn.BATCH % group.size:
            raise ValueError(f"a batch of {cnn.BATCH} cannot be shared evenly by {group.size} processes")
        given = {name: getattr(options, name) for name in ("seed", "steps", "lr", "data")}
        path = None if options.checkpoint is None else options.checkpoint / f"{options.policy}.safetensors"
        said = {name: str(value) for name, value in (given | {"loss_scale": options.loss_scale}).items()}
        kept = Kept(path, options.every, options.resume, said)
        scaler = measure.loss_scaler(options.loss_scale)
        with group, stop.noted():
            found = train(policy, scaler, **given, device=device, kept=kept, stop=stop, group=group)
    except (TypeError, ValueError, OSError, ImportError, RuntimeError) as error:
        p.error(str(error))
    if group.rank == 0:
        print(measure.table({options.policy: found}, {"test accuracy": "{accuracy:.2%}"}, "images"))
        if found["stopped"]:
            print(f"\n{options.policy} stopped after {len(found['curve'])} steps: {found['stopped']}")
    if found["stopped"]:
        p.exit(128 + stop.number if stop.number else 1)
    return found


if __name__ == "__main__":
    main()
