"""A loop over a loader goes on where another stopped, in whatever way the batches are loaded."""

import numpy as np
import pytest

import tinymp as mp
from examples.paper.buckets import BucketBatchSampler
from tinymp.data import BatchSampler, DataLoader, Dataset, RandomSampler

pytestmark = pytest.mark.cpu
N = 11
X = np.arange(N)


class Numbers(Dataset):
    """0, 1, ..., N - 1."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return i


class Drawn:
    """A sampler that draws each number when it is read."""

    def __init__(self):
        self.generator = np.random.default_rng(6)

    def __len__(self):
        return N

    def __iter__(self):
        for _ in range(N):
            yield int(self.generator.integers(N))

    def state_dict(self):
        return self.generator.bit_generator.state

    def load_state_dict(self, state):
        self.generator.bit_generator.state = state


ORDERS = {
    "in order": dict,
    "shuffled by tinymp's generator": lambda: {"shuffle": True},
    "shuffled by a seed": lambda: {"shuffle": True, "seed": 3, "drop_last": True},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": np.random.Generator(np.random.MT19937(5))},
    "sampler": lambda: {"sampler": range(N - 1, -1, -1)},
    "drawn while it is read": lambda: {"sampler": Drawn()},
    "batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(X), 4, True)},
    "buckets": lambda: {"batch_sampler": BucketBatchSampler(X % 5, 3, np.random.default_rng(1))},
}
LOADING = [{"prefetch": 0}, {"prefetch": 2}, {"prefetch": 3, "num_workers": 2}]


def made(order, dataset=None, **loading):
    options = ORDERS[order]()
    size = {} if "batch_sampler" in options else {"batch_size": 3}
    return DataLoader(Numbers() if dataset is None else dataset, **size, **options, **loading)


def batches(loader, epochs):
    """All batches up to that epoch, as lists."""
    while loader.epoch < epochs:
        for batch in loader:
            yield batch.numpy().tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_it_goes_on_where_it_stopped(order, tmp_path):
    pytest.importorskip("safetensors")
    mp.manual_seed(0)
    whole = list(batches(made(order), 2))
    for stop in range(len(whole) + 1):
        mp.manual_seed(0)
        loader = made(order, **LOADING[stop % 3])
        running = batches(loader, 2)
        first = [next(running) for _ in range(stop)]
        mp.save(tmp_path / "run", loader=loader)  # in the body of the loop
        mp.manual_seed(9)
        other = made(order, **LOADING[(stop + 1) % 3])
        list(zip(range(stop % 4), other))  # whatever it did before
        mp.load(tmp_path / "run", loader=other)
        assert first + list(batches(other, 2)) == whole
        running.close()


STATES = [
    ({"items": 12}, "expected the state of a loader of 11 items, got 12"),
    ({"epoch": -1}, "expected `epoch` to be at least 0"),
    ({"left": np.array([3, 11])}, r"expected `left` in \[-11, 10\]"),
    ({"sizes": np.array([4])}, "expected `sizes` of .* items together, got 4"),
    ({"generator": np.random.MT19937(0).state}, "expected `generator` to be the state of a PCG64"),
    ({"sampler": {"generator": None}}, "expected `sampler` to be None, got a state"),
]


@pytest.mark.parametrize(("other", "message"), STATES)
def test_what_does_not_fit_is_refused_and_nothing_changes(other, message):
    loader = made("shuffled by a seed")
    for _ in loader:
        state = loader.state_dict()
        before = repr(state)
        with pytest.raises((ValueError, IndexError), match=message):
            loader.load_state_dict({**state, **other})
        assert repr(loader.state_dict()) == before
        break
