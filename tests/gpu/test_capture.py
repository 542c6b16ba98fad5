"""A captured step does what the same step does when it is called, and stays the graph that was recorded."""

import gc
from contextlib import nullcontext

import numpy as np
import pytest

import tinymp as mp
from job import Job, same
from oracle import rng
from tinymp import nn, ops, optim
from tinymp.gpu import checks, cublas, recording

pytestmark = pytest.mark.usefixtures("gpu", "once")


@pytest.fixture(autouse=True)
def _nobody_watches():
    """A scaler that an error in an earlier test left in the middle of an iteration watches until it is collected."""
    gc.collect()


def test_replays_are_the_steps_bit_for_bit():
    """With a schedule, an optimizer loaded before the capture, and a model loaded after it."""
    plain, captured = Job(scale=2.0**10), Job(scale=2.0**10)
    step = mp.capture(captured.step, warmup=2)
    schedules = [optim.StepLR(job.optimizer, 2, 0.1) for job in (plain, captured)]
    for seed in range(7):
        for job, schedule in zip((plain, captured), schedules):
            schedule.step()
            if seed == 2:  # this call is captured
                job.optimizer.load_state_dict(job.optimizer.state_dict())
            if seed == 5:
                job.model.load_state_dict(Job("cpu").model.state_dict())
                job.model[1].reset_running_stats()
        loss, result = plain.step(*plain.batch(seed))
        loss_2, result_2 = step(*plain.batch(seed))
        assert loss.item() == loss_2.item()
        assert result == result_2 == optim.StepResult.APPLIED
        assert plain.scaler.get_scale() == captured.scaler.get_scale()
    same(plain.state(), captured.state())
    assert captured.model[1].num_batches_tracked.item() == 2
    assert captured.scaler.history == plain.scaler.history == [
        (2, 2.0**11, "3 iterations without overflow"), (5, 2.0**12, "3 iterations without overflow")
    ]  # fmt: skip


def test_an_overflow_in_a_replay_is_skipped_and_halves_the_scale():
    host, job = (Job(device, clip=True, rule="SGD", scale=2.0**10) for device in ("cpu", "gpu"))
    step = mp.capture(job.step, warmup=1)
    factors = [[mp.tensor(f, device=j.device) for f in (1.0, 1e6)] for j in (host, job)]
    for seed in range(3):
        host.step(*host.batch(seed), factors[0][0])
        step(*job.batch(seed), factors[1][0])
    before, scale = job.state(), job.scaler.get_scale()
    host.step(*host.batch(3), factors[0][1])
    loss, result = step(*job.batch(3), factors[1][1])  # gradients overflow, the loss does not
    assert np.isfinite(loss.item()) and result == optim.StepResult.SKIPPED and not result
    same(job.state(), before)  # weights, state, step counts and running statistics
    assert job.scaler.get_scale() == scale / 2
    assert job.scaler.history == host.scaler.history  # with the name of the first parameter that overflowed
    _, result = step(*job.batch(4), factors[1][0])
    assert result.applied


@pytest.mark.parametrize("what", ["nesterov", "optimizer"])
def test_what_a_graph_cannot_follow_is_a_warning_and_done_without_it(what):
    job, plain = Job(rule="SGD"), Job(rule="SGD")
    step = mp.capture(job.step, warmup=1)
    says = {"nesterov": "option of SGD has changed", "optimizer": "new groups and state"}
    for i in range(4):
        for j in (job, plain):
            if what == "nesterov":
                j.optimizer.param_groups[0][what] = i > 2
            elif i == 3:
                j.optimizer.load_state_dict(j.optimizer.state_dict())
        with pytest.warns(RuntimeWarning, match=says[what]) if i > 2 else nullcontext():
            step(*job.batch(i))
        plain.step(*plain.batch(i))
    same(plain.state(), job.state())


def test_results_are_overwritten_and_inputs_are_copied():
    double = mp.capture(lambda x: x + x, warmup=1)
    x = mp.tensor(np.arange(4.0), device="gpu")
    double(x), double(x)
    first = double(x)
    np.testing.assert_array_equal(first.numpy(), [0, 2, 4, 6])
    assert double(mp.tensor(np.ones(4), device="gpu")) is first
    np.testing.assert_array_equal(first.numpy(), [2, 2, 2, 2])
    np.testing.assert_array_equal(x.numpy(), np.arange(4.0))


def test_other_inputs_and_what_no_graph_records():
    step = mp.capture(lambda x, n: x * n, warmup=1)
    x = mp.tensor(np.ones(3), device="gpu")
    step(x, 2)
    with pytest.warns(RuntimeWarning, match=r"expected inputs \(float64 \(3,\) on gpu, int 2\) as in the first call"):
        assert step(x, 3).tolist() == [3, 3, 3]
    assert step(x, 3).tolist() == [3, 3, 3]  # said once
    with pytest.warns(RuntimeWarning, match="a graph has fixed shapes"):
        assert step(mp.tensor(np.ones(4), device="gpu"), 2).tolist() == [2] * 4
    assert step(x, 2).tolist() == [2] * 3
    for f, said in (
        (lambda x: x * int(x.array.sum()), "most often reading a value of the device"),  # CuPy is asked by itself
        (lambda x: x * mp.tensor(np.ones(3), device="gpu"), "it moves values from the host to the device"),
    ):
        refused = mp.capture(f, warmup=1)
        refused(x)
        with pytest.raises(RuntimeError, match=rf"what a CUDA graph cannot record \(at .*{said}|record: {said}"):
            refused(x)
    with pytest.raises(ValueError, match="`warmup` to be a positive integer, got 0"):
        mp.capture(len, warmup=0)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
