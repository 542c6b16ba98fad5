"""A captured step does what the same step does when it is called, and stays the graph that was recorded."""

import gc
import threading
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


@pytest.mark.parametrize("rule", ["Adagrad", "Adam"])  # AdamW has the kernel of Adam; SGD is below
def test_replays_are_the_steps_bit_for_bit(rule):
    plain, captured = Job(rule=rule, scale=2.0**10), Job(rule=rule, scale=2.0**10)
    step = mp.capture(captured.step, warmup=2)
    for seed in range(6):
        batch = plain.batch(seed)
        loss, result = plain.step(*batch)
        loss_2, result_2 = step(*batch)
        assert loss.item() == loss_2.item()
        assert result == result_2 == optim.StepResult.APPLIED
        assert plain.scaler.get_scale() == captured.scaler.get_scale()
    same(plain.state(), captured.state())
    assert captured.scaler.history == plain.scaler.history == [
        (2, 2.0**11, "3 iterations without overflow"), (5, 2.0**12, "3 iterations without overflow")
    ]  # fmt: skip


def test_it_trains_like_the_cpu():
    host, captured = Job("cpu", clip=True), Job(clip=True)
    step = mp.capture(captured.step, warmup=1)
    losses = [(host.step(*host.batch())[0].item(), step(*captured.batch())[0].item()) for _ in range(8)]
    for expected, got in losses:
        assert got == pytest.approx(expected, rel=5e-3)
    assert losses[-1][0] < 0.3 * losses[0][0]


@pytest.mark.parametrize("clip", [False, True])
def test_an_overflow_in_a_replay_is_skipped_and_halves_the_scale(clip):
    host, job = Job("cpu", clip=clip, rule="SGD", scale=2.0**10), Job(clip=clip, rule="SGD", scale=2.0**10)
    step = mp.capture(job.step, warmup=1)
    factors = [[mp.tensor(f, device=j.device) for f in (1.0, 1e6)] for j in (host, job)]
    for seed in range(3):
        host.step(*host.batch(seed), factors[0][0])
        step(*job.batch(seed), factors[1][0])
    before, scale = job.state(), job.scaler.get_scale()
    host.step(*host.batch(3), factors[0][1])
    loss, result = step(*job.batch(3), factors[1][1])  # gradients overflow, the loss does not
    assert np.isfinite(loss.item())
    assert result == optim.StepResult.SKIPPED and not result
    same(job.state(), before)  # weights, state, step counts and running statistics
    assert job.scaler.get_scale() == scale / 2
    assert job.scaler.history == host.scaler.history  # with the name of the first parameter that overflowed
    _, result = step(*job.batch(4), factors[1][0])
    assert result.applied


def test_a_schedule_reaches_the_graph():
    plain, captured = Job(rule="SGD"), Job(rule="SGD")
    step = mp.capture(captured.step, warmup=1)
    schedules = [optim.StepLR(job.optimizer, 2, 0.1) for job in (plain, captured)]
    for seed in range(5):
        for run, schedule in zip((plain.step, step), schedules):
            run(*plain.batch(seed))
            schedule.step()
    same(plain.state(), captured.state())


def test_a_loaded_model_goes_on_in_the_graph():
    plain, captured = Job(scale=2.0**10), Job(scale=2.0**10)
    step = mp.capture(captured.step, warmup=1)
    for seed in range(3):
        plain.step(*plain.batch(seed))
        step(*captured.batch(seed))
    for job in (plain, captured):
        job.model.load_state_dict(Job("cpu").model.state_dict())
        job.model[1].reset_running_stats()
    plain.step(*plain.batch(3))
    step(*captured.batch(3))
    assert captured.model[1].num_batches_tracked.item() == 1
    same(plain.state(), captured.state())


def test_random_numbers_go_on_in_replays():
    job = Job(dropout=0.5, rule="SGD")
    forward = mp.capture(lambda x: job.model(x), warmup=1)
    x, _ = job.batch()
    with mp.no_grad():
        results = [forward(x).numpy() for _ in range(4)]
    assert all((a != b).any() for i, a in enumerate(results) for b in results[:i])


