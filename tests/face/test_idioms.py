"""Idioms of public PyTorch programs (idioms.txt): each runs in PyTorch and, its imports changed, here, and ends equal.

A block begins with the counted name, and in how many of 1,523 scanned files of 56 public repositories it is; its last
line is the result. The results of a block marked `random` have the same shapes and dtypes, not the same values. Blocks
marked `refused` stay different on purpose, those marked `not yet` at the end do not: both end here in the error stated.
"""

import ast
import pathlib
import re

import pytest

from beside import compare
from ported import ported

pytest.importorskip("torch")
pytest.importorskip("tinymp.torch.nn")

TEXT = pathlib.Path(__file__).with_name("idioms.txt").read_text()
BLOCKS = [block.partition("\n")[::2] for block in re.split(r"^## ", TEXT, flags=re.M)[1:]]
BEFORE = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

r = np.random.RandomState(0)
def t(*shape):
    return torch.from_numpy(r.randn(*shape).astype(np.float32))
def same(module):
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(t(*p.shape) * 0.3)
    return module
def fit(module, optimizer):
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, module.weight
def rates(module, optimizer, scheduler):
    seen = []
    for _ in range(5):
        seen.append(optimizer.param_groups[0]["lr"])
        fit(module, optimizer)
        scheduler.step()
    return seen, scheduler.get_last_lr()
x, image = t(3, 4), t(2, 3, 8, 8)
ids, target = torch.tensor([[1, 2, 0], [3, 1, 2]]), torch.tensor([0, 2, 1])
"""


def result(source: str):
    """The value of the last expression of a program."""
    body = ast.parse(source).body
    scope: dict = {}
    exec(compile(ast.Module(body[:-1], []), "idiom", "exec"), scope)
    return eval(compile(ast.Expression(body[-1].value), "idiom", "eval"), scope)


@pytest.mark.filterwarnings("ignore:'pin_memory'")  # PyTorch's, without a GPU
@pytest.mark.filterwarnings(
    "ignore:torch.compile", "ignore:.torch.jit.script", "ignore:Using backward", "ignore:__array_wrap__"
)
@pytest.mark.parametrize(("head", "body"), BLOCKS, ids=[head.split()[0] for head, _ in BLOCKS])
def test_an_idiom_is_as_in_pytorch(head, body):
    source = BEFORE + body
    theirs, (*_, how) = result(source), head.split(" | ")
    answer, _, message = how.partition(": ")
    if answer in ("refused", "not yet"):
        with pytest.raises(Exception, match=re.escape(message)):
            result(ported(source))
    else:
        # FP32: sums of at most 192 products, in another order, of numbers near 1
        compare(theirs, result(ported(source)), 192 * 2**-24, 192 * 2**-24, how != "random")
