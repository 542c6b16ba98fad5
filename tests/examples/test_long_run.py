"""A run that is killed or stopped by a signal ends as one that is none of it."""

import contextlib
import itertools
import signal

import numpy as np
import pytest

from examples import cnn, long_run
from tinymp import checkpoint, ops, optim

pytest.importorskip("safetensors")
pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("small")]  # the program chooses its device itself


@pytest.fixture
def kept(monkeypatch):
    """Runs the program on few digits; returns what it found, and the weights that it judged."""

    def run(*arguments):
        weights = {}

        def accuracy(model, *others, judge=cnn.accuracy):
            weights.update(model.state_dict())
            return judge(model, *others)

        with monkeypatch.context() as patched:
            patched.setattr(cnn, "BATCH", 24)
            patched.setattr(cnn, "accuracy", accuracy)
            return long_run.main(["--device", "cpu", *map(str, arguments)]), weights

    return run


@contextlib.contextmanager
def ends_at(call, what):
    """Within the block `what` happens as the so-manieth loss is made."""
    calls, loss = itertools.count(1), ops.cross_entropy

    def cross_entropy(*arguments):
        if next(calls) == call:
            what()
        return loss(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ops, "cross_entropy", cross_entropy)
        yield


def same(a, b):
    """Runs and weights are the same but for the time they took and for how often gradients were looked at."""
    (found, weights), (other, weights_of_other) = a, b
    took = ("ms_per_step", "per_second", "gradient_exponents", "zero_gradients", "bytes")
    assert {k: v for k, v in found.items() if k not in took} == {k: v for k, v in other.items() if k not in took}
    assert weights.keys() == weights_of_other.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(value, weights_of_other[name])


@pytest.mark.parametrize("name", ["killed", "SIGTERM"])
def test_a_run_goes_on_as_if_it_had_never_stopped(name, kept, tmp_path, capsys):
    """In the middle of an epoch, which has 4 steps."""
    options = ["--steps", 7, "--checkpoint", tmp_path / "kept", "--every", 3]

    def end():
        if name == "killed":
            raise MemoryError
        signal.raise_signal(signal.SIGTERM)

    with ends_at(6, end), pytest.raises(MemoryError if name == "killed" else SystemExit):
        kept(*options)
    assert name == "killed" or "mixed stopped after 6 steps: SIGTERM" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    path = tmp_path / "kept" / "mixed.safetensors"
    assert [*path.parent.iterdir()] == [path]
    curve = checkpoint.peek(path)["run"]["curve"]
    assert len(curve) == (3 if name == "killed" else 6)
    with ends_at(7 - len(curve) + 1, lambda: pytest.fail("more steps than were left")):
        again = kept(*options, "--resume")
        same(again, kept(*options, "--resume"))  # finished: it reports
    same(kept("--steps", 7), again)
    with pytest.raises(SystemExit):
        kept(*options, "--seed", 1, "--lr", "0.1", "--resume")
    assert "had seed 0, not 1, lr 0.002, not 0.1" in capsys.readouterr().err


def test_of_a_run_that_diverges_the_last_good_state_is_kept(kept, tmp_path, monkeypatch, capsys):
    """Weights are infinite some steps before it is stopped."""
    options = ["--steps", 6, "--checkpoint", tmp_path / "kept", "--every", 1]
    made = []

    def adam(*arguments, make=optim.Adam, **others):
        made.append(make(*arguments, **others))
        return made[-1]

    with monkeypatch.context() as patched:
        patched.setattr(optim, "Adam", adam)
        with ends_at(3, lambda: made[0].param_groups[0].update(lr=3e38)), pytest.raises(SystemExit) as ended:
            kept(*options)
    assert ended.value.code == 1 and "mixed stopped after " in capsys.readouterr().out
    assert len(checkpoint.peek(tmp_path / "kept" / "mixed.safetensors")["run"]["curve"]) == 2
    same(kept("--steps", 6), kept(*options, "--resume"))  # nothing spoils it now
