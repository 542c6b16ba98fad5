"""Calls of fuzz.py besides ops, Tensors and layers: initialisers, modules, optimizers, scalers, schedules, data,
models, files, policies; each with valid values, which Dice replaces by others.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

import tinymp as mp
from tinymp import data, nn, optim
from tinymp.audit.scales import Scales

if TYPE_CHECKING:
    from fuzz import Dice, Target

PREFIXES = ("mp.", "init.", "Module.", "optim.", "data.")
NOT_CALLED = {
    *("Optimizer", "Schedule", "LossScaler", "StepResult"),  # bases, and an enumeration
    "Dataset",
}

# --------------------------------------------------------------------------------------------------- values that fit


def a_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


def an_optimizer(d: Dice) -> Any:
    model = a_model()
    parameters = list(model.parameters())
    made = d.random.choice((
        lambda: optim.SGD(parameters, 0.1, momentum=0.9),
        lambda: optim.Adam(parameters),
        lambda: optim.Adagrad(parameters),
        lambda: optim.RMSprop(parameters, weight_decay=0.1),
    ))()  # fmt: skip
    if d.chance(0.7):
        model(mp.ones(2, 2)).sum().backward()
    return made


def a_scaler(d: Dice) -> Any:
    return d.random.choice((optim.DynamicLossScaler, optim.NoLossScaler, lambda: optim.StaticLossScaler(8.0)))()


def a_schedule(d: Dice) -> Any:
    o = an_optimizer(d)
    return d.random.choice((
        lambda: optim.StepLR(o, 2), lambda: optim.LinearLR(o), lambda: optim.CosineAnnealingLR(o, 5),
        lambda: optim.MultiStepLR(o, [1, 3]), lambda: optim.ReduceLROnPlateau(o),
    ))()  # fmt: skip


def a_dataset(d: Dice) -> Any:
    x = np.arange(12, dtype="float32").reshape(6, 2)
    return d.random.choice((data.TensorDataset(x, np.arange(6)), list(x), data.Subset(list(x), [0, 2, 5]), [1.0, 2.0]))


def a_loader(d: Dice) -> data.DataLoader:
    return data.DataLoader(a_dataset(d), d.small(1, 3), shuffle=d.chance(0.5), seed=0, prefetch=0)


def a_state(of: Callable[[Dice], Any]) -> Callable[[Dice], Any]:
    """A state_dict, one of whose entries is another now and then."""

    def made(d: Dice) -> Any:
        state = of(d).state_dict()
        if state and d.chance(0.6):
            state[d.random.choice(sorted(state, key=str))] = d.junk()
        if state and d.chance(0.1):
            del state[d.random.choice(sorted(state, key=str))]
        return state

    return made


def a_policy(d: Dice) -> mp.Policy:
    return d.random.choice(sorted(mp.POLICIES.values(), key=str))


def a_path(d: Dice) -> str:
    names = "new there.safetensors run.safetensors folder missing/a text idx pictures pictures/a/0.ppm"
    return d.random.choice(names.split())


def write_files() -> None:
    """Write the files that paths may name into the working directory."""
    from pathlib import Path

    for folder in ("folder", "pictures/a"):
        Path(folder).mkdir(parents=True)
    Path("text").write_text(json.dumps({"no": "checkpoint"}))
    Path("pictures/a/0.ppm").write_bytes(b"P6 2 1 255\n......")
    Path("idx").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6]))
    mp.save_weights("there.safetensors", a_model())
    mp.save("run.safetensors", model=a_model(), step=3)


def a_step(tokens: np.ndarray, state: Any) -> tuple:
    return np.log(np.full((len(tokens), 4), 0.25)), state


BY_NAME: dict[str, Callable[[Dice], Any]] = {
    name: made
    for names, made in {
        "optimizer": an_optimizer,
        "params parameters": lambda d: list(a_model().parameters()),
        "param_group": lambda d: {"params": [nn.Parameter([1.0, 2.0])], "lr": d.random.choice((0.1, -1, None))},
        "model module target": lambda d: a_model(),
        "loss": lambda d: mp.tensor(1.5, requires_grad=d.chance(0.5)),
        "lr momentum dampening weight_decay eps alpha rho lr_decay initial_accumulator_value": (
            lambda d: d.random.choice((0.0, 0.1, 0.9, 1e-8, -0.5))
        ),
        "betas": lambda d: d.random.choice(((0.9, 0.999), (0.5, 0.5), [0.0, 0.1], (0.9, 1.0))),
        "max_norm clip_value norm_type": lambda d: d.random.choice((0.5, 1.0, 2, float("inf"), -1)),
        "lr_lambda": lambda d: lambda t: 1 / (1 + t),
        "milestones": lambda d: d.random.choice(([1, 3], [2], [], [3, 1])),
        "schedulers": lambda d: [a_schedule(d) for _ in range(d.small(0, 2))],
        "max_lr": lambda d: d.random.choice((1.0, [1.0], [0.1, 0.2])),
        "results": lambda d: d.random.choice(list(optim.StepResult)),
        "metrics": lambda d: d.random.choice((1.0, 0.5, float("nan"), mp.tensor(1.0))),
        "init_scale scale": lambda d: d.random.choice((1.0, 8.0, 2.0**16, 0.5)),
        "dataset": a_dataset,
        "indices": lambda d: d.random.choice(([0, 1], np.array([1, -1]), [9], [True, False], mp.tensor([0]))),
        "lengths": lambda d: d.random.choice(([3, 3], [0.5, 0.5], [6], [1, 2, 3], np.array([1, 2, 3]))),
        "batch": lambda d: [d.tensor((2,), "float32"), d.tensor((2,), "float32")],
        "sequences": lambda d: [d.tensor((d.small(1, 3), 2), "float32") for _ in range(d.small(0, 3))],
        "tensors": lambda d: d.tensor((d.small(2, 3), 2)),
        "generator": lambda d: d.random.choice((None, np.random.default_rng(0))),
        "seed": lambda d: d.random.choice((None, None, 3)),
        "sampler": lambda d: d.random.choice((None, [0, 1])),
        "batch_sampler": lambda d: d.random.choice((None, [[0, 1], [2]])),
        "num_workers prefetch": lambda d: 0,
        "collate_fn": lambda d: d.random.choice((None, list)),
        "path root directory": a_path,
        "policy": a_policy,
        "observer": lambda d: mp.Observer(),
        "instruments": lambda d: Scales(),
        "array": lambda d: d.tensor().numpy(),
        "step": lambda d: a_step,
        "state": lambda d: None,
        "nonlinearity": lambda d: d.random.choice(("relu", "tanh", "leaky_relu", "linear", "swish")),
        "storage accumulate reduce norm": lambda d: d.random.choice(("float16", "float32", np.float64)),
        "rounding": lambda d: d.random.choice(("nearest", "stochastic", "up")),
        "hook fn": lambda d: lambda *_: None,
        "name": lambda d: d.random.choice(("a", "weight", "a.b", "", "forward")),
        "param": lambda d: nn.Parameter([1.0]),
        "state_dict": lambda d: {},
    }.items()
    for name in names.split()
}
FITTING: dict[tuple[str, str], Callable[[Dice], Any]] = {
    **{(f"init.{name}", "tensor"): lambda d: nn.Parameter(np.ones((2, d.small(1, 3), 3)[: d.small(1, 3)], "f4"))
       for name in vars(nn.init)},
    ("mp.tensor", "data"): lambda d: d.random.choice((1, [1.0, 2.0], d.tensor(), d.tensor().numpy(), [[1], [2, 3]])),
    ("mp.use", "policy"): a_policy,
    **{(f"mp.Checkpointer.{name}", "step"): lambda d: d.small(0, 3) for name in ("save", "load", "path")},
    ("mp.device", "name"): lambda d: d.random.choice(("cpu", "meta", "gpu", "cuda")),
    ("mp.set_rng_state", "state"): lambda d: mp.get_rng_state(),
    ("mp.Policy", "state"): lambda d: "float32",
    ("mp.saved_nbytes", "root"): lambda d: d.tensor(),
    ("mp.Policy.cast", "target"): lambda d: d.random.choice((a_model(), d.tensor(), [d.tensor()], {"x": d.tensor()})),
    ("mp.Policy.cast", "keep"): lambda d: d.random.choice((None, {"0": a_policy(d)}, {"": mp.FP32, "0": mp.MIXED})),
    ("mp.SparseRows", "indices"): lambda d: np.array([0, 2]),
    ("mp.SparseRows", "values"): lambda d: np.ones((2, d.small(1, 2)), "float32"),
    ("mp.SparseRows", "shape"): lambda d: (4, 2),
    **{("optim." + name, "state_dict"): a_state(of) for name, of in (
        ("Optimizer.load_state_dict", an_optimizer), ("LossScaler.load_state_dict", a_scaler),
        ("Schedule.load_state_dict", a_schedule))},
    ("data.DataLoader.load_state_dict", "state_dict"): a_state(a_loader),
    ("Module.load_state_dict", "state_dict"): a_state(lambda d: a_model()),
    ("Module.register_buffer", "tensor"): lambda d: d.tensor(),
    ("Module.to", "device"): lambda d: d.random.choice(("cpu", "gpu", "float16")),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------ what is called


def targets() -> list[Target]:
    """All of it, in a fixed order."""
    from fuzz import Target

    found = []
    for home, prefix in ((nn.init, "init."), (optim, "optim."), (data, "data."), (mp, "mp.")):
        for name, f in members(home):
            if name in NOT_CALLED or name.startswith("_") or not callable(f):
                continue
            within = "tinymp" if home is mp else home.__name__.removesuffix(".init")  # others lie in nn/more
            if not f.__module__.startswith(within) or isinstance(f, type(mp)):
                continue
            if home is mp and (f.__module__.startswith("tinymp.ops") or f is mp.Tensor):
                continue
            if home is nn.init and not name.endswith("_") and name != "calculate_gain":
                continue
            if inspect.signature(f).parameters:
                found.append(Target(prefix + name, used(f), (name, *class_of(f), *SAYS.get(name, ()))))
    for prefix, of, names in METHODS:
        for name in names.split():
            found.append(Target(f"{prefix}.{name}", attrgetter(name) if name != "forward" else called, (name,), of))
    return found


def members(home: Any) -> list[tuple[str, Any]]:
    """The members of a package by their names; for mp.audit, a callable package, the function."""
    found = [(name, getattr(home, name)) for name in dir(home)]
    return [(name, mp.audit.audit if x is mp.audit else x) for name, x in found]


def class_of(f: Callable) -> tuple[str, ...]:
    """The name of a class, which may be public under another name, too."""
    return (f.__name__,) if inspect.isclass(f) else ()


def called(layer: nn.Module) -> Callable:
    """The call of a layer, with its forward's signature."""
    return functools.wraps(layer.forward)(lambda *args, **options: layer(*args, **options))


