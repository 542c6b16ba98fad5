"""Checks that tests of layers share: PyTorch's constructor and state, and the op that a layer calls."""

import inspect

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import nn, ops


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


def state_is(layer, state):
    """The state_dict has these names and shapes."""
    found = layer.state_dict()
    assert list(found) == list(state)
    assert {name: a.shape for name, a in found.items()} == state
    assert all(a.dtype == ("int64" if name == "num_batches_tracked" else "float32") for name, a in found.items())
