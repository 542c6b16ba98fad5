"""The GPU's random numbers: the published vectors, uniform numbers, stochastic rounding, seeds, states and graphs."""

import shutil
from itertools import pairwise

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import channels_last, on_device
from tinymp import backend
from tinymp.gpu import philox
from tinymp.gpu.kernels import Kernels

GPU = backend.gpu


@pytest.fixture(autouse=True)
def _gpu(gpu):
    GPU.manual_seed(0)


def test_published_vectors(tmp_path):
    """Philox 4x32-10 of Random123 (Salmon et al., 2011): counter, key -> 128 bits."""
    for name in ("elements.cuh", "random.cuh"):
        shutil.copy(philox.KERNELS.path.with_name(name), tmp_path)
    (tmp_path / "vectors.cu").write_text(
        '#include "random.cuh"\n'
        'extern "C" __global__ void vector(unsigned long long seed, unsigned long long offset,\n'
        "                                  unsigned long long index, unsigned int* bits) {\n"
        "    uint4 drawn = philox(seed, offset, index);\n"
        "    bits[0] = drawn.x, bits[1] = drawn.y, bits[2] = drawn.z, bits[3] = drawn.w;\n"
        "}\n"
    )
    kernels = Kernels(str(tmp_path / "vectors.py"))
    vectors = {
        ("00000000" * 4, "00000000" * 2): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ("ffffffff" * 4, "ffffffff" * 2): "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ("243f6a8885a308d313198a2e03707344", "a4093822299f31d0"): "d16cfe09 94fdcceb 5001e420 24126ea1",
    }
    for (counter, key), expected in vectors.items():
        c = [int(counter[i : i + 8], 16) for i in range(0, 32, 8)]
        k = [int(key[i : i + 8], 16) for i in range(0, 16, 8)]
        bits = on_device(np.zeros(4, "uint32"))
        kernels.launch(
            "vector", np.dtype("float32"), 1, 1, k[0] | k[1] << 32, c[2] | c[3] << 32, c[0] | c[1] << 32, bits
        )
        assert " ".join(f"{b:08x}" for b in bits.get()) == expected


@pytest.mark.parametrize("n", [0, 5, 1030])
def test_uniform(n):
    y = GPU.uniform((n,)).get()
    assert (y.dtype, y.shape) == ("float32", (n,)) and ((y >= 0) & (y < 1)).all()
    assert len(set(y.tolist())) == n  # 1030 of 2^24 numbers: none comes twice under this seed
    assert GPU.get_rng_state() == {"seed": 0, "offset": int(n > 0)}
    if n > 1000:  # Kolmogorov and Smirnov: exceeded by one seed in a thousand
        assert np.abs(np.sort(y) - (np.arange(n) + 0.5) / n).max() < 1.95 / np.sqrt(n)


def test_seed_and_state_repeat(monkeypatch):
    mp.manual_seed(11)
    first = GPU.uniform((10,)).get()
    state = mp.get_rng_state()
    second, third = GPU.uniform((10,)).get(), GPU.uniform((6,)).get()
    assert (first != second).all()
    assert state["gpu"] == {"seed": 11, "offset": 1}
    mp.set_rng_state(state)
    np.testing.assert_array_equal(GPU.uniform((10,)).get(), second)
    np.testing.assert_array_equal(GPU.uniform((6,)).get(), third)
    monkeypatch.setattr(philox, "_state", None)
    mp.manual_seed(11)  # before the first use
    np.testing.assert_array_equal(GPU.uniform((10,)).get(), first)
    mp.manual_seed(2**64 - 1)
    assert GPU.get_rng_state() == {"seed": 2**64 - 1, "offset": 0}
    assert (GPU.uniform((10,)).get() != first).all()
    with pytest.raises(ValueError, match="state to hold seed and offset"):
        GPU.set_rng_state({"bit_generator": "PCG64"})


