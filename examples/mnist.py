"""Train one CNN twice, in FP32 and in mixed precision, from the same weights on the same batches, and compare.

    python -m examples.mnist

The step in `train` is the order that every program follows: forward, loss in FP32, scale, backward, unscale in FP32,
finite?, apply or skip, adjust the scale (MPT sections 3.1 and 3.2, NVG section 2.3.2).
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import statistics
import time

import numpy as np
from tqdm import tqdm

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.lab import shipped

from . import checkpoints, datasets, report, stopping
from .options import add_policy, loss_scale, loss_scaler, natural, positive, rate

ALONE = mp.parallel.Group()


def cnn(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """conv 3x3 32 - batch norm - ReLU - max pool - conv 3x3 64 - batch norm - ReLU - max pool - fc 128 - ReLU - fc."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1, bias=False),  # the batch norm has a bias of its own
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def train(
    policy: mp.Policy,
    scaler: optim.LossScaler,
    data: tuple,
    options: argparse.Namespace,
    kept: checkpoints.Checkpoint = checkpoints.NOWHERE,
    group: mp.parallel.Group = ALONE,
) -> report.Run:
    """One run under `policy`, by all processes of the group together. The seed fixes the weights and the order of the
    batches, whatever the policy and however many processes share each batch.
    """
    train_x, train_y, test_x, test_y = data
    mp.manual_seed(options.seed)
    model = policy.cast(cnn(*train_x.shape[1:], classes=int(max(train_y.max(), test_y.max())) + 1)).to(options.device)
    ddp = mp.parallel.DistributedDataParallel(model, group)  # of one process: it does nothing
    dataset = mp.data.TensorDataset(train_x, train_y)
    loader = mp.data.DataLoader(dataset, options.batch, shuffle=True, drop_last=True, seed=options.seed, group=group)
    moves = np.random.default_rng(options.seed + group.rank)
    steps = min(options.steps or len(loader) * options.epochs, len(loader) * options.epochs)
    optimizer = optim.Adam(model.parameters(), lr=options.lr)
    schedule = optim.CosineAnnealingLR(optimizer, T_max=steps)
    run, times = report.Run(policy=policy.name), []
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "schedule": schedule}
    parts |= {"loader": loader, "moves": moves}
    kept.load(run, **parts)
    done = len(run.curve)  # steps: more than 0 where a run goes on

    batches = (batch for _ in itertools.count() for batch in loader)
    with (
        mp.use(policy),
        tqdm(total=steps, initial=done, desc=policy.name, unit="step", disable=group.rank > 0 or None) as bar,
    ):
        for step, (images, labels) in zip(range(done, steps), batches):
            images = datasets.shifted(images.numpy(), options.shift, moves)
            images, labels = policy.cast(mp.from_numpy(images)).to(options.device), labels.to(options.device)
            start = time.perf_counter()

            loss = ops.cross_entropy(model(images), labels)
            if step == 0:
                run.measure_bytes(loss)
            scaler.scale(loss).backward()
            if step % 20 == 0:
                run.count_exponents(model)
            result = scaler.step(optimizer)
            try:
                scaler.update()
            except FloatingPointError as error:  # the run has diverged: that is a result, too
                run.stopped = str(error)
                break
            schedule.step(result)

            mp.synchronize()  # a GPU goes on working when the call has returned
            times.append(time.perf_counter() - start)
            if step == 0:
                run.measure_state(model, optimizer)
            optimizer.zero_grad()
            run.curve.append(group.mean(loss.item()))
            run.skipped_steps += not result.applied
            bar.update()
            bar.set_postfix(loss=f"{run.curve[-1]:.3f}", scale=f"{scaler.get_scale():g}", refresh=False)
            if stopping.asked(group):
                break
            kept.save(run, **parts)

    if run.curve:
        run.loss = statistics.fmean(run.curve[-len(loader) :])
    if times:
        run.ms_per_step = 1000 * statistics.median(times)
        run.per_second = options.batch / statistics.median(times)
    run.loss_scale = scaler.get_scale()
    kept.save(run, now=True, **parts)
    ddp.sync_buffers()
    part = slice(group.rank, None, group.size)
    with mp.use(policy):
        own = accuracy(model, policy.cast(mp.tensor(test_x[part])).to(options.device), test_y[part])
    run.accuracy = group.mean(own, len(test_y[part]))
    run.stopped = run.stopped or stopping.asked(group)
    return run


