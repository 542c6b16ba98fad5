"""Every function of tinymp.ops can be pickled, and keeps its signature. What they refuse: tests/hostile.txt."""

import inspect
import pickle

import pytest

from tinymp import ops

FUNCTIONS = [name for name in dir(ops) if name[0] != "_" and inspect.isfunction(getattr(ops, name))]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("bind", "in_place")])
def test_functions_can_be_pickled_and_keep_their_signature(name):
    function = getattr(ops, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__name__ == name and function.__doc__
    assert "args" not in inspect.signature(function).parameters
