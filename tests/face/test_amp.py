"""PyTorch's words for mixed precision: a program that uses them, and what it means in tinymp."""

import gc
import weakref

import numpy as np
import pytest

import tinymp as mp
import tinymp.torch as face
from tinymp import nn, optim
from tinymp.torch import amp
from tinymp.torch.amp import GradScaler, autocast, prepare

pytestmark = pytest.mark.cpu


@pytest.fixture
def alone():
    """No model of another test is prepared."""
    gc.collect()
    assert not amp._prepared


def test_autocast_is_a_context_and_a_decorator_and_can_be_off(alone):
    def name():
        return mp.current_policy().name

    model = prepare(nn.Linear(2, 3))
    with mp.use(mp.FP32):
        for off in (autocast("cuda", enabled=False), autocast(False), autocast("cpu", mp.float32)):
            with off:
                assert name() == "FP32"
        with autocast(device_type="cuda", dtype=mp.float16, cache_enabled=True) as context:
            pass
        assert autocast("cuda")(name)() == "MIXED" and name() == "FP32"
    del model, context


def test_hooks_hear_fp16_gradients_with_their_loss_scale(alone):
    model, scaler, seen = prepare(nn.Linear(2, 1)), GradScaler(init_scale=8.0), []
    with model.weight.register_hook(lambda g: seen.append(g) or g * 2), autocast("cuda"):
        y = model(mp.ones(1, 2))
        y.retain_grad()
        scaler.scale(y.sum()).backward()
    assert seen[0].dtype == y.grad.dtype == "float16" and y.grad_scale == 8
    assert (seen[0].tolist(), model.weight.grad.tolist(), y.grad.tolist()) == ([[8, 8]], [[16, 16]], [[8]])
    y.register_hook(lambda g: g)
    op = weakref.ref(y.grad_fn)
    del y
    assert op() is None  # at once: a hook makes no cycle


def test_a_hook_of_a_leaf_is_given_sparse_gradients_as_dense_ones():
    table = nn.Embedding(3, 2, sparse=True)
    table.weight.register_hook(lambda g: g * 3)
    table(mp.tensor([0, 2, 2])).sum().backward()
    assert table.weight.grad.tolist() == [[3, 3], [0, 0], [6, 6]]
    table.weight.register_hook(lambda g: g[0])
    with pytest.raises(ValueError, match="expected a gradient of shape"):
        table(mp.tensor([0])).sum().backward()
    with pytest.raises(RuntimeError, match="retain_grad: this tensor does not require a gradient"):
        mp.ones(2).retain_grad()


def test_bfloat16(alone):
    with pytest.raises(RuntimeError, match=r"prepare\(model, dtype=torch.bfloat16\)"), autocast("cuda", mp.bfloat16):
        pass
    model = prepare(nn.Linear(2, 3), dtype=mp.bfloat16)
    with autocast("cuda", mp.bfloat16):
        assert model(mp.ones(1, 2)).dtype == mp.bfloat16
    assert model(mp.ones(1, 2)).dtype == mp.float32 and model.weight.dtype == mp.bfloat16


def test_a_prepared_model_takes_and_gives_fp32_and_so_does_each_module_in_it(alone):
    """Its parts may be called directly, as in many public programs."""
    model, seen = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)), []
    optimizer = optim.Adam(model.parameters())
    assert prepare(model, optimizer) == (model, optimizer) == prepare(model, optimizer)
    x = mp.randn(3, 4)
    assert model[1](model[0](x)).dtype == mp.float32
    model[0].register_forward_hook(lambda m, args, y: seen.append((m.weight.dtype, y.dtype)))
    assert model(x).dtype == mp.float32 and seen == [(mp.float16, mp.float16)]  # inside, all is stored in FP16
    prepare(model, enabled=False)
    assert model[0].weight.dtype == mp.float32 and not amp._prepared
    with pytest.raises(ValueError, match="prepare: expected `dtype` to be one of float16"):
        prepare(model, dtype="int64")


