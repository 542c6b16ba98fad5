"""examples/one_page.py computes the bits that tinymp computes, and needs nothing of it."""

import ast
import pathlib
import re
import runpy
import sys

import numpy as np
import pytest

import tinymp as mp
from examples import one_page
from tinymp import nn, ops, optim

PAGE = pathlib.Path(one_page.__file__)


def same(a, b):
    """Equal in dtype and in every bit."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.cpu
def test_every_number_of_steps_with_overflows_is_that_of_tinymp(monkeypatch):
    monkeypatch.setattr(one_page, "PATIENCE", 30)
    images, labels = one_page.digits()
    weights = one_page.network(np.random.default_rng(0))
    scale, good_steps, overflows = 2.0**18, 0, 0

    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    for p, w in zip(model.parameters(), weights, strict=True):
        p.data = w.master.copy()
    optimizer = optim.SGD(model.parameters(), lr=one_page.LEARNING_RATE, momentum=one_page.MOMENTUM)
    scaler = optim.DynamicLossScaler(scale, growth_interval=one_page.PATIENCE)

    random = np.random.default_rng(0)
    for step in range(150):
        batch = random.choice(len(images), one_page.BATCH, replace=False)
        loss, overflow = one_page.step(weights, images[batch], labels[batch], scale)
        scale, good_steps = one_page.adjust(scale, good_steps, overflow)
        overflows += overflow

        with mp.use(mp.MIXED):
            its_loss = ops.cross_entropy(model(mp.tensor(images[batch])), mp.tensor(labels[batch]))
            scaler.scale(its_loss).backward()
            result = scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert same(loss, its_loss.numpy()) and result.applied != overflow and scaler.get_scale() == scale, step
        for p, w in zip(model.parameters(), weights):
            assert same(p.master, w.master) and same(p.array, w.data), (step, p.name)
    assert overflows > 1 and scale != 2.0**18 and loss < 0.4


def test_it_imports_numpy_alone_and_is_a_page_and_says_what_was_lost(capsys):
    text = PAGE.read_text("utf-8")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = {getattr(node, "module", node.names[0].name).partition(".")[0] for node in nodes}
    assert imported - sys.stdlib_module_names == {"numpy"} and len(text.splitlines()) <= 200
    runpy.run_path(str(PAGE), run_name="__main__")
    said = capsys.readouterr().out
    epochs = re.findall(r"^ +(\d+) .* (\d+)  ([\d.]+)%$", said, re.M)
    assert epochs[-1][0] == "20" and int(epochs[-1][1]) >= 3 and float(epochs[-1][2]) > 96  # skipped steps, right ones
    rows = re.findall(r"^(.+?) +[\d,]+ +([\d.]+)% +([\d.]+)%$", said, re.M)
    lost = {place: (float(one), float(scaled)) for place, one, scaled in rows}
    assert list(lost) == ["linear y", "cross_entropy dx", "linear dx", "linear dw", "linear db"]
    assert lost["cross_entropy dx"][0] > 20 > 2 > lost["cross_entropy dx"][1]
    assert re.search(r"up to \S+e-04 off its master; without masters [3-6]\d% of the last update would be lost", said)
