import sys

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim

name, eps, least, seed = [*sys.argv[1:], *("MIXED", "1e-8", "6.1e-5", "0")[len(sys.argv) - 1 :]]
policy, scaler = mp.POLICIES[name], optim.DynamicLossScaler(min_scale=float(least))
rng = np.random.default_rng(int(seed))
kind = rng.integers(0, 10, 10_000)
points = rng.standard_normal((10, 32))[kind] + rng.standard_normal((10_000, 32))
mp.manual_seed(int(seed))
model = policy.cast(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8, bias=False)))
x, optimizer, skipped = policy.cast(mp.tensor(points.astype("f4"))), optim.SGD(model.parameters(), lr=0.02), 0
with mp.use(policy):
    for step in range(1, 501):
        a, b = rng.integers(0, 10_000, (2, 2000))  # pairs: two of a kind shall be close, others 3 apart
        distance = ((model(x[a]) - model(x[b])).square().sum(1) + float(eps)).sqrt().float()
        loss = ops.where(mp.tensor(kind[a] == kind[b]), distance, ops.relu(3 - distance)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad /= p.grad.norm()  # each parameter moves as far as the others
        skipped += not scaler.step(optimizer).applied
        scaler.update()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.2f}, S = {scaler.get_scale():g}, {skipped} steps skipped so far")
