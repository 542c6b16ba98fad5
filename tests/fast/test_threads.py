"""Work that several threads share gives what one thread gives, and is not shared where its order matters."""

import sys
import threading

import numpy as np
import pytest

import tinymp as mp
from tinymp import events, precision
from tinymp.fast.cpu import threads

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(threads._set is None, reason="another BLAS")]


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """Whatever this process was told."""
    before = threads._get()
    threads._set(2)
    monkeypatch.setattr(threads, "LEAST", 1)
    yield
    threads._set(before)


def who(_):
    """The thread that does the work, and how many BLAS has there."""
    met.wait(5)
    return threading.get_ident(), threads._get()


met = threading.Barrier(2)


def test_two_threads_share_in_order():
    assert threads.share(lambda i: 10 * i, range(5)) == [0, 10, 20, 30, 40]
    done = threads.share(who, range(4))
    assert len({ident for ident, _ in done}) == 2
    assert {blas for _, blas in done} == {1}
    assert threads._get() == threads.count() == 2


def test_helpers_follow_the_policy_and_the_op():
    def seen(_):
        met.wait(5)
        return precision.current_policy().name, precision.here.running

    class Op:
        pass

    with mp.use(mp.FP16_REDUCTIONS):
        assert events.under(events.running, Op, threads.share, seen, range(2)) == [("FP16_REDUCTIONS", Op)] * 2
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        threads.share(lambda _: np.exp(np.full(3, 1e3)), range(2))


def test_an_error_is_raised_when_all_have_ended():
    running, wrong = [], 3

    def f(i):
        running.append(i)
        met.wait(5) if i < 2 else None
        if i == wrong:
            raise ValueError(f"item {i}")
        running.remove(i)

    with pytest.raises(ValueError, match=f"item {wrong}"):
        threads.share(f, range(4))
    assert running == [wrong] and threads._get() == 2
    assert threads.share(lambda i: i, range(3)) == [0, 1, 2]  # and the threads go on


def test_an_interrupt_leaves_blas_its_threads():
    """At any line of `share`, also within its `finally`."""
    at = 0

    def trace(frame, event, _):
        nonlocal at
        if frame.f_code.co_filename == threads.__file__ and event == "line":
            at -= 1
            if not at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    for line in range(1, 100):
        at = line
        sys.settrace(trace)
        try:
            threads.share(lambda i: i, range(2))
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(before)
            assert threads._get() == threads.count() == 2 and not threads._sharing, line
    assert 30 < line < 99
    assert {blas for _, blas in threads.share(who, range(2))} == {1}