def test_results_are_overwritten_and_inputs_are_copied():
    double = mp.capture(lambda x: x + x, warmup=1)
    x = mp.tensor(np.arange(4.0), device="gpu")
    double(x), double(x)
    first = double(x)
    np.testing.assert_array_equal(first.numpy(), [0, 2, 4, 6])
    assert double(mp.tensor(np.ones(4), device="gpu")) is first
    np.testing.assert_array_equal(first.numpy(), [2, 2, 2, 2])
    np.testing.assert_array_equal(x.numpy(), np.arange(4.0))


def test_refusals():
    step = mp.capture(lambda x, n: x * n, warmup=1)
    x = mp.tensor(np.ones(3), device="gpu")
    step(x, 2)
    with pytest.warns(
        RuntimeWarning, match=r"expected inputs \(float64 \(3,\) on gpu, int 2\) as in the first call, got"
    ):
        assert step(x, 3).tolist() == [3, 3, 3]
    assert step(x, 3).tolist() == [3, 3, 3]  # said once
    with pytest.warns(RuntimeWarning, match="a graph has fixed shapes"):
        assert step(mp.tensor(np.ones(4), device="gpu"), 2).tolist() == [2] * 4
    assert step(x, 2).tolist() == [2] * 3
    here = r"the step does what a CUDA graph cannot record \(at test_capture.py:\d+\): "
    hidden = mp.capture(lambda x: x * int(x.array.sum()), warmup=1)  # CuPy is not asked by way of tinymp
    hidden(x)
    with pytest.raises(RuntimeError, match="record: most often reading a value of the device from the host"):
        hidden(x)
    uploads = mp.capture(lambda x: x * mp.tensor(np.ones(3), device="gpu"), warmup=1)
    uploads(x)
    with pytest.raises(RuntimeError, match=here + "it moves values from the host to the device"):
        uploads(x)
    with pytest.raises(ValueError, match="`warmup` to be a positive integer, got 0"):
        mp.capture(len, warmup=0)


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


@pytest.mark.parametrize("before", [False, True])
def test_a_capture_that_failed_leaves_no_gradient(before):
    job = Job()

    def step(x, labels):
        job.scaler.scale(ops.cross_entropy(job.model(x), labels)).backward()
        if recording.capturing():
            raise ValueError("halfway")
        job.optimizer.zero_grad()

    captured = mp.capture(step, warmup=1)
    captured(*job.batch())
    if before:
        job.scaler.scale(ops.cross_entropy(job.model(job.batch(1)[0]), job.batch(1)[1])).backward()
    expected = [None if p.grad is None else p.grad.numpy() for p in job.model.parameters()]
    with pytest.raises(ValueError, match="halfway"):
        captured(*job.batch())
    for p, was in zip(job.model.parameters(), expected):
        assert (p.grad is None) == (was is None) == (not before)
        if before:
            np.testing.assert_array_equal(p.grad.numpy(), was)


@pytest.mark.parametrize("unscaled", [False, True])
def test_an_iteration_that_a_failed_capture_has_cut_off(unscaled):
    """It leaves nothing behind, or the scaler says what to do: call update()."""
    plain, job = Job(), Job()

    def step(x, labels):
        job.scaler.scale(ops.cross_entropy(job.model(x), labels)).backward()
        if unscaled:
            job.scaler.unscale_(job.optimizer)
        if recording.capturing():
            raise ValueError("halfway")
        job.scaler.step(job.optimizer), job.scaler.update(), job.optimizer.zero_grad()

    captured = mp.capture(step, warmup=1)
    captured(*job.batch()), plain.step(*plain.batch())
    with pytest.raises(ValueError, match="halfway"):
        captured(*job.batch(1))
    if unscaled:
        job.scaler.scale(ops.cross_entropy(job.model(job.batch(2)[0]), job.batch(2)[1])).backward()
        with pytest.raises(RuntimeError, match=r"call update\(\) at the end of the iteration, also of one that"):
            job.scaler.unscale_(job.optimizer)
        return
    for seed in (1, 2):
        plain.step(*plain.batch(seed)), job.step(*job.batch(seed))
    same(plain.state(), job.state())


