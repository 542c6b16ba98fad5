import gc
import threading
import time
import traceback
from collections import namedtuple

import numpy as np
import pytest

import tinymp as mp
from batches import LENGTHS, X, Y, batches_in_order, numbers
from tinymp.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

BOTH = pytest.mark.parametrize("prefetch", [0, 1, 2, 2**60])


class Rows(Dataset):
    """X and Y item by item, with an error at item `broken`."""

    def __init__(self, broken=None, error=ValueError):
        self.broken, self.error = broken, error

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        if i == self.broken:
            raise self.error("no such picture")
        return X[i], int(Y[i])


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("DataLoader prefetch")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if threads():  # of a loop that only the collector finds, or about to end
        gc.collect()
    deadline = time.monotonic() + 10
    while threads():
        assert time.monotonic() < deadline, "a prefetching thread is left"
        time.sleep(0.001)


# ------------------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("num_workers", [0, 3])
@BOTH
@pytest.mark.parametrize("dataset", [Rows(), TensorDataset(X, Y), Subset(Subset(TensorDataset(X, Y), Y), Y)])
@pytest.mark.parametrize(("batch_size", "drop_last", "lengths"), LENGTHS)
def test_batches_in_order(prefetch, dataset, batch_size, drop_last, lengths, num_workers):
    loader = DataLoader(dataset, batch_size, drop_last=drop_last, prefetch=prefetch, num_workers=num_workers)
    batches_in_order(loader, lengths)


def test_a_subset_is_indexed_through_to_the_tensors():
    class Counting(np.ndarray):
        calls = 0

        def __getitem__(self, index):
            Counting.calls += 1
            return super().__getitem__(index)

    dataset = TensorDataset(X, Y)
    dataset.tensors[1].array = Y.view(Counting)
    part = Subset(Subset(dataset, [9, 8, 7, 6]), [3, 0, -2])
    assert numbers(DataLoader(part, 3)) == [[6, 9, 7]]
    assert Counting.calls == 1


@pytest.mark.parametrize("num_workers", [0, 3])
@BOTH
@pytest.mark.parametrize("sampler", [[3, 3, 0], np.array([3, 3, 0]), mp.tensor([3, 3, 0])])
def test_sampler_and_collate_fn(prefetch, sampler, num_workers):
    loader = DataLoader(
        Rows(),
        2,
        sampler=sampler,
        collate_fn=lambda items: [y for _, y in items],
        prefetch=prefetch,
        num_workers=num_workers,
    )
    assert list(loader) == list(loader) == [[3, 3], [0]]
    assert len(loader) == 2
    joined = DataLoader(TensorDataset(Y), 2, sampler=sampler, collate_fn=len)  # also there it gets items
    assert list(joined) == [2, 1]