def test_a_graph_draws_new_numbers_at_each_replay(gpu):
    import cupy

    GPU.uniform((1,))  # the state exists
    x = on_device(np.full(50, 1 + 2.0**-12, "float32"))
    cupy.cuda.get_current_stream().synchronize()  # the other stream does not wait for this one
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        y, z = GPU.uniform((50,)), GPU.cast_stochastic(x)
        graph = stream.end_capture()
        seen = []
        for _ in range(3):
            graph.launch(stream)
            stream.synchronize()
            seen.append((y.get(), z.get()))
    for (y0, z0), (y1, z1) in pairwise(seen):
        assert (y0 != y1).all()
        assert (z0 != z1).any()
    assert GPU.get_rng_state()["offset"] == 1 + 3 * 2
    GPU.set_rng_state({"seed": 0, "offset": 1})
    np.testing.assert_array_equal(GPU.uniform((50,)).get(), seen[0][0])  # as if it had not been captured


# ------------------------------------------------------------------------------------------------ stochastic rounding


HALVES = np.arange(2**16, dtype="uint16").view("float16")
STEPS = np.unique([*HALVES[np.isfinite(HALVES)].astype("f8"), -65536, 65536])  # 65 536 stands for infinity


def neighbours(x):
    """The FP16 numbers next to the float64 x below and above, and the share of the way from one to the other."""
    low, high = STEPS[np.searchsorted(STEPS, x, "right") - 1], STEPS[np.searchsorted(STEPS, x, "left")]
    share = (x - low) / np.where(high > low, high - low, 1)
    return *(np.where(np.abs(v) < 65536, v, np.copysign(np.inf, v)) for v in (low, high)), share


@pytest.mark.parametrize("value", [1 + 2.0**-12, -3.14159, 2.0**-14 * 0.999, -(2.0**-24) * 0.3, 1e-5, 65504 + 8])
def test_rounds_up_as_often_as_it_is_close(value):
    n = 3000
    x = np.full(n, value, "float32")
    low, high, share = neighbours(x[:1].astype("f8"))
    y = GPU.cast_stochastic(on_device(x)).get()
    assert y.dtype == "float16"
    assert set(np.unique(y)) == {*low, *high}
    assert abs((y.astype("f8") == high).mean() - share) < 5 * np.sqrt(share * (1 - share) / n)
    assert (np.signbit(y) == (value < 0)).all()  # also of zeros


def test_what_needs_no_rounding_stays():
    y = GPU.cast_stochastic(on_device(HALVES.astype("float32"))).get()
    np.testing.assert_array_equal(np.isnan(y), np.isnan(HALVES))
    number = ~np.isnan(HALVES)
    np.testing.assert_array_equal(y.view("uint16")[number], HALVES.view("uint16")[number])
    far = np.array([65536, -65536, 1e38, 1e-38, -1e-44, 0, -0.0], "float32")
    y = GPU.cast_stochastic(on_device(far)).get()
    np.testing.assert_array_equal(y, np.array([np.inf, -np.inf, np.inf, 0, -0.0, 0, -0.0]))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(far))


@pytest.mark.parametrize(("n", "start"), [(0, 0), (7, 0), (4, 1), (1029, 1)])
def test_sizes_and_unaligned_starts(n, start):
    x = np.random.default_rng(n).standard_normal(n + start).astype("float32")
    y = GPU.cast_stochastic(on_device(x)[start:]).get().astype("f8")
    GPU.manual_seed(0)  # each element has its own number, however many a thread takes
    np.testing.assert_array_equal(GPU.cast_stochastic(on_device(x[start:])).get(), y)
    low, high, _ = neighbours(x[start:].astype("f8"))
    assert ((y == low) | (y == high)).all()


def test_the_memory_order_is_kept():
    x = channels_last(np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("float32"))
    assert [2 * s for s in GPU.cast_stochastic(on_device(x)).strides] == list(x.strides)
    for on in (on_device(x), on_device(x.astype("float64")), on_device(np.ascontiguousarray(x))[:, ::2]):
        np.testing.assert_allclose(GPU.cast_stochastic(on).get(), on.get(), rtol=2.0**-10)
