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


def run(names=CALLS, dtype="float32", larger=True, images=None, images_last=False):
    """name: what its call computed, or the error. images: only so many of the first tensor's first axis, and of those
    that are as long. images_last: the first axis is the fastest in memory, as behind a convolution.
    """
    found = {}
    for name in names:
        times = LARGER.get(_most_axes(CALLS[name]), 5) if larger else 1
        try:
            found[name] = _run(CALLS[name], times, dtype, images, images_last)
        except (ValueError, IndexError):
            if images is None and not images_last:
                raise  # else an index outside of the one image, a variance of one, or a view of another memory order
    return found


def _most_axes(call):
    axes = []
    with _tensors_made_by(lambda values, **options: axes.append(np.ndim(values)) or mp.tensor(values, **options)):
        call()
    return max(axes)


def _run(call, times, dtype, images, images_last):
    """How long the first axis was, and for each forward and backward: the op, the place of its forward, the bits of its
    inputs and of its outputs.
    """
    ran, forwards, lengths = [], {}, []

    def look(phase, op, inputs, outputs):
        before, _ = forwards.setdefault(id(op), (len(ran), op))  # which keeps the op, and its id
        ran.append((f"{type(op).__module__}.{type(op).__qualname__}", before, *map(_bits, (inputs, outputs))))

    def tensor(values, **options):
        values = np.asarray(values)
        lengths.append(len(values))
        values = values[:images] if len(values) == lengths[0] else values
        values = values.astype("float32") if values.dtype == "float64" else values  # as tensors of lists are
        return _in_memory(values, images_last, **options)

    mp.manual_seed(0)
    with _tensors_made_by(tensor, times, dtype), watch(look):
        for y in _flat(call())[:2]:
            if isinstance(y, mp.Tensor) and y.requires_grad:
                dy = np.random.default_rng(1).uniform(-1, 1, y.shape)
                y.backward(_in_memory(dy.astype(y.dtype), images_last), retain_graph=True)
    return lengths[0], ran


def _in_memory(values, images_last, **options):
    """A tensor of NumPy's values."""
    if not images_last or values.ndim < 2:
        return mp.tensor(values, **options)
    return mp.tensor(np.moveaxis(values, 0, -1), **options).permute(-1, *range(values.ndim - 1))


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
    """The shape of each array, a hash of all of it, and one of its first image."""
    found = []
    for x in values:
        x = x.array if isinstance(x, mp.Tensor) else x
        x = backend.of(x).to_numpy(x) if hasattr(x, "dtype") else np.asarray(repr(x))
        found.append((x.shape, *[hashlib.sha1(part.tobytes()).digest() for part in (x, x[:1] if x.ndim else x)]))
    return found


def differing(a, b, one_image=False):
    """The ops of two runs that computed different bits of the same, and their calls. one_image: b had only one, and
    what has no axis for images is not compared.
    """
    found = set()
    for name in a.keys() & b.keys():
        (n, ran), (_, others) = a[name], b[name]

        def first(x, y, n=n):
            return x[0][:1] == (n,) and y[0] == (1, *x[0][1:])

        def same(x, y, first=first):
            return x == y or (one_image and first(x, y) and x[2] == y[2])

        agree: list[bool] = []
        for (op, before, inputs, outputs), (other, _, *more) in zip(ran, others):
            if op != other or len(outputs) != len(more[1]):  # `split` in fewer parts
                break
            given = all(map(same, inputs, more[0])) and all(agree[before : before + 1])
            pairs = [pair for pair in zip(outputs, more[1]) if not one_image or first(*pair)]
            agree.append(given and all(same(*pair) for pair in pairs))
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
