"""Random calls of everything public with random arguments, valid and not: what a user may do wrong must end well.

    for i, made, end in fuzz.ends(0, range(100_000), fuzz.targets()): ...    so many calls of seed 0

Every public function of tinymp.ops, every method and operator of Tensor, every layer of tinymp.nn, and what else is
public (around.py) is called with arguments that fit its signature, shapes that fit more often than not, and now and
then a value that fits nothing. Call i of a seed is always the same call. A call may return (then backward runs, too) or
raise a TypeError, ValueError, IndexError, RuntimeError or OSError. Everything else is a crash, a hang or a warning, and
so is a MemoryError; but a call with a number from 10,000 on may end for lack of memory or time.

A clear error is one that tinymp raises in words of its own, or Python where arguments do not fit a signature: what
comes out of NumPy or an attribute that is missing is not, even where it can be understood. It begins with the name of
what was called: of the function, the method or its class, the layer.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import os
import random
import re
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import around
import tinymp as mp
from tinymp import nn, ops
from tinymp.events import PACKAGE

CLEAR = (TypeError, ValueError, IndexError, RuntimeError, OSError)
SECONDS = 5  # that a call may take
BYTES = 1 << 31  # that a call may ask for
HUGE = (2**31, 2**40, 2**62, 2**63, 2**64, -(2**31), -(2**63) - 1, 10**30)
JUNK = (
    None, True, False, "", "mean", "False", "sum", 0, 1, -1, 2, 3, 5, -7, 0.0, 0.5, -0.5, 1.5, 1e-300, 1e300, 70_000,
    float("nan"), float("inf"), -float("inf"), 1j, (), [], {}, (0,), (1, 2), [2, 2], (0, 0), (-1,), (0.5, 1), [None],
    ("a",), [[1, 2], [3, 4]], [[1], [2, 3]], ..., slice(None), object, np.float64(2), np.float32(0.5), np.int64(1),
    np.uint64(2**64 - 2), np.bool_(True), np.zeros(2), np.array("a"), np.array(None), b"ab", {1}, range(3), *HUGE,
)  # fmt: skip
SHOWN = ("bind", "in_place", "annotations")  # of tinymp.ops, but no ops
# Of Tensor: what NumPy, pickle and the engine call, and what makes a Tensor.
NOT_CALLED = (
    "__init__", "__new__", "__setattr__", "__delattr__", "__getattribute__", "__getattr__", "__init_subclass__",
    "__array__", "__array_function__", "__dlpack__", "__dlpack_device__", "__float__", "__format__",
    "__index__", "__int__", "__iter__", "__reduce_ex__", "__setstate__",
    "require_outside_graph", "overwrite", "bump_version", "cast_storage", "result",
    # protocols of the engine, not for users: Policy.cast and Op.apply call them
)  # fmt: skip


class Target(NamedTuple):
    """Something public to call, the names by which its errors may call it, and of a method whose it is."""

    name: str
    function: Callable
    says: tuple[str, ...]
    owner: Callable[[Dice], Any] | None = None


class Call(NamedTuple):
    target: Target
    arguments: tuple
    options: dict[str, Any]
    forward: tuple | None  # of a layer: what the built layer is called with


@functools.cache
def targets() -> list[Target]:
    """All that is called, in a fixed order."""
    found = []
    for name in dir(ops):  # also those that are loaded when they are first named
        if not name.startswith("_") and inspect.isfunction(f := getattr(ops, name)) and name not in SHOWN:
            found.append(Target(name, f, (name,)))
    for name in sorted(vars(mp.Tensor)):
        f = getattr(mp.Tensor, name)  # loads those of ops/more
        public = (not name.startswith("_") or name.startswith("__")) and name not in NOT_CALLED
        if inspect.isfunction(f) and public:
            plain = name.removeprefix("__").removesuffix("__")
            says = (name, plain) if plain == name else (plain, plain.removeprefix("r"), *OPERATORS.get(plain, ()))
            if plain[0] == "i" and plain[1:] in IN_PLACE:
                says = f"{plain[1:]}_", plain[1:], *OPERATORS.get(plain[1:], ())
            found.append(Target(f"Tensor.{name}", f, says))
    for name in nn.__all__:
        layer = getattr(nn, name)
        if inspect.isclass(layer) and issubclass(layer, nn.Module) and layer.forward is not nn.Module.forward:
            found.append(Target(f"nn.{name}", layer, (name, *OPERATORS.get(name, ()))))
    return found + around.targets()


IN_PLACE = ("add", "and", "matmul", "mul", "or", "pow", "sub", "truediv")
OPERATORS = {
    "invert": ("~", "logical_not"), "and": ("&", "logical_and"), "or": ("|", "logical_or"), "setitem": ("setitem",),
    "truediv": ("div",), "rtruediv": ("div",), "reversed": ("len",), "contains": ("eq", "any", "bool"),
    "Sequential": ("ReLU", "Tanh"),  # the modules in it
}  # fmt: skip


# --------------------------------------------------------------------------------------------------------- arguments


class Dice:
    """Random values for one call: shapes that its tensors share, and whether they take gradients."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        lengths, axes = (0, 1, 2, 2, 3, 3, 4, 5), (0, 1, 2, 2, 3, 4, 4)
        self.shape = tuple(self.random.choice(lengths) for _ in range(self.random.choice(axes)))
        dtypes = ("float32",) * 5 + ("float16",) * 3 + ("float64", "int64", "bool", "uint8", "int32")
        self.dtype = self.random.choice(dtypes)
        self.floating = self.dtype if self.dtype.startswith("float") else "float32"
        self.channels, self.groups = self.random.choice((1, 2, 2, 4)), self.random.choice((1, 1, 1, 2))

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def tensor(self, shape: Any = None, dtype: str | None = None) -> mp.Tensor:
        """A tensor: of the common shape, or one that broadcasts against it, or any other."""
        if shape is None:
            shape = self.shape
            if self.chance(0.15):
                shape = tuple(1 if self.chance(0.5) else n for n in shape[self.random.randrange(len(shape) + 1) :])
            elif self.chance(0.05):
                shape = tuple(self.random.randrange(4) for _ in range(self.random.randrange(5)))
        dtype = dtype or (
            self.dtype if self.chance(0.95) else self.random.choice(("float16", "float32", "int64", "bool"))
        )
        values = np.random.default_rng(self.random.randrange(2**32)).standard_normal(shape)
        with np.errstate(all="ignore"):
            array = np.abs(values * 3).astype(dtype) if dtype == "uint8" else (values * 3).astype(dtype)
        if array.size and array.dtype.kind == "f" and self.chance(0.05):
            array.reshape(-1)[0] = self.random.choice((np.nan, np.inf, -np.inf, 0))
        if array.ndim > 1 and self.chance(0.2):
            array = array.T.copy().T if self.chance(0.7) else np.repeat(array, 2, 0)[::2]
        return mp.Tensor(array, requires_grad=array.dtype.kind == "f" and self.chance(0.5))

    def small(self, least: int = 0, most: int = 4) -> int:
        return self.random.randint(least, most)

    def sizes(self, least: int = 1, most: int = 3) -> Any:
        """An integer, or a tuple or list of one to three."""
        if self.chance(0.6):
            return self.small(least, most)
        kind, n = self.random.choice((tuple, list)), self.random.choice((1, 2, 2, 2, 3))
        return kind(self.small(least, most) for _ in range(n))

    def axis(self) -> int:
        least = -len(self.shape) - self.chance(0.05)
        return self.random.randint(least, max(len(self.shape) - 1 + self.chance(0.05), 0))

    def index(self) -> Any:
        one = [self.axis(), slice(None), slice(0, 2), slice(None, None, 2), None, ..., [0, 0], [], True, mp.tensor([0])]
        mask = mp.Tensor(np.random.default_rng(self.random.randrange(2**32)).random(self.shape) < 0.5)
        return self.random.choice((*one, mask, tuple(self.random.choices(one, k=self.small()))))

    def junk(self) -> Any:
        return self.random.choice(JUNK) if self.chance(0.8) else self.tensor()

    def argument(self, op: str, p: inspect.Parameter) -> Any:
        """A value for a parameter, by its name, else by its annotation."""
        if self.chance(0.12 if op.startswith(around.PREFIXES) else 0.04):
            return self.junk()
        made = around.FITTING.get((op, p.name)) or around.BY_NAME.get(p.name)
        made = made if op.startswith(around.PREFIXES) else None
        many = op.startswith(("nn.", *around.PREFIXES))  # options
        large = isinstance(p.default, int) and p.default > 500  # a Transformer's would take seconds
        if p.default is not p.empty and not large and self.chance(0.8 if many else 0.5):
            return p.default
        value = self.shaped(op, p.name) if made is None else made(self)
        if value is not None:
            return value
        for names, made in BY_NAME.items():
            if p.name in names.split():
                return made(self)
        annotation = str(p.annotation)
        if "Tensor" in annotation:
            return self.tensor()
        if "bool" in annotation:
            return self.chance(0.5)
        if "int" in annotation:
            return self.small()
        if "float" in annotation:
            return self.random.choice((0.5, 1.0, 0.1, 2, 1e-5))
        return self.random.choice((1, 2, self.tensor(), None))

    def operands(self, equation: Any) -> list:
        """Tensors for an einsum: such as the equation asks for, or any."""
        if not isinstance(equation, str) or self.chance(0.2):
            return [self.tensor() for _ in range(self.small(0, 3))]
        terms = equation.split("->")[0].split(",")
        return [self.tensor((2,) * sum(c.isalpha() for c in term), self.floating) for term in terms]

    def shaped(self, op: str, name: str) -> Any:
        """Tensors whose shapes fit together, for ops where chance would rarely make them."""
        c, g, shape, floating = self.channels, self.groups, self.shape, self.floating
        spatial = 1 if "1d" in op else 2
        if op.endswith(("mm", "matmul", "matmul__")) and name in ("input", "other", "mat2"):
            return self.tensor(((2,) if "bmm" in op else ()) + (2, 2), floating)
        if op in ("gather", "scatter", "index_add", "index_select") and name == "index" and shape:
            return mp.Tensor(np.zeros((1,) * (1 if "index" in op else len(shape)), "int64"))
        if op in ("__and__", "__or__", "__invert__") and name == "input":
            return self.tensor(dtype="bool")
        if "attention" in op.lower() and name in ("query", "key", "value"):
            return self.tensor((2, 3, 4), floating)
        if re.search("nn.Transformer", op) and name in ("src", "tgt", "memory", "input"):
            return self.tensor((3, 2, 4), floating)
        if "embedding" in op.lower() and name == "input":
            return mp.Tensor(np.full((2, self.small(1, 3)), self.small(0, 2)))
        if op == "nn.Linear" and name == "input":
            return self.tensor((2, c), floating)
        if re.search("nn.*(Batch|Instance|Group|Response)Norm", op) and name == "input":
            return self.tensor((2, c, 3) if spatial == 1 else (2, c, 3, 2), floating)
        if op in ("binary_cross_entropy", "nn.BCELoss") and name == "input":
            return mp.Tensor(np.full(shape, 0.5, floating), requires_grad=True)
        if op in ("pixel_shuffle", "nn.PixelShuffle") and name == "input":
            return self.tensor((c, 4 * g, *shape[:2]), floating)
        if "conv" in op.lower() or "pool" in op.lower() or op in ("unfold", "nn.Upsample", "interpolate"):
            size = tuple(self.small(0 if self.chance(0.05) else 3, 7) for _ in range(spatial))
            if name == "input":
                return self.tensor((self.small(0, 2), c, *size) if self.chance(0.8) else (c, *size), floating)
            if name == "weight":
                rows = (c, 2 * g) if "transpose" in op else (2 * g, max(c // g, 1))
                return self.tensor((*rows, *(self.small(1, 3) for _ in range(spatial))), floating)
            if name == "bias" and not op.startswith("nn."):
                return self.tensor((2 * g,), floating)
        if op in ("linear", "nn.Linear", "embedding", "nn.Embedding") and name in ("weight", "bias"):
            return self.tensor((3, shape[-1] if shape else 2) if name == "weight" else (3,), floating)
        per_channel = op in ("batch_norm", "group_norm", "instance_norm") and name in ("weight", "bias")
        if name in ("running_mean", "running_var") or per_channel:
            v = self.tensor(shape[1:2], floating)
            return v.detach() if "running" in name else v
        if op in ("cross_entropy", "nll_loss", "nn.CrossEntropyLoss", "nn.NLLLoss") and name in ("target", "weight"):
            axis = int(len(shape) > 1)
            n = shape[axis] if len(shape) > axis else 2
            rows = shape[:axis] + shape[axis + 1 :]
            if name == "weight":
                return self.tensor((n,), floating)
            return mp.Tensor(np.random.default_rng(1).integers(0, max(n, 1), rows))
        if "ctc" in op.lower() and name.endswith(("log_probs", "targets", "lengths")):
            if name == "log_probs":
                return self.tensor((4, 2, 3), floating)
            if name == "targets":
                return mp.Tensor(np.array([[1, self.small(0, 2)], [2, 2]]))
            return [self.small(0, 4 if name == "input_lengths" else 2) for _ in range(2)]
        if kind := re.search("lstm|gru|rnn", op, re.I):
            gates, cell = {"lstm": 4, "gru": 3, "rnn": 1}[kind[0].lower()], "cell" in op.lower()
            t, b, d, h = 3, self.small(0, 2), 2, 2
            state = (b, h) if cell or not op.startswith("nn.") else (1, b, h)
            shapes = {"input": (b, d) if cell else (t, b, d), "w_ih": (gates * h, d), "w_hh": (gates * h, h)}
            for long, short in (("weight_ih", "w_ih"), ("weight_hh", "w_hh")):
                shapes[long] = shapes[short]
            shapes |= dict.fromkeys(("b_ih", "b_hh", "bias_ih", "bias_hh"), (gates * h,))
            if name == "hx":
                pair = (self.tensor(state, floating), self.tensor(state, floating))
                return pair if gates == 4 else pair[0]
            if name in shapes:
                return self.tensor(shapes[name], floating)
        return None


MODES = (
    "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "area", "constant", "reflect",
    "replicate", "circular", "fan_in",
)  # fmt: skip
EQUATIONS = (
    "ij,jk->ik", "ii->i", "...i,...i", "i,j", "bij,bjk->bik", "ij->ji", "abc", "->", "i->", "ij,ij", "i,->i", "a...b",
)  # fmt: skip

BY_NAME: dict[str, Callable[[Dice], Any]] = {
    "dim dims start_dim end_dim dim0 dim1": lambda d: (
        d.axis() if d.chance(0.7) else d.random.choice((None, (), (d.axis(),), [0, 1], (-1, 0)))
    ),
    "kernel_size stride output_size upscale_factor": lambda d: d.sizes(1, 3),
    "padding": lambda d: d.sizes(0, 1) if d.chance(0.85) else d.random.choice(("same", "valid", "full")),
    "dilation": lambda d: d.sizes(1, 2),
    "output_padding": lambda d: d.sizes(0, 1),
    "groups num_groups": lambda d: d.groups,
    "embed_dim d_model": lambda d: 4,
    "num_heads nhead": lambda d: d.small(1, 2),
    "encoder_layer": lambda d: nn.TransformerEncoderLayer(4, 2, 8),
    "decoder_layer": lambda d: nn.TransformerDecoderLayer(4, 2, 8),
    "num_layers": lambda d: d.small(1, 2),
    "activation": lambda d: d.random.choice(("relu", "gelu", "tanh", None)),
    "size shape unflattened_size": lambda d: (
        d.shape if d.chance(0.5) else tuple(d.small(-1, 4) for _ in range(d.small()))
    ),
    "normalized_shape": lambda d: d.shape[d.small(0, len(d.shape)) :] if d.chance(0.8) else d.sizes(),
    "pad": lambda d: [d.small(-1, 2) for _ in range(2 * d.small(0, 2))],
    "scale_factor": lambda d: d.random.choice((2, 0.5, 1.3, (2, 1), (0.5, 3.0))),
    "mode": lambda d: d.random.choice(MODES),
    "reduction": lambda d: d.random.choice(("mean", "sum", "none", "batchmean")),
    "approximate": lambda d: d.random.choice(("none", "tanh")),
    "rounding_mode": lambda d: d.random.choice(("floor", "trunc", None)),
    "padding_mode": lambda d: "zeros",
    "equation": lambda d: d.random.choice(EQUATIONS),
    "index": lambda d: d.index(),
    "tensors": lambda d: [d.tensor() for _ in range(d.small(0, 3))],
    "split_size_or_sections": lambda d: d.small() if d.chance(0.6) else [d.small(0, 2) for _ in range(d.small(0, 3))],
    "other exponent min max": lambda d: (
        d.tensor() if d.chance(0.6) else d.random.choice((0, 1, -2, 0.5, 2.0, 1e5, True, float("inf")))
    ),
    "value fill_value": lambda d: d.random.choice((0, 1, -1.5, 1e5, float("-inf"), True, d.tensor(()))),
    "mask condition": lambda d: d.tensor(dtype="bool"),
    "target": lambda d: d.tensor(d.shape) if d.chance(0.7) else d.tensor(d.shape, "int64"),
    "dtype": lambda d: d.random.choice((None, "float16", "float32", "int64", np.float64, bool, "complex64")),
    "device": lambda d: d.random.choice((None, "cpu", "gpu", "tpu")),
    "start end step": lambda d: d.random.choice((0, 1, 5, -3, 0.5, 2)),
    "reduce max_norm": lambda d: None if d.chance(0.9) else True,
    "lengths": lambda d: None if d.chance(0.5) else [d.small(1, 3) for _ in range(d.small(0, 2))],
    "num_features num_channels in_channels out_channels in_features": lambda d: (
        d.channels if d.chance(0.5) or len(d.shape) < 2 else d.shape[d.random.choice((1, -1))]
    ),
    "data source gradient": lambda d: d.tensor() if d.chance(0.7) else d.junk(),
    "generator hx": lambda d: None,
    "args": lambda d: [nn.ReLU(), nn.Tanh()],
    "input_size hidden_size": lambda d: 2,
    "num_embeddings embedding_dim num_classes": lambda d: d.small(1, 5),
}


def call(seed: int, i: int, among: list[Target]) -> Call:
    """Call i of a seed."""
    d = Dice(f"{seed}-{i}")
    target = d.random.choice(among)
    if target.owner is not None:
        owner = target.owner(d)
        method = target.function(owner)
        target = target._replace(says=(*target.says, type(owner).__name__), owner=None)
        return Call(target._replace(function=method), *_arguments(d, target.name, method), None)
    arguments = _arguments(d, target.name, target.function)
    if not inspect.isclass(target.function) or not target.name.startswith("nn."):
        return Call(target, *arguments, None)
    code = target.function.forward
    forward = _arguments(d, target.name, code)[0][1:]
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(code).parameters.values()):
        names = ["input"]
        if issubclass(target.function, nn.functions.Function):
            known = inspect.signature(target.function.op).parameters.values()
            names = [p.name for p in known if p.default is p.empty and p.name not in target.function.options.parameters]
        forward = tuple(d.argument(target.name, inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY)) for n in names)
        forward = tuple(d.tensor() if x is None else x for x in forward)
    return Call(target, *arguments, forward)


