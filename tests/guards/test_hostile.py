"""Each call of hostile.txt raises the error that is written there, and each check of tinymp/arguments.py is met."""

import ast
import traceback
from collections import Counter
from pathlib import Path

import pytest

import around
import fuzz
import hostile
from tinymp import arguments

pytestmark = pytest.mark.cpu
TABLE = [
    line.split("  ->  ")
    for line in (Path(__file__).parents[1] / "hostile.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("# ")
]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    around.write_files()


def ended(call, expected, met=None):
    """Empty if the call raises what is expected, clearly; else what is wrong. Adds lines of arguments.py to `met`."""
    kind, begins = expected.split(":")[0], expected.partition(": ")[2]
    try:
        result = eval(call, hostile.names())
    except Exception as error:
        message, cause = " ".join(str(error).split()), error
        if type(error).__name__ != kind or not message.startswith(begins) or not fuzz.clear(error):
            return f"{call}\n    expected {expected}\n    got {type(error).__name__}: {message}"
        while cause is not None and met is not None:
            frames = traceback.walk_tb(cause.__traceback__)
            met.update(line for frame, line in frames if frame.f_code.co_filename == arguments.__file__)
            cause = cause.__cause__
        return ""
    return f"{call}: expected an error, got {result!r:.80}"


def test_each_wrong_call_raises_its_error_and_each_check_raises_twice(files):
    met = Counter()
    wrong = [why for call, expected in TABLE if (why := ended(call, expected, met))]
    assert not wrong, "\n".join(wrong)
    checks = [
        (f.name, node)
        for f in ast.parse(Path(arguments.__file__).read_text(encoding="utf-8")).body
        if isinstance(f, ast.FunctionDef) and f.args.args and f.args.args[0].arg in ("op", "where")
        for node in ast.walk(f)
        if isinstance(node, ast.Raise)
    ]
    assert len(checks) > 20
    few = [
        f"{name}, line {r.lineno}" for name, r in checks if sum(met[n] for n in range(r.lineno, r.end_lineno + 1)) < 2
    ]
    assert not few, "checks with fewer than two lines in hostile.txt:\n" + "\n".join(few)
    assert len({call for call, _ in TABLE}) == len(TABLE)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("relu(x)", "TypeError: relu: expected"),
        ("relu('a')", "TypeError: relu: expected a Tensor for `other`"),
        ("x.shape[5]", "IndexError: tuple index out of range"),
    ],
)
def test_a_line_that_does_not_hold_is_found(call, expected):
    assert ended(call, expected)
