"""The bits that every op computes in its call (calls.py): which ops compute other bits in another run?

python tests/bits_of_ops.py    print them (a pickle), computed by one BLAS thread: for another environment
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import subprocess
import sys

import numpy as np

import calls
import tinymp as mp
from tinymp import backend
from tinymp.fast.cpu import threads
from watching import watch

CALLS = {**calls.CALLS, **{f"{name}, too": call for name, call in calls.OTHERS.items()}}
# So many times as long are arrays with so many axes; with more, 5 times. Odd: NumPy's sums begin with halves, too
LARGER = {1: 49, 2: 49, 3: 17}


def run(names=CALLS):
    """name: what its call computed: for each forward and backward the op, the place of its forward, and the bits."""
    return {name: _run(CALLS[name], LARGER.get(_most_axes(CALLS[name]), 5)) for name in names}


def _most_axes(call):
    axes = []
    with _tensors_made_by(lambda values, **options: axes.append(np.ndim(values)) or mp.tensor(values, **options)):
        call()
    return max(axes)


def _run(call, times):
    ran, forwards = [], {}

    def look(phase, op, inputs, outputs):
        before, _ = forwards.setdefault(id(op), (len(ran), op))  # which keeps the op, and its id
        ran.append((f"{type(op).__module__}.{type(op).__qualname__}", before, *map(_bits, (inputs, outputs))))

    mp.manual_seed(0)
    with _tensors_made_by(mp.tensor, times, "float32"), watch(look):
        for y in _flat(call())[:2]:
            if isinstance(y, mp.Tensor) and y.requires_grad:
                dy = np.random.default_rng(1).uniform(-1, 1, y.shape)
                y.backward(mp.tensor(dy.astype(y.dtype)), retain_graph=True)
    return ran


@contextlib.contextmanager
def _tensors_made_by(tensor, times=1, dtype=calls.dtype):
    before = calls.tensor, calls.times, calls.dtype
    calls.tensor, calls.times, calls.dtype = tensor, times, dtype
    try:
        yield
    finally:
        calls.tensor, calls.times, calls.dtype = before


def _flat(y):
    return [z for x in y for z in _flat(x)] if isinstance(y, (tuple, list)) else [y]


def _bits(values):
    """The shape of each array, and a hash of it."""
    found = []
    for x in values:
        x = x.array if isinstance(x, mp.Tensor) else x
        x = backend.of(x).to_numpy(x) if hasattr(x, "dtype") else np.asarray(repr(x))
        found.append((x.shape, hashlib.sha1(x.tobytes()).digest()))
    return found


def differing(a, b):
    """The ops of two runs that computed other bits of the same, and their calls."""
    found = set()
    for name in a.keys() & b.keys():
        agree: list[bool] = []
        for (op, before, inputs, outputs), (_, _, *others) in zip(a[name], b[name], strict=True):
            given = inputs == others[0] and all(agree[before : before + 1])
            agree.append(given and outputs == others[1])
            if given and not agree[-1]:
                found.add((op, name))
    return found


@contextlib.contextmanager
def blas_threads(n):
    """Within the block BLAS and the fast paths have so many threads, and these share also small work."""
    least, before = threads.LEAST, threads._get()
    threads.LEAST = 1 << 12
    threads._set(n)
    try:
        yield
    finally:
        threads.LEAST = least
        threads._set(before)


def elsewhere(*environments):
    """The runs of processes with these variables, which run at the same time."""
    fixed = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::ImportWarning"}
    command = [sys.executable, __file__]
    processes = [subprocess.Popen(command, env=fixed | more, stdout=subprocess.PIPE) for more in environments]
    return [pickle.loads(process.communicate()[0]) for process in processes]


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(run()))
