"""A part of the fuzz (fuzz.py) with a fixed seed, and the fuzz itself: what it must find, it finds."""

import time
import warnings

import numpy as np
import pytest

import fuzz
import tinymp as mp
from tinymp import ops

pytestmark = pytest.mark.cpu


# hypothesis has the collector call a function of its own, in which an allocation may fail: Python can only warn
in_limited_memory = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@in_limited_memory
def test_a_part_of_the_fuzz():
    """Calls of one seed. When their number or the targets change, look at what they find; do not look for a seed."""
    found, raised = [], 0
    for i, made, end in fuzz.ends(0, range(1500), fuzz.targets()):
        raised += end.raised
        found += [f"{i}: {fuzz.shown(made)}: {end.wrong}"] if end.wrong else []
    assert not found, "\n".join(found)
    assert raised > 500


@in_limited_memory
@pytest.mark.parametrize("layers", [False, True])
def test_calls_reach_what_they_call(layers):
    """Many calls fit what they call, nearly everything is called in a way that fits, and no call ends wrongly."""
    tried = [t for t in fuzz.targets() if t.name.startswith("nn.") == layers]
    tried = [t for t in tried if not t.name.startswith(fuzz.around.PREFIXES)]
    returned, found = [], []
    with fuzz.limited():
        for i in range(15 * len(tried)):
            made = fuzz.call(1, i, tried)
            end = fuzz.run(made)
            found += [f"{i}: {fuzz.shown(made)}: {end.wrong}"] if end.wrong else []
            returned += [] if end.raised else [made.target.name]
    assert not found, "\n".join(found)
    assert len(returned) > 15 * len(tried) * (0.2 if layers else 0.5)  # a layer has two calls to fit
    missing = {t.name for t in tried} - set(returned)
    assert len(missing) < len(tried) / 6, sorted(missing)


def raising(error):
    def f(*_):
        raise error

    return f


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (raising(KeyError("f: no")), "KeyError"),
        (raising(ValueError("cannot reshape array")), "is unclear and does not begin with the name"),
        (lambda *_: np.ones(2) + np.ones(3), "is unclear and does not begin with the name"),
        (lambda *_: ops.relu(1), "does not begin with the name: TypeError: relu: expected"),
        (lambda *_: warnings.warn("f: overflow", RuntimeWarning, stacklevel=1), "RuntimeWarning"),
        (lambda *_: time.sleep(5), "takes more than 1 s"),
        (lambda x, *_: np.zeros(1 << 33, "uint8"), "MemoryError"),
        (raising(FileNotFoundError(2, "f: No such file", "a")), ""),
        (lambda *_: mp.tensor(1.0), ""),
    ],
)
def test_what_is_found(function, wrong, monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    with fuzz.limited():
        found = fuzz.run(fuzz.Call(fuzz.Target("f", function, ("f",)), (1,), {}, None)).wrong
    assert found.startswith(wrong) if wrong else not found