SAYS = {"save_weights": ("safetensors",)}
METHODS: tuple[tuple[str, Callable[[Dice], Any], str], ...] = (
    ("Module", lambda d: a_model(), "to train requires_grad_ load_state_dict register_buffer register_parameter "
     "add_module apply register_forward_hook register_forward_pre_hook register_full_backward_hook zero_grad"),
    ("optim.Optimizer", an_optimizer, "step zero_grad add_param_group load_state_dict"),
    ("optim.LossScaler", a_scaler, "scale unscale_ step update load_state_dict"),
    ("optim.Schedule", a_schedule, "step load_state_dict"),
    ("data.DataLoader", a_loader, "load_state_dict"),
    ("mp.Policy", a_policy, "cast"),
    ("mp.Checkpointer", lambda d: mp.Checkpointer("runs", model=a_model()), "save load path"),
)  # fmt: skip


def used(f: Callable) -> Callable:
    """f, and what a user does next with its result: a block is entered, a loader gives batches, a layer stays."""
    if inspect.isclass(f) and f is not data.DataLoader:
        return f

    @functools.wraps(f)
    def call(*args: Any, **options: Any) -> Any:
        made = f(*args, **options)
        if hasattr(made, "__enter__"):
            with made:
                return None
        return list(islice(made, 3)) if isinstance(made, data.DataLoader) else made

    return call