def test_a_capture_that_failed_leaves_no_gradient(before, unscaled):
    """The iteration that it cut off is as if it had not been, or the scaler says what to do: call update()."""
    job = Job()

    def scaled(x, labels):
        job.scaler.scale(ops.cross_entropy(job.model(x), labels)).backward()

    def step(x, labels):
        scaled(x, labels)
        if recording.capturing():
            if unscaled:
                job.scaler.unscale_(job.optimizer)
            raise ValueError("halfway")
        job.optimizer.zero_grad()

    captured = mp.capture(step, warmup=1)
    captured(*job.batch())
    if before:
        scaled(*job.batch(1))
    expected = [None if p.grad is None else p.grad.numpy() for p in job.model.parameters()]
    with pytest.raises(ValueError, match="halfway"):
        captured(*job.batch())
    for p, was in zip(job.model.parameters(), expected):
        assert (p.grad is None) == (was is None) == (not before)
        if before:
            np.testing.assert_array_equal(p.grad.numpy(), was)
    scaled(*job.batch(2))
    says = pytest.raises(RuntimeError, match=r"call update\(\) at the end of the iteration, also of one that")
    with says if unscaled else nullcontext():
        job.scaler.unscale_(job.optimizer)


def test_checks_in_a_capture(gpu):
    """More than there is room for wait for the device outside of a capture, and are an error in one."""
    x = mp.tensor(np.ones(3), device="gpu")

    def step(x, more):
        if recording.capturing():
            for i in range(300 if more else 1):
                checks.flag(("in a capture", i), ValueError(f"check {i}"))
            x.sum().item()
        return x + 1

    for i in range(300):
        checks.flag(("before", i), ValueError(f"check {i}"))
    for more, says in ((True, r"more than 256 different checks .* smaller part"), (False, "graph cannot record")):
        captured = mp.capture(step, warmup=1)
        captured(x, more)
        with pytest.raises(RuntimeError, match=says):
            captured(x, more)
    gpu.synchronize()  # no check of a capture that failed comes up


@pytest.mark.parametrize("named", ["closure", "module"])
def test_evaluation_is_not_what_was_recorded_in_training(named):
    model = nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.5)).to("gpu")
    step = mp.capture(model if named == "module" else lambda x: model(x), warmup=1)
    x = mp.tensor(np.ones((4, 64), "float32"), device="gpu")
    drawn = [step(x).numpy().copy() for _ in range(4)]
    assert all((a == 0).any() and (a != b).any() for i, a in enumerate(drawn) for b in drawn[:i])
    model.eval()
    with pytest.warns(RuntimeWarning, match=r"train\(\) or eval\(\) was called since"):
        np.testing.assert_array_equal(step(x).numpy(), model(x).numpy())
    model.train()
    assert (step(x).numpy() == 0).any()


def test_many_tensors_are_joined_in_a_graph():
    """CuPy itself would upload a table of addresses for more than 8 of them."""
    step = mp.capture(lambda x: (ops.stack([x] * 9, 1), ops.cat([x, x + x] * 9, -1)), warmup=1)
    for i in range(3):
        x = rng(i).integers(-9, 9, (3, 2)).astype("float16")
        stacked, joined = step(mp.tensor(x, device="gpu"))
        np.testing.assert_array_equal(stacked.numpy(), np.stack([x] * 9, 1))
        np.testing.assert_array_equal(joined.numpy(), np.concatenate([x, x + x] * 9, -1))


@pytest.mark.parametrize("read", [lambda loss: loss.item(), lambda loss: mp.synchronize()])
def test_a_step_that_reads_the_device_runs_without_a_graph(read):
    plain, job = Job(rule="SGD"), Job(rule="SGD")
    step = mp.capture(lambda x, labels: read(job.step(x, labels)[0]), warmup=2)
    step(*job.batch(0))
    with pytest.warns(RuntimeWarning, match=r"capture: <lambda> runs without a CUDA graph: it reads the device from"):
        step(*job.batch(1))
    step(*job.batch(2))
    for seed in range(3):
        plain.step(*plain.batch(seed))
    same(plain.state(), job.state())


def test_nothing_is_collected_in_a_capture():
    class Garbage:
        def __init__(self):
            self.itself = self

        def __del__(self):
            ended.append(recording.capturing())

    def step(x):
        for _ in range(20):
            Garbage()
        return x + x

    ended, threshold = [], gc.get_threshold()
    captured = mp.capture(step, warmup=1)
    gc.set_threshold(5)
    try:
        x = mp.tensor(np.ones(3), device="gpu")
        captured(x), captured(x)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert gc.isenabled() and len(ended) == 40 and not any(ended)


def test_graphs_give_their_workspaces_back(gpu):
    x = mp.Tensor(np.eye(8, dtype="float16")).to("gpu")
    x @ x
    before = len(cublas._workspaces)
    steps = [mp.capture(lambda x, n=n: (x * n) @ x, warmup=1) for n in (2, 3)]
    for _ in range(3):
        for n, step in zip((2, 3), steps):
            np.testing.assert_array_equal(step(x).numpy(), n * np.eye(8))
    assert len(cublas._workspaces) == before + 2
    with gpu.xp.cuda.Stream(non_blocking=True):  # waits for what other streams do with the graph
        np.testing.assert_array_equal(steps[0](x).numpy(), 2 * np.eye(8))
    del step, steps
    gc.collect()
    assert len(cublas._workspaces) == before
    np.testing.assert_array_equal((x @ x).numpy(), np.eye(8))
