import gc
import threading
import time
import traceback
from collections import namedtuple

import numpy as np
import pytest

import tinymp as mp
from batches import LENGTHS, X, Y, batches_in_order, numbers
from oracle import randn
from tinymp.data import DataLoader, Dataset, Subset, TensorDataset, default_collate, pad_sequence, random_split

WAYS = pytest.mark.parametrize(("prefetch", "num_workers"), [(0, 0), (2, 0), (2**60, 0), (1, 3)])


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


# ---- batches ----


@WAYS
@pytest.mark.parametrize("dataset", [Rows(), TensorDataset(X, Y), Subset(Subset(TensorDataset(X, Y), Y), Y)])
def test_batches_in_order(prefetch, num_workers, dataset):
    for batch_size, drop_last, lengths in LENGTHS:
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


@WAYS
def test_sampler_and_collate_fn(prefetch, num_workers):
    for sampler in ([3, 3, 0], np.array([3, 3, 0]), mp.tensor([3, 3, 0])):
        how = {"sampler": sampler, "prefetch": prefetch, "num_workers": num_workers}
        loader = DataLoader(Rows(), 2, collate_fn=lambda items: [y for _, y in items], **how)
        assert list(loader) == list(loader) == [[3, 3], [0]] and len(loader) == 2
        assert list(DataLoader(TensorDataset(Y), 2, collate_fn=len, **how)) == [2, 1]  # also there it gets items


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: DataLoader(Rows(), sampler=[0, 10]), IndexError, r"`sampler` in \[-10, 9\] for 10 items, got 10"),
        (lambda: DataLoader(Rows(), sampler=[0.5]), TypeError, "`sampler` to be integers"),
        (lambda: DataLoader([1], 2, batch_sampler=[[0]]), ValueError, "batch_sampler alone, without batch_size"),
        (lambda: pad_sequence([np.ones(2), np.ones((2, 3))]), ValueError, r"\(2,\) as sequence 0 and \(2, 3\) as seq"),
        (lambda: pad_sequence([np.ones(2), np.ones(2, int)]), TypeError, "one dtype, got float64 .* and int64 as 1"),
    ],
)
def test_refused(call, error, match):
    with pytest.raises(error, match=match):
        list(call())


@pytest.mark.peer
def test_sequences_are_padded_as_pytorch_pads():
    torch = pytest.importorskip("torch")
    arrays = [randn(n, 2, seed=n).astype("float16") for n in (3, 1, 5)]
    for first in (False, True):
        theirs = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(x) for x in arrays], first, 2.5)
        y = pad_sequence([mp.tensor(arrays[0]), *arrays[1:]], first, 2.5)
        np.testing.assert_array_equal(y.numpy(), theirs.numpy(), strict=True)


# floor: 5, 2, 2, and the two that are left go to the first two; 0.7, 0.2, 0.1 have a floating sum just below 1
SPLITS = [(11, [0.5, 0.25, 0.25], [6, 3, 2]), (10, [0.7, 0.2, 0.1], [7, 2, 1]), (9, [9, 0], [9, 0])]


@pytest.mark.parametrize(("n", "lengths", "expected"), SPLITS)
def test_random_split_covers_every_item_once(n, lengths, expected):
    parts = random_split(list(range(n)), lengths, seed=1)
    assert [len(part) for part in parts] == expected
    assert sorted(i for part in parts for i in part) == list(range(n))


# ---- order ----


@pytest.mark.parametrize("dataset", [Rows(), TensorDataset(X, Y)])
def test_shuffling_is_seeded_new_in_each_epoch_and_independent_of_threads(dataset):
    runs = []
    for prefetch, num_workers in ((0, 0), (5, 0), (1, 2)):
        for how in ({"seed": 3}, {"generator": np.random.default_rng(3)}):
            loader = DataLoader(dataset, 3, shuffle=True, prefetch=prefetch, num_workers=num_workers, **how)
            runs.append([[i for batch in numbers(loader) for i in batch] for _ in range(3)])
    assert all(run == runs[0] for run in runs) and len(set(map(tuple, runs[0]))) == 3
    assert all(sorted(epoch) == Y.tolist() for epoch in runs[0])


# ---- thread ----


def test_num_workers_load_batches_side_by_side():
    together = threading.Barrier(3)

    class Three(Rows):
        def __getitem__(self, i):
            if i < 3:
                together.wait(10)  # or BrokenBarrierError
            return i

    assert [i for batch in DataLoader(Three(), num_workers=3, prefetch=0) for i in batch.tolist()] == Y.tolist()


class Cycle:
    """Only the garbage collector frees it."""

    def __init__(self, batches):
        self.batches, self.me = batches, self


@WAYS
@pytest.mark.parametrize("wait", [0, 0.01])
def test_leaving_the_loop_stops_the_thread(wait, prefetch, num_workers):
    def loader():
        return DataLoader(Rows(), prefetch=prefetch, num_workers=num_workers)

    for _ in loader():
        time.sleep(wait)  # 0: the thread is still busy; 0.01: it waits for a batch to be taken
        break
    with pytest.raises(ZeroDivisionError):
        [1 / 0 for _ in loader()]
    cycle = Cycle(iter(loader()))
    next(cycle.batches)
    del cycle
    iter(loader())  # never begun


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


@WAYS
@pytest.mark.parametrize("error", [FileNotFoundError, KeyError, StopIteration])
def test_an_error_of_the_dataset_is_raised_in_the_loop(prefetch, error, num_workers):
    dataset = Subset(Rows(broken=7, error=error), range(1, 10))
    loader = DataLoader(dataset, 3, prefetch=prefetch, num_workers=num_workers)
    batches = iter(loader)
    assert [next(batches)[1].tolist() for _ in range(2)] == [[1, 2, 3], [4, 5, 6]]  # what came before is delivered
    with pytest.raises(RuntimeError if error is StopIteration else error) as caught:
        next(batches)
    text = "".join(traceback.format_exception(caught.value))
    assert "item 7 of the Rows" in text and "in __getitem__" in text and "no such picture" in text
    loader.dataset.dataset.broken = None
    assert len(numbers(loader)) == 3  # and the loader still works


# ---- collate ----

Pair = namedtuple("Pair", "x y")


def test_default_collate_keeps_structure_and_dtypes():
    items = [
        {"pair": Pair(np.full((2,), i, np.float16), np.float64(i)), "list": [i, float(i), i > 0], "name": f"item {i}"}
        for i in range(3)
    ]
    batch = default_collate(items)
    assert batch["name"] == ["item 0", "item 1", "item 2"]
    assert (type(batch["pair"]), type(batch["list"]), batch["pair"].x.shape) == (Pair, list, (3, 2))
    tensors = [*batch["pair"], *batch["list"]]
    assert [t.dtype.name for t in tensors] == ["float16", "float64", "int64", "float32", "bool"]
    assert all(t.tolist() == [0, 1, 2] for t in tensors[1:4])