# -------------------------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("dataset", [Rows(), TensorDataset(X, Y)])
def test_shuffling_is_seeded_new_in_each_epoch_and_independent_of_threads(dataset):
    runs = []
    for prefetch, num_workers in ((0, 0), (1, 0), (5, 0), (0, 3), (1, 2)):
        for how in ({"seed": 3}, {"generator": np.random.default_rng(3)}):
            loader = DataLoader(dataset, 3, shuffle=True, prefetch=prefetch, num_workers=num_workers, **how)
            runs.append([numbers(loader) for _ in range(3)])
    assert all(run == runs[0] for run in runs)
    epochs = [[i for batch in epoch for i in batch] for epoch in runs[0]]
    assert all(sorted(epoch) == Y.tolist() for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert numbers(DataLoader(dataset, 3, shuffle=True, seed=4)) != runs[0][0]


@pytest.mark.parametrize("num_workers", [0, 3])
@BOTH
def test_two_loops_at_once_and_one_left_early(prefetch, num_workers):
    loader = DataLoader(Rows(), 2, shuffle=True, seed=0, prefetch=prefetch, num_workers=num_workers)
    expected = [numbers(loader) for _ in range(3)]
    loader = DataLoader(Rows(), 2, shuffle=True, seed=0, prefetch=prefetch, num_workers=num_workers)
    for _ in loader:
        break
    pairs = list(zip(loader, loader))
    assert [[a.tolist(), b.tolist()] for (_, a), (_, b) in pairs] == [list(pair) for pair in zip(*expected[1:])]


# ------------------------------------------------------------------------------------------------------------- thread


def test_the_thread_loads_ahead_but_no_further_than_prefetch():
    seen = []

    class Seen(Rows):
        def __getitem__(self, i):
            seen.append(i)
            return i

    def settled(n):
        deadline = time.monotonic() + 10
        while len(seen) < n and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        return len(seen)

    batches = iter(DataLoader(Seen(), prefetch=3))
    assert settled(0) == 0  # nothing before the first batch is asked for
    next(batches)
    assert settled(4) == 4
    next(batches)
    assert settled(5) == 5
    assert len(threads()) == 1
    assert len(list(batches)) == 8


@pytest.mark.parametrize("prefetch", [0, 2])
def test_num_workers_load_batches_side_by_side(prefetch):
    together = threading.Barrier(3)

    class Three(Rows):
        def __getitem__(self, i):
            if i < 3:
                together.wait(10)  # or BrokenBarrierError
            return i

    loader = DataLoader(Three(), num_workers=3, prefetch=prefetch)
    assert [i for batch in loader for i in batch.tolist()] == Y.tolist()


class Cycle:
    """Only the garbage collector frees it."""

    def __init__(self, batches):
        self.batches, self.me = batches, self


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("wait", [0, 0.01])
def test_leaving_the_loop_stops_the_thread(depth, wait, num_workers):
    for _ in DataLoader(Rows(), prefetch=depth, num_workers=num_workers):
        time.sleep(wait)  # 0: the thread is still busy; 0.01: it waits for a batch to be taken
        break
    with pytest.raises(ZeroDivisionError):
        [1 / 0 for _ in DataLoader(Rows(), prefetch=depth, num_workers=num_workers)]
    batches = iter(DataLoader(Rows(), prefetch=depth, num_workers=num_workers))
    next(batches)
    del batches
    cycle = Cycle(iter(DataLoader(Rows(), prefetch=depth, num_workers=num_workers)))
    next(cycle.batches)
    del cycle
    iter(DataLoader(Rows(), prefetch=depth, num_workers=num_workers))  # never begun


@pytest.mark.parametrize("prefetch", [1, 2, 2**60])
def test_a_thread_whose_loop_was_left_does_not_meet_the_next_epoch_in_the_dataset(prefetch):
    inside, most = [], []

    class Busy(Rows):
        def __getitem__(self, i):
            inside.append(i)
            time.sleep(0.001)
            most.append(len(inside))
            inside.remove(i)
            return i

    loader = DataLoader(Busy(), 3, prefetch=prefetch)
    next(iter(loader))
    assert len(list(loader)) == 4
    assert max(most) == 1


@pytest.mark.parametrize("num_workers", [0, 3])
@BOTH
@pytest.mark.parametrize("error", [ValueError, FileNotFoundError, KeyError])
def test_an_error_of_the_dataset_is_raised_in_the_loop(prefetch, error, num_workers):
    loader = DataLoader(
        Subset(Rows(broken=7, error=error), range(1, 10)), 3, prefetch=prefetch, num_workers=num_workers
    )
    batches = iter(loader)
    assert [next(batches)[1].tolist() for _ in range(2)] == [[1, 2, 3], [4, 5, 6]]  # what came before is delivered
    with pytest.raises(error) as caught:
        next(batches)
    text = "".join(traceback.format_exception(caught.value))
    assert "item 7 of the Rows" in text
    assert "in __getitem__" in text
    assert "no such picture" in text
    loader.dataset.dataset.broken = None
    assert len(numbers(loader)) == 3  # and the loader still works


# ------------------------------------------------------------------------------------------------------------ collate

Pair = namedtuple("Pair", "x y")


def test_default_collate_keeps_structure_and_dtypes():
    items = [
        {"pair": Pair(np.full((2,), i, np.float16), np.float64(i)), "list": [i, float(i), i > 0], "name": f"item {i}"}
        for i in range(3)
    ]
    batch = default_collate(items)
    assert batch["name"] == ["item 0", "item 1", "item 2"]
    assert type(batch["pair"]) is Pair
    assert type(batch["list"]) is list
    assert batch["pair"].x.shape == (3, 2)
    tensors = [*batch["pair"], *batch["list"]]
    assert [t.dtype.name for t in tensors] == ["float16", "float64", "int64", "float32", "bool"]
    assert all(t.tolist() == [0, 1, 2] for t in tensors[1:4])
    assert default_collate([mp.tensor([1.0]), mp.tensor([2.0])]).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("num_workers", [0, 3])
@BOTH
def test_a_shape_that_differs_is_named_by_its_number_in_the_dataset(prefetch, num_workers):
    pictures = [np.zeros(5 if i == 7 else 4) for i in range(10)]
    with pytest.raises(ValueError, match=r"\(4,\) at item 6 and \(5,\) at item 7"):
        list(DataLoader(pictures, 3, prefetch=prefetch, num_workers=num_workers))


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("sampler", "error", "match"),
    [
        ([0, 10], IndexError, r"`sampler` in \[-10, 9\] for 10 items, got 10"),
        ([0.5], TypeError, "`sampler` to be integers"),
    ],
)
def test_a_sampler_is_checked_as_it_is_read(sampler, error, match):
    loader = DataLoader(Rows(), sampler=[3, *sampler], prefetch=0)
    assert next(iter(loader))[1].tolist() == [3]
    with pytest.raises(error, match=match):
        list(loader)


# ----------------------------------------------------------------------------------------------- samplers without end


class WithoutEnd:
    """0, 1, ..., 9, 0, 1, ...: a number that stands for no end."""

    read = 0

    def __len__(self):
        return 10**10

    def __iter__(self):
        for i in range(len(self)):
            self.read += 1
            yield i % 10


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_sampler_is_read_as_far_as_batches_are_loaded(prefetch, num_workers):
    sampler = WithoutEnd()
    loader = DataLoader(Rows(), 4, sampler=sampler, prefetch=prefetch, num_workers=num_workers)
    assert len(loader) == 25 * 10**8
    batches = iter(loader)
    assert sampler.read == 0
    for i in range(30):
        expected = [k % 10 for k in range(4 * i, 4 * i + 4)]
        assert next(batches)[1].tolist() == expected
        assert sampler.read == 4 * (i + 1 + max(prefetch, num_workers))
