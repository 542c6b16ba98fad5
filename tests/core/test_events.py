"""Events: who hears what, in which thread, and what is said to run."""

import sys
import threading
from opcode import opname

import numpy as np
import pytest

import tinymp as mp
from tinymp import events, nn, ops, optim
from tinymp.events import here
from tinymp.gpu import made


class Everything(mp.Observer):
    """Notes every event with what ran."""

    def __init__(self):
        self.seen = []

    def note(self, event, *what):
        runs = here.running
        phase = getattr(runs, "phase", "") or type(runs).__name__
        self.seen.append((event, getattr(runs, "name", None), phase, *what))

    def ran(self, op, inputs, outputs):
        self.note("ran", op.name, op.phase)

    def rounded(self, x, y):
        self.note("rounded")

    def product(self, a, b, accumulate):
        self.note("product", accumulate)

    def reduced(self, x, axis, how, accumulate):
        self.note("reduced", how)

    def written(self, parameter, value):
        self.note("written")

    def deposited(self, leaf, gradient, scale):
        self.note("deposited", float(scale))

    def stepped(self, optimizer, result):
        self.note("stepped", result)


def half(*shape):
    return mp.tensor(np.ones(shape, "float16"))


@pytest.mark.cpu
def test_the_events_of_a_step():
    model = mp.MIXED.cast(nn.Linear(2, 1, bias=False))
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.5), optim.StaticLossScaler(8.0)
    seen = Everything()
    with mp.observe(seen):
        scaler.scale(model(half(3, 2)).float().sum()).backward()
        scaler.step(optimizer)
    linear = [("product", "linear", "forward", "float32"), ("rounded", "linear", "forward")]
    assert seen.seen[:3] == [*linear, ("ran", None, "NoneType", "linear", "forward")]
    backward = [e for e in seen.seen if e[2] == "backward"]
    assert ("product", "linear", "backward", "float32") in backward and ("rounded", "linear", "backward") in backward
    assert ("deposited", None, "NoneType", 8.0) in seen.seen
    assert seen.seen[-3:] == [
        ("written", None, "update"),
        ("rounded", None, "update"),
        ("stepped", None, "NoneType", optim.StepResult.APPLIED),
    ]
    assert here.running is None and here.backward is None and not here.observers and not here.inside


def test_what_runs_is_known_again_after_an_error():
    def outer():
        with pytest.raises(KeyError):
            events.under(events.running, "inner", {}.__getitem__, 0)
        return here.running

    assert events.under(events.running, "outer", outer) == "outer"
    x = mp.tensor([1.0], requires_grad=True)
    y = ops.exp(x)
    y.grad_fn.save("no array")
    with pytest.raises((TypeError, ValueError, AttributeError)):
        y.backward()
    assert here.running is None and here.backward is None


REUSABLE = {
    "use": (lambda: mp.use(mp.FP16_REDUCTIONS), mp.precision.current_policy, mp.FP16_REDUCTIONS),
    "no_grad": (mp.no_grad, mp.is_grad_enabled, False),
    "enable_grad": (mp.enable_grad, mp.is_grad_enabled, True),
    "device": (lambda: mp.device("meta"), lambda: mp.backend.default().name, "meta"),
}


@pytest.mark.parametrize("name", REUSABLE)
def test_a_context_can_be_entered_again_and_again(name):
    """In a loop, within itself, in several threads at once, and as the decorator of a function that calls itself."""
    make, now, within = REUSABLE[name]
    context, met, found = make(), threading.Barrier(2), []

    def elsewhere():
        before = now()
        with context:
            met.wait(5)  # both are within the block, and the other thread leaves it first
            met.wait(5)
            found.append(now() == within)
        found.append(now() == before)

    def used():
        before = now()
        assert before != within
        for _ in range(2):
            with context:
                with context:
                    assert now() == within
                assert now() == within
            assert now() == before
        with pytest.raises(KeyError), context:
            raise KeyError
        countdown = context(lambda n: countdown(n - 1) if n else now())
        assert countdown(2) == within and now() == before
        thread = threading.Thread(target=elsewhere)
        thread.start()
        with context:
            met.wait(5)
        assert now() == before
        met.wait(5)
        thread.join()
        assert found == [True, True]

    mp.no_grad()(used)() if name == "enable_grad" else used()


@pytest.mark.cpu
def test_several_hear_the_same_and_unobserved_nobody():
    one, two = Everything(), Everything()
    with mp.observe(one):
        ops.exp(half(2))
        with mp.observe(two):
            ops.exp(half(2))
            with events.unobserved():
                ops.exp(half(2))
        ops.exp(half(2))
    assert len(two.seen) == 2 and len(one.seen) == 6


