"""Errors name what the user called: every public function, with arguments of the wrong kind, dtype, shape and range."""

import inspect
import pickle
import random

import numpy as np
import pytest

import tinymp as mp
from oracle import rng
from tinymp import ops

PUBLIC = {name: getattr(ops, name) for name in dir(ops) if name[0] != "_" and name not in ("bind", "in_place")}
FUNCTIONS = {name: f for name, f in PUBLIC.items() if inspect.isfunction(f)}
SHAPES = [(), (1,), (3,), (2, 3), (3, 2), (0, 3), (2, 3, 4), (2, 2, 3, 4), (1, 2, 3, 4, 2)]
DTYPES = ["float32", "float32", "float16", "float64", "int64", "int8", "bool", "uint8"]
OTHERS = [
    None, 0, 1, -1, 2, -7, 0.5, -2.0, float("nan"), float("inf"), 1e30, 2**70, 10**400, True, "a", b"x", "mean", "sum",
    (), (1, 2), (0, 0), [], [0, 1], {}, np.ones(3), np.float32(2), slice(None), 3 + 1j, object(),
]  # fmt: skip


def a_tensor(r, shape=None):
    values = rng(r.randrange(99)).standard_normal(shape or r.choice(SHAPES)) * 2
    return mp.tensor(values.astype("float32" if shape else r.choice(DTYPES)))


def an_argument(r):
    return a_tensor(r) if r.random() < 0.4 else r.choice(OTHERS)


def a_call(r, function):
    """Arguments by position and by keyword: the first most often a good tensor, options most often left out."""
    args, keywords, positional = [], {}, True
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            args += [an_argument(r) for _ in range(r.randrange(3))]
        elif p.default is p.empty and p.kind is not p.VAR_KEYWORD:
            args.append(an_argument(r) if args or r.random() < 0.4 else a_tensor(r, (2, 3)))
        elif p.kind is not p.VAR_KEYWORD:
            positional = positional and p.kind is not p.KEYWORD_ONLY and r.random() < 0.35
            if positional:
                args.append(an_argument(r))
            elif r.random() < 0.15:
                keywords[p.name] = an_argument(r)
    return (args[:-1] if r.random() < 0.02 else args), keywords


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore")  # infinities and nans among the numbers
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_error_names_the_function(name):
    r, function = random.Random(name), FUNCTIONS[name]
    for _ in range(100):
        args, keywords = a_call(r, function)
        try:
            function(*args, **keywords)
        except (TypeError, ValueError, IndexError, RuntimeError, MemoryError) as error:
            if not str(error).startswith((f"{name}: ", f"{name}() ")):
                raise AssertionError(f"{name}(*{args}, **{keywords})") from error


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.gelu(x.to(np.int64)), TypeError, "gelu: expected `input` to be floating, got int64"),
        (lambda x: ops.gelu(x, x), ValueError, "gelu: expected `approximate` to be one of 'none', 'tanh', got tensor"),
        (lambda x: ops.softmax(x, x), TypeError, "softmax: expected `dim` to be an integer, got tensor"),
        (lambda x: ops.chunk(x, 2, 5), IndexError, r"chunk: expected dim in \[-2, 1\]"),
        (lambda x: x.max(mp.tensor([1.0, 2.0])), ValueError, "max: expected shapes that broadcast"),
        (lambda x: mp.tensor(np.ones(2, np.int8)) + 300, ValueError, "add: Python integer 300 out of bounds for int8"),
        (lambda x: ops.dropout(x, "a"), TypeError, "dropout: expected `p` to be a number, got 'a'"),
        (lambda x: ops.relu(), TypeError, r"^relu\(\) missing 1 required positional argument: 'input'"),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call(mp.tensor(np.ones((2, 3), "float32")))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_can_be_pickled_and_keep_their_signature(name):
    function = FUNCTIONS[name]
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__name__ == name
    assert function.__doc__
    assert "args" not in inspect.signature(function).parameters
