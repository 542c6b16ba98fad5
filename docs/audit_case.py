"""The worked case of audit.md: an autoencoder that restores digits from scans of any brightness.

python docs/audit_case.py FP32 MIXED                            # learns in FP32, and badly in FP16
python docs/audit_case.py FP32 MIXED --divide-first --scale     # mended
"""

import argparse
from pathlib import Path

import numpy as np

import tinymp as mp
from tinymp import data, nn, ops, optim

parser = argparse.ArgumentParser()
parser.add_argument("policies", nargs="*", default=["MIXED"], help="what to train in (default: MIXED)")
parser.add_argument("--divide-first", action="store_true", help="divide a scan by its peak before squaring it")
parser.add_argument("--scale", action="store_true", help="scale the loss")
parser.add_argument("--epochs", type=int, default=60)
args = parser.parse_args()
images = np.load(Path(__file__).parents[1] / "examples/digits.npz")["mnist_images"].reshape(-1, 784)
rng = np.random.default_rng(0)
digits = rng.permutation(images).astype("float32")
light = 10 ** rng.uniform(-2, 0, (len(digits), 1)).astype("float32")  # 1 % to 100 %
scans = np.round(digits / 255 * 4095 * light)  # 12 bits
digits /= np.linalg.norm(digits, axis=1, keepdims=True)
train, test = (data.TensorDataset(scans[part], digits[part]) for part in (slice(4000), slice(4000, 5000)))


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 784))

    def forward(self, x):
        if args.divide_first:
            x = x / x.amax(1, keepdim=True)
        x = x / (x * x).mean(1, keepdim=True).sqrt()  # equally bright: the mean square is 1
        return self.decoder(self.encoder(x).relu())


def train_in(policy):
    mp.manual_seed(0)
    model = policy.cast(Restorer())
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    scaler = optim.DynamicLossScaler() if args.scale else optim.NoLossScaler()
    with mp.use(policy):
        for _ in range(args.epochs):
            for x, y in data.DataLoader(train, batch_size=800, shuffle=True):
                loss = ops.mse_loss(model(policy.cast(x)), policy.cast(y))
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        with mp.no_grad():
            x, y = test[:]
            return np.mean((model(policy.cast(x)).numpy() - y.numpy()) ** 2) / np.mean(np.var(y.numpy(), axis=0))


for name in args.policies:
    unexplained = train_in(mp.POLICIES[name])
    print(f"{name}: {unexplained:.1%} of the variance of new digits is left unexplained")
