"""A table of wrong calls (hostile.txt): each raises the error that is written there, and nothing public is left out."""

from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

import around
import fuzz
import hostile
import tinymp as mp

pytestmark = pytest.mark.cpu
TABLE = [
    line.split("  ->  ")
    for line in (Path(__file__).parents[1] / "hostile.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("# ")
]
# Of what is public by name, who calls it, or why there is no wrong call.
LEFT_OUT = {
    "ops.bind": "tinymp itself, once",
    "init.parameter init.random_of init.write": "layers and initialisers",
    "*.cast_storage Tensor.result Tensor.require_outside_graph": "Policy.cast and Op.apply",
    "Parameter.cast_to Parameter.moved_to Weights.lock Weights.selected Weights.write": "Module, optimizers",
    "*.overwrite": "copy_ and the other ways to write in place",
    "*.update *.updated *.apply *.initial *.ready *.finish *.check_options Groups.*": "the optimizer's step",
    "*.rate Schedule.rate": "the schedule's step",
    "*.adjust *.begin *.note_loss *.find_overflow *.should_skip *.end LossScaler.look_at_limits": "the scaler itself",
    "Observer.*": "the engine: its events",
    "Policy.accumulator": "the primitives",
    "SparseRows.summed SparseRows.like SparseRows.rows SparseRows.put SparseRows.add": "lookups and updates",
    "DistributedDataParallel.ran DistributedDataParallel.summed": "the engine: events",
    "Group.start Group.abort Group.close Group.agreed Group.agree": "the package itself",
    "*.normalised RecurrentLayer.run": "the package itself",
    "TensorDataset.batch Subset.batch": "the loader, with its own numbers",
    "Module.parameters Module.buffers Module.named_*": "prefixes and truth values: nothing is wrong",
    "nn.PackedSequence PackedSequence.to": "pack_padded_sequence makes it, and Tensor moves its data",
    "*.op": "forward of the layer",
    "nn.Identity": "takes anything, as in PyTorch",
    "Tensor.float Tensor.double Tensor.bool Tensor.cpu": "no argument but the tensor: one line each",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    around.write_files()


def ended(call, expected):
    """Empty if the call raises what is expected, clearly, and in its own name; else what is wrong."""
    names, kind = hostile.names(), expected.split(":")[0]
    try:
        result = eval(call, names)
    except Exception as error:
        message, begins = " ".join(str(error).split()), expected.partition(": ")[2]
        if type(error).__name__ != kind or not message.startswith(begins) or not fuzz.clear(error):
            return f"{call}\n    expected {expected}\n    got {type(error).__name__}: {message}"
        return ""
    return f"{call}: expected an error, got {result!r:.80}"


def test_each_wrong_call_raises_its_error(files):
    wrong = [why for call, expected in TABLE if (why := ended(call, expected))]
    assert not wrong, "\n".join(wrong)


def test_every_message_begins_with_what_was_called(files):
    """The function, the method or its class, the layer, an operator's name; and with no second name behind it."""
    by_name = {t.name: t for t in fuzz.targets()}
    strangers = []
    for call, expected in TABLE:
        name = hostile.called(call, hostile.names())
        if not name:
            continue
        plain = name.rpartition(".")[2]
        target = by_name.get(name) or by_name.get(plain) or fuzz.Target(name, print, (plain, name.split(".")[0]))
        message = RuntimeError(expected.partition(": ")[2])
        of = call.split(".")[0]
        own = type(eval(of, hostile.names())).__name__ if of.removesuffix("()").isidentifier() else ""
        if not fuzz.names(message, target._replace(says=(*target.says, plain, own or plain))):
            strangers.append(f"{call}: {expected}")
    assert not strangers, "\n".join(strangers)


def test_nothing_public_is_left_out(files):
    lines = Counter(hostile.called(call, hostile.names()) for call, _ in TABLE)
    patterns = [pattern for patterns in LEFT_OUT for pattern in patterns.split()]
    missing = [
        f"{name}: {lines[name]}"
        for name in hostile.public()
        if lines[name] < 2 and not any(fnmatch(name, pattern) for pattern in patterns)
    ]
    assert not missing, "fewer than two lines in hostile.txt:\n" + "\n".join(missing)
    needless = [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in hostile.public())]
    assert not needless
    assert len(hostile.public()) > 400 and not {line[0] for line in TABLE if TABLE.count(line) > 1}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("relu(x)", "TypeError: relu: expected"),
        ("relu('a')", "ValueError: relu: expected a Tensor"),
        ("relu('a')", "TypeError: relu: expected a Tensor for `other`"),
        ("x.shape[5]", "IndexError: tuple index out of range"),
    ],
)
def test_a_line_that_does_not_hold_is_found(call, expected):
    assert ended(call, expected)


def test_names_are_new_for_each_call():
    a, b = hostile.names(), hostile.names()
    assert a["x"] is a["x"] is not b["x"] and isinstance(a["x"], mp.Tensor)