def _arguments(d: Dice, name: str, f: Callable) -> tuple[tuple, dict[str, Any]]:
    positional, options, op = [], {}, name.removeprefix("Tensor.")
    for k, p in enumerate(inspect.signature(f).parameters.values()):
        if p.kind is p.VAR_KEYWORD:
            continue
        if k == 0 and name.startswith("Tensor."):  # self
            one = d.shaped(op, "input")
            positional.append(d.tensor() if one is None else one)
            if p.kind is p.VAR_POSITIONAL:  # of & and |
                positional += [d.tensor(dtype="bool")] * ("invert" not in op)
        elif p.kind is p.VAR_POSITIONAL and p.name == "operands":
            positional += d.operands(positional[0])
        elif p.kind is p.VAR_POSITIONAL:
            one = d.argument(op, p.replace(kind=p.POSITIONAL_ONLY))
            positional += one if isinstance(one, (tuple, list)) and d.chance(0.5) else [one]
        elif (
            p.name == "input" and not op.startswith(around.PREFIXES) and d.shaped(op, p.name) is None and d.chance(0.96)
        ):
            positional.append(d.tensor())
        elif p.kind is not p.KEYWORD_ONLY:
            positional.append(d.argument(op, p))
        elif p.default is p.empty or d.chance(0.5):
            options[p.name] = d.argument(op, p)
    return tuple(positional), options