def test_scaler_has_the_numbers_of_pytorch():
    torch = pytest.importorskip("torch")
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2, backoff_factor=0.25)
    ours = GradScaler("cpu", init_scale=8.0, growth_interval=2, backoff_factor=0.25)
    weight, parameter = torch.nn.Parameter(torch.ones(1)), nn.Parameter(mp.ones(1))
    both = (theirs, weight, torch.optim.SGD([weight], 0.1)), (ours, parameter, optim.SGD([parameter], 0.1))
    for factor in (1.0, 1.0, 2.0, 1e38, 1.0, 1.0, 1.0):  # 1e38 overflows in FP32
        for scaler, w, optimizer in both:
            optimizer.zero_grad()
            scaler.scale((w * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert ours.get_scale() == theirs.get_scale() and parameter.item() == weight.item()
        assert ours.state_dict() == theirs.state_dict()
    new = GradScaler()
    new.load_state_dict(theirs.state_dict())
    assert new.state_dict() == theirs.state_dict() and new.get_scale() == ours.get_scale()
    torch.amp.GradScaler("cpu").load_state_dict(ours.state_dict())
    for wrong in ({"backoff_factor": 2.0}, {"scale": 2.0**25}):  # the second: beyond max_scale
        with pytest.raises(ValueError, match=f"expected `{next(iter(wrong))}`"):
            new.load_state_dict(ours.state_dict() | wrong)
    assert new.state_dict() == ours.state_dict()


SCHEDULES = [
    ("StepLR", (1, 0.5), {}),
    ("CosineAnnealingWarmRestarts", (5,), {}),
    ("OneCycleLR", (1.0,), {"total_steps": 9}),
    ("LambdaLR", (lambda t: 1 / (t + 1),), {}),
    ("ReduceLROnPlateau", (), {"patience": 0}),
]
S, A = "skipped", "applied"


@pytest.mark.parametrize(
    ("calls", "counted"),
    [([[S], [S], [S], [A]], [3]), ([[A], [S], [A]], [0, 2]), ([[A, S], [S, A]], [0, 1]), ([[], []], [0, 1])],
)
@pytest.mark.parametrize(("name", "args", "options"), SCHEDULES)
def test_a_schedule_waits_where_its_one_step_was_skipped(name, args, options, calls, counted):
    """calls: the steps before each call of schedule.step(); counted: the calls that PyTorch's schedule is to see."""
    torch = pytest.importorskip("torch")
    weight, parameter = torch.nn.Parameter(torch.ones(1)), nn.Parameter(mp.ones(1))
    theirs, ours = torch.optim.SGD([weight], lr=1.0, momentum=0.9), face.optim.SGD([parameter], lr=1.0, momentum=0.9)
    made = [getattr(of.optim.lr_scheduler, name)(o, *args, **options) for of, o in ((torch, theirs), (face, ours))]
    assert isinstance(made[1], face.optim.lr_scheduler.LRScheduler) and isinstance(made[1], optim.Schedule)
    metric = [1.0] if name == "ReduceLROnPlateau" else []
    scaler = GradScaler(init_scale=64.0)
    theirs.step()
    for i, steps in enumerate(calls):
        for step in steps:
            ours.zero_grad()
            scaler.scale(parameter.sum() * (1e38 if step is S else 1e-3)).backward()
            assert scaler.step(ours).name.lower() == step
            scaler.update()
        made[1].step(*metric)
        if i in counted:
            made[0].step(*metric)
        assert made[1].get_last_lr() == pytest.approx([g["lr"] for g in theirs.param_groups], rel=1e-9)


def test_a_rule_of_the_programs_own_sees_gradients_without_the_scale_and_no_skipped_step():
    class Plain(face.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.25, "kind": "plain"})
            self.seen = []

        @face.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                self.seen.append(p.grad.numpy().copy())
                p.sub_(p.grad, alpha=self.param_groups[0]["lr"])

    model = prepare(face.nn.Linear(2, 1, bias=False))
    with face.no_grad():
        model.weight.copy_(face.tensor([[1.0, 2.0]]))
    optimizer, scaler = Plain(model.parameters()), GradScaler(init_scale=2.0**15)
    for x in ([[1.5, 0.25]], [[8.0, 1.0]], [[1.0, 1.0]]):  # 8 * 2^15 is beyond FP16: skipped
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = model(face.tensor(x)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    np.testing.assert_array_equal(optimizer.seen, [[[1.5, 0.25]], [[1.0, 1.0]]])
    np.testing.assert_array_equal(model.weight.master, [[1 - 3 / 8 - 1 / 4, 2 - 1 / 16 - 1 / 4]])
