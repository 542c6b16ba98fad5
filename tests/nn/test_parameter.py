"""Parameter: the master and the working copy agree, whoever writes."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn

FINE = 1 + 2.0**-20  # exact in FP32, 1 in FP16


def mixed(*shape):
    return mp.MIXED.cast(nn.Parameter(np.zeros(shape, "float32")))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.write(np.full(3, FINE, "float32")),
        lambda p: p.copy_(np.full(3, FINE, "float32")),
        lambda p: p.__setitem__(slice(None), FINE),
        lambda p: nn.init.constant_(p, FINE),
    ],
    ids=["write", "copy_", "setitem", "init"],
)
def test_every_way_to_write_keeps_master_and_copy_together(change):
    p = mixed(3)
    with mp.no_grad():
        change(p)
        assert (p.master == np.float32(FINE)).all()
        assert (p.data == 1).all()
        assert p.dtype == "float16"
        p.zero_()
    assert not p.master.any()
    assert not p.data.any()


def test_writing_in_place_is_for_no_grad():
    with pytest.raises(RuntimeError, match="copy_: this tensor is part of a graph"):
        mixed(3).copy_(np.ones(3))


def test_only_floating_data():
    with pytest.raises(TypeError, match=r"only floating tensors|expected floating data"):
        nn.Parameter([1, 2])