# ----------------------------------------------------------------------------------------------------------- the calls


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Within the block, this process may have BYTES more memory than now, where the system can say so."""
    try:
        import resource

        with open("/proc/self/statm") as f:
            now = int(f.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class TooLong(BaseException):
    """A call took more than SECONDS."""


class Ended(NamedTuple):
    """The end of a call: `wrong` says what is wrong with it (empty if nothing is), `raised` whether it raised."""

    wrong: str
    raised: bool = False


def run(made: Call) -> Ended:
    """Make the call."""

    def ring(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", r"\w+: dropout=")  # as in PyTorch: it acts between layers alone
            y = made.target.function(*made.arguments, **made.options)
            if made.forward is not None:
                y = y(*made.forward)
            for t in y if isinstance(y, (tuple, list)) else (y,):
                if isinstance(t, mp.Tensor) and t.requires_grad and t.dtype.kind == "f":
                    t.sum().backward()
                    break
    except MemoryError as error:
        return Ended("" if asks_for_much(made) else f"MemoryError: {error}", True)
    except CLEAR as error:
        how = ["is unclear"] * (not clear(error))
        how += ["does not begin with the name"] * (not names(error, made.target))
        return Ended(f"{' and '.join(how)}: {type(error).__name__}: {error}" if how else "", True)
    except TooLong:
        return Ended("" if asks_for_much(made) else f"takes more than {SECONDS} s")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Ended(f"{type(error).__name__}: {error}", True)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Ended("")


def names(error: BaseException, target: Target) -> bool:
    """True if a message begins with a name of what was called, alone or after the class that it belongs to, and with
    no second name behind it.
    """
    own = "|".join(map(re.escape, target.says))
    return re.match(rf"(\[Errno \d+\] )?(\w+\.)?({own})(?!: \w+: )(\W|$)", str(error)) is not None


SIGNATURE = re.compile(
    r"missing \d+ required|unexpected keyword argument|takes .*positional argument|multiple values for argument"
)
NUMPY = re.compile(  # its words say enough of an index, or of a power of integers
    r"is out of bounds for axis|out of bounds for \w+|too many indices for array|can only have a single ellipsis"
    r"|slice indices must be integers|Python int too large|Integers to negative integer powers"
)


def clear(error: BaseException | None) -> bool:
    """True if tinymp raised an error, or one that it came from, in its own words, or another what it says well."""
    while error is not None:
        if isinstance(error, OSError) and error.filename is not None:
            return True
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
        code = frames[-1].f_code
        raised = linecache.getline(code.co_filename, lines[-1]).strip().startswith("raise")
        own = code.co_filename.startswith(PACKAGE)
        own = own and code.co_name != "rename"  # which puts a name before other words
        if SIGNATURE.search(str(error)) or NUMPY.search(str(error)) or (own and raised):
            return True
        error = error.__cause__
    return False


def asks_for_much(made: Call) -> bool:
    """True if an argument is a large number, which may exhaust memory and time."""
    flat = [*made.arguments, *made.options.values(), *(made.forward or ())]
    flat += [v for x in flat if isinstance(x, (tuple, list)) for v in x]
    return any(abs(int(x)) >= 10_000 for x in flat if isinstance(x, (int, np.integer)))


def shown(made: Call) -> str:
    """The call, short."""

    def one(x: Any) -> str:
        if isinstance(x, (mp.Tensor, np.ndarray)):
            return f"<{x.dtype} {x.shape}>"
        return "[" + ", ".join(map(one, x)) + "]" if isinstance(x, (tuple, list)) else repr(x)

    given = [*map(one, made.arguments), *(f"{k}={one(v)}" for k, v in made.options.items())]
    then = "" if made.forward is None else f"({', '.join(map(one, made.forward))})"
    return f"{made.target.name}({', '.join(given)}){then}"


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Within the block, the process is in an empty folder, which is removed after it: what a call writes lies there."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            around.write_files()
            yield
        finally:
            os.chdir(before)


def ends(seed: int, calls: range, among: list[Target]) -> Iterator[tuple[int, Call, Ended]]:
    """Make the calls: their number, the call, and how it ended."""
    with elsewhere(), limited():
        for i in calls:
            made = call(seed, i, among)
            yield i, made, run(made)
