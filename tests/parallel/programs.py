"""Programs that tests run in several processes: `mpiexec -n 2 python programs.py NAME FOLDER`."""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tinymp as mp
from examples.paper.buckets import BucketBatchSampler
from tinymp import nn, ops, optim, parallel

HALVES = dataclasses.replace(mp.MIXED, name="HALVES", exchange=mp.float16)
ITEMS, FEATURES, CLASSES = 96, 6, 3
EXITS = {"exits with 3": 3, "exits": None}


def network():
    mp.manual_seed(1)
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, CLASSES)
    )


def data(items=ITEMS):
    r = np.random.default_rng(0)
    return mp.data.TensorDataset(r.normal(size=(items, FEATURES)).astype("float32"), r.integers(0, CLASSES, items))


def loss_of(model, policy, x, y):
    return ops.cross_entropy(model(policy.cast(x)), y)


def write(folder, name, group, **values):
    """Write the values of rank 0."""
    if group.rank == 0:
        Path(folder, f"{name}-{group.size}.json").write_text(json.dumps(values))


def hexes(model):
    return {name: x.tobytes().hex() for name, x in model.state_dict().items()}


def train(group, folder, keep=False, pause=0.0, epochs=2):
    """Two epochs with a dynamic scale, checkpoints after every step if wanted."""
    model = network()
    ddp = parallel.DistributedDataParallel(model, group, bucket_cap_mb=0.0005)
    optimizer, scaler = optim.Adam(model.parameters(), lr=0.02), optim.DynamicLossScaler(growth_interval=5)
    loader = mp.data.DataLoader(data(), 24, shuffle=True, drop_last=True, seed=3, group=group)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "loader": loader}
    kept = mp.Checkpointer(Path(folder, "kept"), keep=2, **parts) if keep else None
    step, losses = (kept.load() if kept else {}).get("step", 0), []
    while loader.epoch < epochs or loader.state_dict()["left"] is not None:
        for x, y in loader:
            loss = loss_of(model, mp.FP32, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(group.mean(loss.item()))
            step += 1
            if kept:
                kept.save(step)
                time.sleep(pause)
        if loader.epoch >= epochs:
            break
    ddp.verify()
    return model, ddp, losses, step


def fp32(group, folder):
    """N processes with a part of each batch, and one with all of it."""
    model, ddp, losses, _ = train(group, folder)
    assert hexes(train(group, folder)[0]) == hexes(model)  # from run to run
    write(folder, "fp32", group, weights={k: x.tolist() for k, x in model.state_dict().items()}, losses=losses,
          sent=ddp.sent, passes=ddp.passes)  # fmt: skip


def killed(group, folder):
    """As `fp32`, slowly and with checkpoints; it says which processes run."""
    pids = group.tell(os.getpid())
    write(folder, "pids", group, pids=pids)
    model, _, _, step = train(group, folder, keep=True, pause=0.03 if "--slow" in sys.argv else 0.0)
    write(folder, "killed", group, weights={k: x.tolist() for k, x in model.state_dict().items()}, step=step)


def features(group, folder):
    gradients(group, mp.MIXED)
    gradients(group, HALVES)
    gradients(group, mp.BF16)
    accumulation(group)
    statistics(group)
    agreement(group)
    refusals(group)


def gradients(group, policy):
    """One backward pass: the mean of what each process alone would have, within the roundings of the policy."""
    model = policy.cast(network())
    ddp = parallel.DistributedDataParallel(model, group, bucket_cap_mb=0.0005)
    x, y = (t[:32] for t in data().tensors)
    part = slice(group.rank, None, group.size)
    found = []
    for own in (True, False, False, False):  # alone; without, and twice with buckets
        with ddp.no_sync() if own else mp.use(policy), mp.use(policy):
            (64.0 * loss_of(model, policy, x[part], y[part])).backward()
        found.append([p.grad_array.copy() for p in model.parameters()])
        model.zero_grad()
        assert own or len(ddp._buckets) > 2
    bits = 11 if policy is HALVES else 24
    for own, *together in zip(*found):
        all_own = np.stack([np.asarray(g, "float64") for g in group.all_gather(own[None])]).reshape(-1, *own.shape)
        mean, least = all_own.mean(0), 2.0**-24 if policy is HALVES else 0.0
        roundings = group.size + 1  # each part divided and rounded, and each addition
        bound = roundings * (2.0**-bits * np.abs(all_own).mean(0) + least)
        for g in together:
            assert g.dtype == (own.dtype if policy is HALVES else "float32")
            assert np.all(np.abs(g - mean) <= bound), np.abs(g - mean).max()
        assert np.array_equal(together[0], together[1])  # from run to run, with and without overlap
        assert np.array_equal(together[1], together[2])
    half = 2 if policy is HALVES else 4
    norm = sum(p.array.size for p in model.parameters() if p.normalisation)
    weights = sum(p.array.size for p in model.parameters()) - norm
    assert ddp.sent == ddp.passes * (half * weights + 4 * norm), (ddp.sent, ddp.passes)


def accumulation(group):
    """Gradients of two passes, sent once; the second time with buckets that are filled meanwhile."""
    model = network()
    ddp = parallel.DistributedDataParallel(model, group)
    x, y = data().tensors
    part, found = slice(group.rank, None, group.size), []
    for _ in range(2):
        with ddp.no_sync():
            loss_of(model, mp.FP32, x[:24][part], y[:24][part]).backward()
        loss_of(model, mp.FP32, x[24:48][part], y[24:48][part]).backward()
        found.append([p.grad_array.copy() for p in model.parameters()])
        model.zero_grad()
    assert ddp.passes == 2
    with ddp.no_sync():
        for begin in (0, 24):
            loss_of(model, mp.FP32, x[begin : begin + 24], y[begin : begin + 24]).backward()
    for p, a, b in zip(model.parameters(), *found):
        assert np.allclose(p.grad_array, a, rtol=1e-5, atol=1e-6) and np.array_equal(a, b)


def statistics(group):
    """Batch norm's are each process's own, until they take rank 0's."""
    x = mp.tensor(np.random.default_rng(group.rank).normal(size=(8, 3, 2, 2)).astype("float32"))
    model = nn.Sequential(nn.BatchNorm2d(3))
    ddp = parallel.DistributedDataParallel(model, group)
    model(x)
    found = group.tell(model[0].running_mean.numpy().tolist())
    assert found[0] != found[1]
    ddp.sync_buffers()
    assert group.tell(model[0].running_mean.numpy().tolist()) == [found[0]] * group.size


def agreement(group):
    """100 steps in which one process or another overflows, or has a loss that is not finite: all skip, or none."""
    model = mp.MIXED.cast(network())
    ddp = parallel.DistributedDataParallel(model, group)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    scaler = optim.DynamicLossScaler(growth_interval=3, max_consecutive_skips=1000)
    r, every = np.random.default_rng(group.rank), data().tensors
    skipped = 0
    for step in range(100):
        pick = r.integers(0, ITEMS, 4)
        x, y = (mp.tensor(t.numpy()[pick]) for t in every)
        loss = loss_of(model, mp.MIXED, x, y)
        if r.random() < 0.05:
            loss = loss * 3e38  # the gradients overflow
        if step % 50 == 7 and group.rank == group.size - 1:
            loss = loss * float("nan") if step % 100 == 7 else loss + mp.tensor(float("inf"))  # finite gradients
        scaler.scale(loss).backward()
        skipped += not scaler.step(optimizer).applied
        scaler.update()
        optimizer.zero_grad()
    ddp.verify()
    assert 4 < skipped < 50
    group.first("agreement", skipped=skipped, scale=scaler.get_scale(), changes=len(scaler.history))


def refusals(group):
    def refused(error, text, call):
        with pytest.raises(error, match=text):
            call()

    rank, loader = group.rank, mp.data.DataLoader
    odd = nn.Linear(2, 3 if rank else 2)
    refused(ValueError, "in rank 1 and", lambda: parallel.DistributedDataParallel(odd, group))
    model = network()
    ddp = parallel.DistributedDataParallel(model, group)
    with mp.no_grad():
        model[0].bias[0] = float(rank)
    refused(RuntimeError, "1 weights of rank 1 are not those of rank 0, the first is '0.bias'", ddp.verify)
    refused(RuntimeError, "got no gradient", lambda: model[0](data().tensors[0]).sum().backward())
    scaled = [network(), None]
    scaled[1] = parallel.DistributedDataParallel(scaled[0], group)
    loss = optim.StaticLossScaler(2.0 ** (1 + rank)).scale(loss_of(scaled[0], mp.FP32, *data().tensors))
    refused(RuntimeError, "scale their losses by 2 to", loss.backward)
    bucket = BucketBatchSampler(np.arange(ITEMS), 16, np.random.default_rng(rank))
    for text, items, options in (
        ("same items in all processes, got 32 in rank 1 and 16", data(16 * (1 + rank)), {}),
        ("same seed in all", data(), {"batch_size": 16, "shuffle": True, "seed": rank}),
        ("same order in all", data(), {"batch_sampler": bucket}),
        ("share evenly", data(), {"batch_size": 3 * group.size + 1}),
    ):
        refused(ValueError, text, lambda i=items, o=options: list(loader(i, group=group, **o)))


def failing(group, folder):
    """Rank 1 does not do what the others do."""
    how = sys.argv[3]
    group.barrier()  # all are here, however long that took
    group.timeout = 1.0
    began = time.perf_counter()
    if group.rank == 1:
        if how == "raises":
            raise ValueError("the data are bad")
        if how in EXITS:
            sys.exit(EXITS[how])
        if how == "hangs":
            time.sleep(600)
        if how == "differs":
            group.broadcast(np.zeros(2))
    try:
        group.all_reduce(np.zeros(3))
    finally:
        print(f"rank {group.rank} waited for {time.perf_counter() - began:.0f} s", flush=True)


def main():
    name, folder = sys.argv[1:3]
    with parallel.init(timeout=60) as group:
        globals()[name](group, folder)
        if group.rank == 0:
            print(f"{name}: done by {group.size}")


if __name__ == "__main__":
    main()