def test_more_checks_than_there_is_room_for_are_an_error_in_a_capture(gpu):
    """Outside one they wait for the device, and all are made."""
    x = mp.tensor(np.ones(3), device="gpu")

    def step(x):
        if recording.capturing():
            for i in range(300):
                checks.flag(("many", i), ValueError(f"check {i}"))
        return x + 1

    for i in range(300):
        checks.flag(("before", i), ValueError(f"check {i}"))
    captured = mp.capture(step, warmup=1)
    captured(x)
    with pytest.raises(RuntimeError, match=r"more than 256 different checks .* smaller part"):
        captured(x)


def test_a_check_that_comes_up_in_a_capture_that_failed(gpu):
    def step(x):
        if recording.capturing():
            checks.flag("first seen here", ValueError("no check ran"))
            x.sum().item()
        return x

    captured = mp.capture(step, warmup=1)
    x = mp.tensor(np.ones(3), device="gpu")
    captured(x)
    with pytest.raises(RuntimeError, match="what a CUDA graph cannot record"):
        captured(x)
    gpu.synchronize()


def test_an_optimizer_loaded_before_the_capture_counts_on():
    plain, captured = Job(scale=2.0**10), Job(scale=2.0**10)
    step = mp.capture(captured.step, warmup=2)
    for seed in range(5):
        if seed == 2:  # the next call is captured
            for job in (plain, captured):
                job.optimizer.load_state_dict(job.optimizer.state_dict())
        plain.step(*plain.batch(seed))
        step(*captured.batch(seed))
    same(plain.state(), captured.state())


def test_an_optimizer_loaded_after_the_capture_needs_another():
    job = Job(scale=2.0**10)
    step = mp.capture(job.step, warmup=1)
    step(*job.batch()), step(*job.batch())
    job.optimizer.load_state_dict(job.optimizer.state_dict())
    with pytest.warns(RuntimeWarning, match="load_state_dict has put new groups and state in place"):
        step(*job.batch())
    plain = Job(scale=2.0**10)
    for _ in range(3):
        plain.step(*plain.batch())
    same(plain.state(), job.state())
    mp.capture(job.step, warmup=1)(*job.batch())


def test_a_flag_that_changes_ends_the_graph():
    job, plain = Job(rule="SGD"), Job(rule="SGD")
    step = mp.capture(job.step, warmup=1)
    for i in range(4):
        for j in (job, plain):
            j.optimizer.param_groups[0]["nesterov"] = i > 2
        with pytest.warns(RuntimeWarning, match="an option of SGD has changed") if i > 2 else nullcontext():
            step(*job.batch(i))
        plain.step(*plain.batch(i))
    same(plain.state(), job.state())


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.5))
        self.model.to("gpu")

    def step(self, x):
        return self.model(x)


@pytest.mark.parametrize("named", ["closure", "object", "module"])
def test_evaluation_is_not_what_was_recorded_in_training(named):
    trainer = Trainer()
    model = trainer.model
    step = mp.capture({"closure": lambda x: model(x), "object": trainer.step, "module": model}[named], warmup=1)
    x = mp.tensor(np.ones((4, 64), "float32"), device="gpu")
    for _ in range(3):
        assert (step(x).numpy() == 0).any()
    model.eval()
    with pytest.warns(RuntimeWarning, match=r"train\(\) or eval\(\) was called since"):
        np.testing.assert_array_equal(step(x).numpy(), model(x).numpy())
    model.train()
    assert (step(x).numpy() == 0).any()


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


