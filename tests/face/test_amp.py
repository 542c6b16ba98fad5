"""PyTorch's words for mixed precision: a program that uses them, and what it means in tinymp."""

import difflib
import gc

import numpy as np
import pytest

import tinymp as mp
import tinymp.torch as face
from tinymp import nn, optim
from tinymp.torch import amp
from tinymp.torch.amp import GradScaler, autocast, prepare

pytestmark = pytest.mark.cpu

# As public programs write it; `data`, `start` and `use_amp` come from outside.
PYTORCH = """
import torch
from torch import nn
from torch.amp import GradScaler, autocast

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.head = nn.Linear(16 * 2 * 2, 4)

    def forward(self, x):
        x = self.features(x)
        return self.head(x.flatten(1))

model = Net()
model.load_state_dict(start(torch, model))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = GradScaler("cuda", init_scale=2.0**12, enabled=use_amp)
losses = []
model.train()
for images, labels in data:
    images, labels = torch.tensor(images), torch.tensor(labels)
    optimizer.zero_grad(set_to_none=True)
    with autocast(device_type="cuda", dtype=torch.float16, enabled=use_amp):
        outputs = model(images)
        loss = criterion(outputs, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
"""
EDITS = {
    "import torch\n": "import tinymp as torch\n",
    "from torch import nn\n": "from tinymp import nn\n",
    "from torch.amp import GradScaler, autocast\n": "from tinymp.torch.amp import GradScaler, autocast, prepare\n",
    "scaler = ": "model, optimizer = prepare(model, optimizer, enabled=use_amp)\nscaler = ",
}
DIRECT = {
    "from torch.amp import GradScaler, autocast\n": "",
    "criterion = nn.": "mp.MIXED.cast(model)\ncriterion = nn.",
    'GradScaler("cuda", init_scale=2.0**12, enabled=use_amp)': "optim.DynamicLossScaler(2.0**12)",
    'autocast(device_type="cuda", dtype=torch.float16, enabled=use_amp)': "mp.use(mp.MIXED)",
    "model(images)": "model(mp.MIXED.cast(images))",
}


def edited(edits):
    text = PYTORCH
    for old, new in edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def train(text, clip, use_amp):
    """The globals of a program after 20 steps, on squares of four positions in noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (20, 16))
    images = rng.standard_normal((20, 16, 1, 8, 8)).astype(np.float32)
    for image, label in zip(images.reshape(-1, 8, 8), labels.reshape(-1)):
        image[4 * (label // 2) :][:4, 4 * (label % 2) :][:, :4] += 1

    def start(torch, model):
        drawn, state = np.random.default_rng(1), model.state_dict()
        drawn = {n: drawn.normal(0, 0.1, x.shape) for n, x in state.items() if x.ndim > 1 or n.endswith("bias")}
        return dict(state) | {name: torch.tensor(x.astype(np.float32)) for name, x in drawn.items()}

    program = {"data": list(zip(images, labels)), "start": start, "use_amp": use_amp, "clip_grad_norm_": clip}
    program |= {"mp": mp, "optim": optim, "__name__": "program"}
    exec(text, program)
    return program


def test_a_program_of_pytorch_trains_after_five_lines_are_edited_as_one_written_in_tinymp():
    ours, clip = edited(EDITS), optim.clip_grad_norm_
    assert sum(line.startswith("+ ") for line in difflib.ndiff(PYTORCH.splitlines(), ours.splitlines())) <= 5
    direct = edited({**{old: EDITS[old] for old in [*EDITS][:2]}, **DIRECT})
    found, expected = train(ours, clip, True), train(direct, clip, True)
    assert found["losses"] == expected["losses"] and found["scaler"].state == expected["scaler"].state
    for name, value in expected["model"].state_dict().items():
        assert np.array_equal(found["model"].state_dict()[name], value), name


def test_its_losses_are_as_near_to_fp32_as_those_of_pytorch_under_autocast():
    torch = pytest.importorskip("torch")
    clip = torch.nn.utils.clip_grad_norm_
    fp32 = np.array(train(PYTORCH, clip, False)["losses"])
    theirs = np.array(train(PYTORCH.replace('"cuda"', '"cpu"'), clip, True)["losses"]) - fp32
    ours = np.array(train(edited(EDITS), optim.clip_grad_norm_, True)["losses"]) - fp32
    # both round about as much to FP16; the largest of 20 differences depends on the order of sums more than the mean
    assert abs(ours).max() <= 3 * abs(theirs).max() and abs(ours).mean() <= 2 * abs(theirs).mean()
    plain = np.array(train(edited(EDITS), optim.clip_grad_norm_, False)["losses"])
    assert np.allclose(plain, fp32, rtol=20 * 2.0**-22, atol=0)


@pytest.fixture
def alone():
    """No model of another test is prepared."""
    gc.collect()
    assert not amp._prepared


def test_autocast_is_a_context_and_a_decorator_and_can_be_off(alone):
    model = prepare(nn.Linear(2, 3))
    with mp.use(mp.FP32):
        for off in (autocast("cuda", enabled=False), autocast(False), autocast("cpu", mp.float32)):
            with off:
                assert mp.current_policy().name == "FP32"
        context = autocast(device_type="cuda", dtype=mp.float16, cache_enabled=True)

        @context
        def inside():
            with context:
                return mp.current_policy().name

        assert inside() == "MIXED" and mp.current_policy().name == "FP32"
    del model


@pytest.mark.skipif(mp.precision.BF16 is None, reason="needs ml_dtypes")
def test_bfloat16(alone):
    message = r"prepare\(model, dtype=torch.bfloat16\)"
    with pytest.raises(RuntimeError, match=message), autocast("cuda", mp.bfloat16):
        pass
    model = prepare(nn.Linear(2, 3), dtype=mp.bfloat16)
    with autocast("cuda", mp.bfloat16):
        assert mp.current_policy().name == "BF16" and model(mp.ones(1, 2)).dtype == mp.bfloat16
    assert model(mp.ones(1, 2)).dtype == mp.float32
    assert model.weight.dtype == mp.bfloat16


class Autoencoder(nn.Module):
    """Its parts are called directly, as in many public programs."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x):
        z = self.encode(x)
        self.seen = self.encode.weight.dtype, z.dtype
        return self.decode(z)


