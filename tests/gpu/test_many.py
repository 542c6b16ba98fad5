"""Copies of many arrays in one launch. Rows of several arrays are tested in test_optimizer.py."""

import numpy as np
import pytest

from gpu.both_ways import launches, on_device
from tinymp.backend import cpu


def arrays(seed):
    shapes = [((), "int64"), ((1,), "float16"), ((3, 5), "float16"), ((700,), "float32"), ((0,), "float32")]
    rng = np.random.default_rng(seed)
    return [np.asarray(100 * rng.standard_normal(shape)).astype(dtype) for shape, dtype in shapes]


@pytest.mark.parametrize("wanted", [True, "there", "not there"])
def test_copies(gpu, wanted):
    sources, targets = arrays(1), arrays(2)
    expected = targets if wanted == "not there" else sources
    on_gpu = [on_device(x) for x in sources], [on_device(x) for x in targets]
    before = len(launches() or ())
    gpu.copy_all(*on_gpu, True if wanted is True else on_device(np.array(wanted == "there")))
    if launches() is not None:
        assert [name.rpartition("_")[0] for name in launches()[before:]] == ["copy_all"]
    for x, e in zip(on_gpu[1], expected, strict=True):
        np.testing.assert_array_equal(x.get(), e)
    cpu.copy_all(sources, targets, wanted != "not there")
    for x, e in zip(targets, expected, strict=True):
        np.testing.assert_array_equal(x, e)


def test_what_a_graph_finds_later_has_memory_of_its_own(gpu, monkeypatch):
    """On an H200 a table lay where an earlier kernel of the same graph wrote in every replay."""
    from tinymp.gpu import recording

    def refuse(size):
        raise MemoryError("the pool was asked")

    with gpu.xp.cuda.using_allocator(refuse):
        with pytest.raises(MemoryError):
            recording.lasting((3, 2), "int32")
        monkeypatch.setattr(recording._here, "recording", recording.Recording())
        own = recording.lasting((3, 2), "int32")
    assert own.shape == (3, 2) and own.dtype == "int32"