def test_other_threads_are_not_captured():
    seen = []

    def step(x):
        thread = threading.Thread(target=lambda: recording.after_capture(lambda: seen.append(recording.capturing())))
        thread.start()
        thread.join()
        return x + x

    captured = mp.capture(step, warmup=1)
    x = mp.tensor(np.ones(3), device="gpu")
    captured(x)
    del seen[:]
    captured(x)
    assert seen == [False]
    assert captured._recorded.after == []


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


@pytest.mark.parametrize("n", [2, 9])
@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_many_tensors_are_joined_in_a_graph(n, dtype):
    """CuPy itself would upload a table of addresses for more than 8 of them."""
    step = mp.capture(lambda x: (ops.stack([x] * n, 1), ops.cat([x, x + x] * n, -1)), warmup=1)
    for i in range(3):
        x = rng(i).integers(-9, 9, (3, 2)).astype(dtype)
        stacked, joined = step(mp.tensor(x, device="gpu"))
        np.testing.assert_array_equal(stacked.numpy(), np.stack([x] * n, 1))
        np.testing.assert_array_equal(joined.numpy(), np.concatenate([x, x + x] * n, -1))


def test_what_is_joined_keeps_its_memory_order():
    images = [mp.tensor(np.ones((c, 4, 5, 2), "float16"), device="gpu").permute(3, 0, 1, 2) for c in (3, 2)]
    y = ops.cat(images, 1)
    assert y.shape == (2, 5, 4, 5)
    assert y.array.transpose(1, 2, 3, 0).flags.c_contiguous


def test_a_forgotten_graph_gives_its_memory_back(gpu):
    step = mp.capture(lambda x: x.exp() * x, warmup=1)
    x = mp.tensor(np.ones(5000), device="gpu")
    step(x), step(x)
    pool = step._pool
    assert pool.used_bytes() > 0
    del step
    assert pool.used_bytes() == pool.total_bytes() == 0


def test_on_the_cpu_it_is_the_function():
    job = Job("cpu")
    step = mp.capture(job.step)
    assert [step(*job.batch())[1] for _ in range(5)] == [optim.StepResult.APPLIED] * 5
    assert step.calls == 5


class Sequences:
    """A recurrent layer, whose state after one batch is where the next one starts: the step itself writes it."""

    def __init__(self, layer):
        mp.manual_seed(0)
        self.model = mp.MIXED.cast(layer(5, 6)).to("gpu")
        self.optimizer, self.scaler = optim.SGD(self.model.parameters(), lr=0.1), optim.DynamicLossScaler(2.0**10)
        self.state = [mp.Tensor(np.zeros((1, 3, 6), "float16")).to("gpu") for _ in range(2 if layer is nn.LSTM else 1)]

    def step(self, x):
        y, state = self.model(x, tuple(self.state) if len(self.state) == 2 else self.state[0])
        loss = (y * y).float().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        for own, after in zip(self.state, state if isinstance(state, tuple) else (state,)):
            own.copy_(after.detach())
        return loss


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_sequences(layer):
    plain, captured = Sequences(layer), Sequences(layer)
    step = mp.capture(captured.step, warmup=2)
    for seed in range(5):
        x = mp.Tensor(rng(seed).standard_normal((4, 3, 5)).astype("float16")).to("gpu")
        assert plain.step(x).item() == step(x).item()
    same(plain.model.state_dict(), captured.model.state_dict())
    for own, other in zip(plain.state, captured.state):
        assert own.numpy().all()
        np.testing.assert_array_equal(own.numpy(), other.numpy())


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_layers_of_sequences(layer):
    """Two layers in two directions, and inputs in another memory order than the loop over steps."""
    model = mp.MIXED.cast(layer(5, 6, 2, batch_first=True, bidirectional=True)).to("gpu")
    with mp.no_grad():
        step = mp.capture(lambda x: model(x)[0], warmup=1)
        for seed in range(3):
            x = mp.Tensor(rng(seed).standard_normal((3, 4, 5)).astype("float16")).to("gpu")
            np.testing.assert_array_equal(step(x).numpy(), model(x)[0].numpy())
