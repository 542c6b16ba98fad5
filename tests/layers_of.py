"""Checks that tests of layers share: PyTorch's constructor and state, and the op that a layer calls."""

import inspect
import math

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import nn, ops

SHAPE = (64, 32, 5, 5)  # of a weight to initialise: fan_in 800, fan_out 1600
N = math.prod(SHAPE)


def constructor_is_pytorchs(name, words):
    """words: PyTorch's constructor arguments in order; ~ marks those that are not here. What follows one is given by
    keyword, so that a positional call never means something else.
    """
    layer = getattr(nn, name)
    parameters = inspect.signature(layer).parameters
    words = words.split()
    first = next((i for i, word in enumerate(words) if word.startswith("~")), len(words))
    assert [k for k, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == words[:first]
    assert [k for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == [w for w in words[first:] if w[0] != "~"]
    assert not layer.__doc__.startswith(f"{name}("), "a docstring of its own, not the dataclass's"
    required = {k: 4 for k, p in parameters.items() if p.default is p.empty}
    for refused in [word[1:] for word in words if word.startswith("~")]:
        with pytest.raises(TypeError, match=f"{name}.*argument .{refused}."):
            layer(**required, **{refused: 1})


def function(op, *args, **kwargs):
    """The op of this name with these options, as a layer must call it."""
    return lambda m, *inputs: getattr(ops, op)(*inputs, *args, **kwargs)


def forward_is(build, shape, expected, policy):
    """The layer that `build` makes is expected(layer, input), on random input of this shape under a policy."""
    m = policy.cast(build())
    x = policy.cast(mp.tensor(randn(*shape).astype("float32")))
    y = m(x)
    assert y.dtype == policy.storage
    np.testing.assert_array_equal(y.numpy(), expected(m, x).numpy())
    if list(m.parameters()):
        y.sum().backward()
        assert all(p.grad.dtype == policy.storage for p in m.parameters())


def weight(*shape, dtype="float32"):
    return nn.Parameter(np.zeros(shape or SHAPE, dtype))


def moments_are(fill, mean, std, bound, dtype):
    """`fill` draws a weight from a distribution with this mean, standard deviation and bound."""
    mp.manual_seed(3)
    p = weight(dtype=dtype)
    assert fill(p) is p
    assert p.dtype == dtype
    x = p.array.astype("float64")
    # five standard errors; a variance has relative standard error sqrt((kurtosis - 1) / n), kurtosis <= 9 here
    assert abs(x.mean() - mean) < 5 * std / math.sqrt(N)
    assert abs(x.std() / std - 1) < 5 * math.sqrt(8 / N) / 2
    assert abs(x).max() <= bound * (1 + 2.0**-23)
    if bound < math.inf:
        assert abs(x).max() > 0.99 * bound