def accuracy(model: nn.Module, images: mp.Tensor, labels: np.ndarray, batch: int = 250) -> float:
    """The share of images whose largest logit is at their label."""
    model.eval()
    with mp.no_grad():
        hits = [
            (model(images[i : i + batch]).argmax(1).numpy() == labels[i : i + batch]).sum()
            for i in range(0, len(labels), batch)
        ]
    return float(sum(hits)) / len(labels)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog=shipped.command("mnist"), description=__doc__.split("\n\n")[0])
    add_policy(p)
    p.add_argument(
        "--loss-scale", type=loss_scale, default="dynamic", metavar="S", help="none, a number, or dynamic (the default)"
    )
    p.add_argument("--epochs", type=positive, default=20, help="passes over the training images (default: 20)")
    p.add_argument("--steps", type=positive, help="stop each run after this many steps")
    p.add_argument("--batch", type=positive, default=64, help="images per step (default: 64)")
    p.add_argument("--shift", type=natural, default=2, help="move each image by up to so many pixels (default: 2)")
    p.add_argument(
        "--lr", type=rate, default=2e-3, help="Adam's first learning rate; it falls as a cosine (default: 0.002)"
    )
    p.add_argument(
        "--seed", type=natural, default=0, help="of the split, the weights and the order of batches (default: 0)"
    )
    p.add_argument(
        "--device", default="auto", help="where to train: cpu, gpu, or auto (the default), the GPU where one works"
    )
    p.add_argument(
        "--data",
        metavar="DIR",
        help="a folder with MNIST or Fashion-MNIST in idx format (default: 5,000 digits)",
    )
    p.add_argument(
        "--parallel",
        action="store_true",
        help="all processes that mpiexec (or, with GPUs, torchrun) has started share each batch",
    )
    checkpoints.add_options(p)
    p.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("runs/mnist"), help="where reports go (default: runs/mnist)"
    )
    return p


@stopping.noted()
def main(arguments: list[str] | None = None) -> dict[str, report.Run]:
    """Run both trainings, print the table, write report.json and report.png."""
    p = parser()
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    try:
        options.device = mp.default_device() if options.device == "auto" else options.device
        mp.backend.get(options.device)
        data = datasets.mnist(options.data, options.seed)
        options.out.mkdir(parents=True, exist_ok=True)
        group = mp.parallel.init(options.device) if options.parallel else ALONE
        if options.batch % group.size:
            raise ValueError(f"--batch {options.batch} cannot be shared evenly by {group.size} processes")
        plans = {"fp32": (mp.FP32, "none"), options.policy: (mp.POLICIES[options.policy.upper()], options.loss_scale)}
        kept = {
            name: checkpoints.of(options, name, policy=policy.name, loss_scale=scale)
            for name, (policy, scale) in plans.items()
        }
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        p.error(str(error))
    if options.batch > len(data[0]):
        p.error(f"--batch {options.batch} is more than the {len(data[0])} training images")
    runs = {}
    with group:
        for name, (policy, scale) in plans.items():
            runs[name] = train(policy, loss_scaler(scale), data, options, kept[name], group)
            if stopping.asked(group):
                break
    if group.rank > 0:
        return runs
    print(f"on the {options.device.upper()}:\n\n{report.table(runs)}")
    settings = report.settings_of(options)
    report.write_json(options.out / "report.json", runs, settings)
    report.write_png(
        options.out / "report.png",
        runs,
        f"MNIST CNN, batch {options.batch} on the {options.device.upper()}: FP32 and {options.policy.upper()}",
    )
    print(f"\nwrote {options.out / 'report.json'} and {options.out / 'report.png'}")
    return report.finish(p, runs)


if __name__ == "__main__":
    main()
