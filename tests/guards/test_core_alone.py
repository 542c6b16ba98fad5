"""The core stands alone: copied without any of its subpackages, it imports and trains, and finds nothing elsewhere."""

import os
import re
import subprocess
import sys

import pytest

from core_alone import ROOT, SUBPACKAGES, copy, run

pytestmark = pytest.mark.cpu

PROGRAM = """
import sys
from core_alone import only_from

here = sys.argv[1]
only_from(here)
import numpy as np

import tinymp as mp
from tinymp import data, nn, ops, optim

x, y = np.random.default_rng(0).standard_normal((32, 1, 8, 8)).astype("float32"), np.arange(32) % 4
for policy in (mp.FP32, mp.MIXED):
    mp.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = policy.cast(nn.Sequential(*layers, nn.Linear(128, 4)))
    optimizer, scaler, losses = optim.Adam(model.parameters(), lr=0.01), optim.DynamicLossScaler(), []
    for inputs, labels in data.DataLoader(data.TensorDataset(np.tile(x, (15, 1, 1, 1)), np.tile(y, 15)), batch_size=32):
        with mp.use(policy):
            loss = ops.cross_entropy(model(policy.cast(inputs)), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses
for name, module in sys.modules.items():
    assert not name.startswith("tinymp") or str(module.__file__).startswith(here), module
"""


@pytest.mark.parametrize("name", [*SUBPACKAGES, "all"])
def test_it_trains_without(name, tmp_path):
    copy(tmp_path, SUBPACKAGES if name == "all" else [name])
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_the_tests_of_the_core_run_without_what_can_go():
    assert run(["tests/core/ops/test_softmax.py", "-q", "-n", "0"], SUBPACKAGES) == 0


def test_without_plugins_and_libraries():
    """The suite starts with nothing but pytest, NumPy and tqdm: what needs more is skipped."""
    missing = ("hypothesis", "matplotlib", "numkong", "PIL", "threadpoolctl")
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import pytest; sys.exit(pytest.main())"
    files = "tests/core/backend/test_long_sums.py", "tests/audit/test_products.py"
    command = [sys.executable, "-c", code, "-rs", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hypothesis is not installed (the extra test)" in done.stdout  # the whole file imports it
    assert "matplotlib is not installed (the extra test)" in done.stdout  # what one test calls imports it
    assert re.search(r"^skipped for want of an extra: test \([2-9]\d*\)$", done.stdout, re.M)
    assert " passed" in done.stdout
