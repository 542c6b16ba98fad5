"""Arrays in every layout that memory knows: for fuzzing what looks at strides."""

import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from oracle import rng


@st.composite
def layouts(draw):
    """Arguments of `laid_out` that place any shape in memory: an order of axes, gaps, directions, repetitions, and
    strides of axes of length 1, which are arbitrary.
    """
    ndim = draw(st.integers(1, 4))

    def per_axis(values):
        return draw(st.lists(values, min_size=ndim, max_size=ndim))

    return (
        per_axis(st.integers(0, 5)),
        draw(st.permutations(range(ndim))),
        per_axis(st.sampled_from([1, 1, 1, 1, 2])),
        per_axis(st.sampled_from([1, 1, 1, 1, -1])),
        per_axis(st.sampled_from([False, False, False, True])),
        per_axis(st.integers(-50, 50)),
    )


def laid_out(layout, dtype, seed):
    """Small integers of the layout's shape, as floating numbers that lie in memory as it says."""
    shape, order, gaps, directions, repeated, odd = layout
    lengths = [shape[i] * gaps[i] for i in order]
    x = rng(seed).integers(-9, 10, lengths).astype(dtype).transpose(np.argsort(order))
    x = x[tuple(slice(None, None, gap * way) for gap, way in zip(gaps, directions))]
    x = x[tuple(slice(0, 1) if again and n else slice(None) for again, n in zip(repeated, x.shape))]
    x = np.broadcast_to(x, shape)
    strides = [x.itemsize * s if n == 1 else t for n, s, t in zip(shape, odd, x.strides)]
    return as_strided(x, shape, strides)