def test_a_prepared_model_takes_and_gives_fp32_and_so_does_each_module_in_it(alone):
    model = Autoencoder()
    optimizer = optim.Adam(model.parameters())
    assert prepare(model, optimizer) == (model, optimizer) == prepare(model, optimizer)
    x = mp.randn(3, 4)
    assert model(x).dtype == model.decode(model.encode(x)).dtype == mp.float32
    model(x)
    assert model.seen == (mp.float16, mp.float16)  # inside, all is stored in FP16
    prepare(model, enabled=False)
    assert model.encode.weight.dtype == mp.float32 and not amp._prepared
    with pytest.raises(ValueError, match="prepare: expected `dtype` to be one of float16"):
        prepare(model, dtype="int64")


def test_scaler_has_the_numbers_of_pytorch():
    torch = pytest.importorskip("torch")
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2, backoff_factor=0.25)
    ours = GradScaler("cpu", init_scale=8.0, growth_interval=2, backoff_factor=0.25)
    weight, parameter = torch.nn.Parameter(torch.ones(1)), nn.Parameter(mp.ones(1))
    both = [
        (theirs, weight, torch.optim.SGD([weight], 0.1)),
        (ours, parameter, optim.SGD([parameter], 0.1)),
    ]
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
    with pytest.raises(ValueError, match="GradScaler"):
        new.load_state_dict(ours.state_dict() | {"backoff_factor": 2.0})
    assert new.state_dict() == ours.state_dict()


def test_scaler_refuses_a_closure_as_pytorchs_does_and_may_be_off():
    p = nn.Parameter(mp.ones(1))
    with pytest.raises(RuntimeError, match="closure is not supported with loss scaling; call backward first"):
        GradScaler().step(face.optim.SGD([p], lr=0.1), lambda: p.sum())
    off, loss = GradScaler(enabled=False), p.sum()
    assert off.step(face.optim.SGD([p], lr=0.1), closure=lambda: p.sum()).item() == 1
    assert off.scale(loss) is loss and off.get_scale() == 1 and off.state_dict() == {}


def test_a_scale_beyond_the_ceiling_is_refused_by_the_entry_that_was_given():
    state = GradScaler().state_dict() | {"scale": 2.0**25}
    with pytest.raises(ValueError, match=r"GradScaler.load_state_dict: expected `scale` to be in .*, got 33554432"):
        GradScaler().load_state_dict(state)
    scaler = GradScaler(max_scale=2.0**30)
    scaler.load_state_dict(state)
    assert scaler.get_scale() == 2.0**25


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
