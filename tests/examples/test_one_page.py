"""examples/one_page.py computes the bits that tinymp computes, and needs nothing of it."""

import ast
import pathlib
import re
import runpy
import statistics
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
def test_every_number_of_300_steps_with_three_overflows_is_that_of_tinymp(monkeypatch):
    monkeypatch.setattr(one_page, "PATIENCE", 60)
    images, labels = one_page.digits()
    weights = one_page.network(np.random.default_rng(0))
    scale, good_steps, overflows = 2.0**18, 0, 0

    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    for p, w in zip(model.parameters(), weights, strict=True):
        p.data = w.master.copy()
    optimizer = optim.SGD(model.parameters(), lr=one_page.LEARNING_RATE, momentum=one_page.MOMENTUM)
    scaler = optim.DynamicLossScaler(scale, growth_interval=one_page.PATIENCE)

    random = np.random.default_rng(0)
    for step in range(300):
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
    assert overflows == 3 and scale != 2.0**18 and loss < 0.2


@pytest.mark.cpu
def test_gradients_of_a_tensor_that_is_used_twice_are_those_of_tinymp():
    """A hidden layer that is read by itself and through another: y = relu(h W + b) W + b, the weights twice, too."""
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(shape).astype(np.float16) for shape in ((8, 16), (16, 16), (16,)))
    labels = random.integers(0, 16, 8)
    one_page.tape.clear()
    mine = [one_page.Tensor(a) for a in (x, w, b)]
    hidden = one_page.relu(one_page.linear(*mine))
    loss = one_page.cross_entropy(one_page.linear(hidden, *mine[1:]), labels)
    grads = one_page.backward(loss, 1024.0)

    its = [mp.tensor(a, requires_grad=True) for a in (x, w, b)]
    with mp.use(mp.MIXED):
        its_loss = ops.cross_entropy(ops.linear(ops.relu(ops.linear(*its)), *its[1:]), mp.tensor(labels))
        (its_loss * 1024.0).backward()
    assert same(loss.data, its_loss.numpy())
    assert all(same(grads[a], np.asarray(b.grad)) for a, b in zip(mine, its, strict=True))


def test_imports_numpy_alone_and_is_a_page():
    text = PAGE.read_text("utf-8")
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert imported - sys.stdlib_module_names == {"numpy"} and len(text.splitlines()) <= 200


def test_learns_the_digits_and_says_what_was_lost(capsys):
    runpy.run_path(str(PAGE), run_name="__main__")
    said = capsys.readouterr().out
    epochs = re.findall(r"^ +(\d+) .* (\d+)  ([\d.]+)%$", said, re.M)
    assert epochs[-1][0] == "20" and int(epochs[-1][1]) >= 3  # skipped steps
    assert statistics.fmean(float(right) for _, _, right in epochs[-4:]) > 97
    lost = {
        place: (float(one), float(scaled))
        for place, one, scaled in re.findall(r"^(.+?) +[\d,]+ +([\d.]+)% +([\d.]+)%$", said, re.M)
    }
    assert list(lost) == ["linear y", "cross_entropy dx", "linear dx", "linear dw", "linear db"]
    assert lost["cross_entropy dx"][0] > 20 > 2 > lost["cross_entropy dx"][1]
    assert re.search(r"up to \S+e-04 off its master; without masters [3-6]\d% of the last update would be lost", said)