def test_kernels_leave_fp32_for_observers_of_the_inside_alone():
    class Ran(mp.Observer):
        def ran(self, op, inputs, outputs):
            pass

    class Rounded(Ran):
        def rounded(self, x, y):
            pass

    x = np.zeros(2, "float16")
    with mp.observe(Ran()):
        assert made(x).dtype == "float16"
        with mp.observe(Rounded()):
            assert made(x).dtype == "float32"
        assert made(x).dtype == "float16"


def in_thread(work):
    failed = []

    def run():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, failed


@pytest.mark.cpu
def test_an_observer_hears_its_own_thread():
    seen = Everything()
    with mp.observe(seen):
        thread, failed = in_thread(lambda: ops.exp(half(2)))
        thread.join()
    assert not failed and not seen.seen


@pytest.mark.cpu
def test_an_observer_may_be_closed_in_another_thread():
    observing = mp.observe(Everything())
    thread, failed = in_thread(observing.__enter__)
    thread.join()
    ops.exp(half(2))
    assert not failed and not here.observers
    observing.__exit__(None, None, None)


@pytest.mark.cpu
def test_an_audit_beside_trainings():
    """An audit that replays skipped steps does not meet the steps of other threads."""

    def audited():
        with mp.audit() as a:
            w = nn.Parameter(np.ones(4, "float32"))
            mp.MIXED.cast(w)
            optimizer, scaler = optim.SGD([w], lr=0.0), optim.StaticLossScaler(2.0**15, max_consecutive_skips=10**6)
            for _ in range(40):
                scaler.scale((w * half(4) * 4).float().sum()).backward()
                assert scaler.step(optimizer) is optim.StepResult.SKIPPED
                scaler.update()
                optimizer.zero_grad()
        assert {cause.cause for cause in a.scale.causes} == {"loss scale too high"}

    def trains(factor):
        for _ in range(20):
            w = nn.Parameter(np.ones(4, "float32"))
            mp.MIXED.cast(w)
            optimizer, scaler = optim.SGD([w], lr=0.0), optim.DynamicLossScaler(8.0, growth_interval=3)
            for _ in range(3):
                scaler.scale((w * half(4) * factor).float().sum()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            assert scaler.get_scale() == 16

    threads = [in_thread(audited), in_thread(lambda: trains(2.0)), in_thread(lambda: trains(4.0))]
    for thread, failed in threads:
        thread.join()
        assert not failed, failed


# ------------------------------------------------------------------------------------ settings: interrupts, generators

SETTINGS = {
    "use": (lambda: mp.use(mp.FP32), mp.precision.policy_in_use.get),
    "no_grad": (mp.no_grad, mp.grad_mode.is_grad_enabled),
    "unobserved": (events.unobserved, lambda: (events.running.get(), events.backward.get(), here.observers)),
    "observe": (lambda: mp.observe(Everything()), lambda: (list(here.observers), list(here.inside))),
}


def interrupted_at(block, n):
    """Enter and leave a block, and raise right after call n of those that events.py makes for it; True if it came so
    far. CPython looks for signals after calls (and at the first instruction of a function, which nothing can guard).
    """
    seen, last = 0, {}

    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code.co_filename != events.__file__:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            called = opname[last.get(frame, 0)].startswith("CALL")
            last[frame] = frame.f_code.co_code[frame.f_lasti]
            seen += called
            if called and seen == n:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with block:
            pass
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("name", SETTINGS)
def test_an_interrupt_leaves_nothing_set(name):
    make, now = SETTINGS[name]
    interrupted_at(make(), 0)  # Python 3.13 traces opcodes from the second time on
    before, n = now(), 1
    while interrupted_at(make(), n):
        assert now() == before, n
        n += 1
    assert n > 2  # Python 3.13 tells of fewer


def test_a_setting_that_was_interrupted_can_be_entered_again():
    block, before = mp.use(mp.FP32), mp.precision.policy_in_use.get()
    for n in range(1, 9):
        interrupted_at(block, n)
        with block, block:
            assert mp.precision.policy_in_use.get() is mp.FP32
        assert mp.precision.policy_in_use.get() is before


def test_each_step_of_a_generator_runs_within_the_setting():
    heard, grad = [], mp.grad_mode.is_grad_enabled

    @mp.no_grad()
    def steps(n):
        """Steps."""
        try:
            for i in range(n):
                heard.append((yield i, grad()))
        except ValueError:
            yield "caught", grad()
        finally:
            heard.append(grad())
        return "end"

    one = steps(3)
    assert steps.__doc__ == "Steps." and next(one) == (0, False) and grad()
    assert one.send("sent") == (1, False) and heard == ["sent"] and grad()
    assert one.throw(ValueError("thrown")) == ("caught", False) and grad()
    with pytest.raises(StopIteration) as end:
        next(one)
    assert end.value.value == "end" and heard == ["sent", False] and grad()
    two = steps(2)
    next(two)
    two.close()
    assert heard == ["sent", False, False] and grad() and list(steps(2)) == [(0, False), (1, False)]
