"""tinymp: a small deep-learning framework that trains in mixed precision and shows every precision decision.

    import tinymp as mp
    from tinymp import nn, ops, optim

Read `precision.py` first: precision changes in its four functions and nowhere else.
"""

import difflib as _difflib

from . import backend  # isort: skip  # before anything loads NumPy: see backend/cpu.py

import importlib as _importlib
import sys as _sys
from importlib.machinery import ModuleSpec as _ModuleSpec
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING
from typing import Any as _Any

from . import arguments as _arguments
from . import data, nn, ops, optim
from .arguments import name_all as _name_all
from .backend import __version__, default_device, device, get_rng_state, info, manual_seed, set_rng_state, synchronize
from .backend.extras import hint as _hint
from .dtypes import bfloat16, float16, float32, float64
from .events import Observer, observe
from .grad_mode import enable_grad, is_grad_enabled, no_grad
from .ops import (
    arange,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    zeros,
    zeros_like,
)
from .precision import (
    BF16,
    FP32,
    KINDS,
    MIXED,
    NO_MASTER,
    STOCHASTIC_ROUNDING,
    TF32,
    Policy,
    current_policy,
    use,
)
from .tensor import Tensor, from_numpy, tensor

# Public name -> the module below tinymp that holds it, which is imported when the name is first used.
_HELD = {
    "FP8": "study",
    "FP8_HOPPER": "study",
    "FP16_ACCUMULATE": "study",
    "FP16_REDUCTIONS": "study",
    "FP16_VOLTA": "study",
    "POLICIES": "study",
    "PURE_FP16": "study",
    "study": "study",
    "audit": "audit",
    "capture": "fast.cuda.capture",
    "Checkpointer": "checkpoint",
    "course": "course",
    "lab": "lab",
    "load": "checkpoint",
    "load_weights": "checkpoint",
    "models": "models",
    "parallel": "parallel",
    "save": "checkpoint",
    "save_weights": "checkpoint",
    "saved_nbytes": "audit.kept",
    "SparseRows": "sparse",
    "summary": "audit.layers",
    "nn.BahdanauAttention": "nn.more.alignment",
    "nn.call_kept": "nn.more.keep",
    "nn.CTCLoss": "nn.more.loss",
    "nn.EmbeddingBag": "nn.more.embedding_bag",
    "nn.functions.LocalResponseNorm": "nn.more.functions",
    "nn.functions.PixelShuffle": "nn.more.functions",
    "nn.functions.Upsample": "nn.more.functions",
    "nn.KLDivLoss": "nn.more.loss",
    "nn.LocalResponseNorm": "nn.more.functions",
    "nn.loss.CTCLoss": "nn.more.loss",
    "nn.loss.KLDivLoss": "nn.more.loss",
    "nn.loss.SampledSoftmaxLoss": "nn.more.loss",
    "nn.LuongAttention": "nn.more.alignment",
    "nn.PixelShuffle": "nn.more.functions",
    "nn.policies_kept": "nn.more.keep",
    "nn.PositionalEncoding": "nn.more.transformer",
    "nn.RNN": "nn.more.rnn",
    "nn.RNNCell": "nn.more.rnn",
    "nn.RowConv": "nn.more.row_conv",
    "nn.SampledSoftmaxLoss": "nn.more.loss",
    "nn.TransformerDecoder": "nn.more.transformer",
    "nn.TransformerDecoderLayer": "nn.more.transformer",
    "nn.TransformerEncoder": "nn.more.transformer",
    "nn.TransformerEncoderLayer": "nn.more.transformer",
    "nn.Upsample": "nn.more.functions",
    "ops.adaptive_avg_pool1d": "ops.more.pool1d",
    "ops.adaptive_max_pool2d": "ops.more.pool1d",
    "ops.argsort": "ops.more.sort",
    "ops.avg_pool1d": "ops.more.pool1d",
    "ops.einsum": "ops.more.einsum",
    "ops.flip": "ops.more.rearrange",
    "ops.gather": "ops.more.gather",
    "ops.index_select": "ops.more.gather",
    "ops.logsumexp": "ops.more.logsumexp",
    "ops.max_pool1d": "ops.more.pool1d",
    "ops.normalize": "ops.more.normalize",
    "ops.prod": "ops.more.prod",
    "ops.scatter": "ops.more.scatter",
    "ops.sort": "ops.more.sort",
    "ops.topk": "ops.more.sort",
    "ops.tril": "ops.more.rearrange",
    "ops.triu": "ops.more.rearrange",
    "ops.unbind": "ops.more.rearrange",
    "ops.unfold": "ops.more.unfold",
    "ops.ctc_loss": "ops.more.ctc",
    "ops.embedding_bag": "ops.more.embedding_bag",
    "ops.interpolate": "ops.more.resize",
    "ops.kl_div": "ops.more.divergence",
    "ops.local_response_norm": "ops.more.local_response_norm",
    "ops.log_uniform_sample": "ops.more.sampled",
    "ops.pixel_shuffle": "ops.more.resize",
    "ops.Sample": "ops.more.sampled",
    "ops.sampled_softmax_loss": "ops.more.sampled",
    "optim.LinearLR": "optim.more.schedule",
    "optim.MultiStepLR": "optim.more.schedule",
    "optim.ObservedLossScaler": "optim.more.observed",
    "optim.OneCycleLR": "optim.more.cycle",
    "optim.ReduceLROnPlateau": "optim.more.cycle",
    "optim.SequentialLR": "optim.more.schedule",
    "optim.schedule.LinearLR": "optim.more.schedule",
    "optim.schedule.MultiStepLR": "optim.more.schedule",
    "optim.schedule.SequentialLR": "optim.more.schedule",
    "data.BucketBatchSampler": "data.more.sequences",
    "data.ImageFolder": "data.more.folder",
    "data.PICTURES": "data.more.picture",
    "data.load_idx_folder": "data.more.idx",
    "data.pad_sequence": "data.more.sequences",
    "data.padding_share": "data.more.sequences",
    "data.read_idx": "data.more.idx",
    "data.read_picture": "data.more.picture",
    "ops.batched_nms": "vision.boxes",
    "ops.box_iou": "vision.boxes",
    "ops.clip_boxes_to_image": "vision.boxes",
    "ops.decode_boxes": "vision.boxes",
    "ops.encode_boxes": "vision.boxes",
    "ops.nms": "vision.boxes",
    "ops.remove_small_boxes": "vision.boxes",
    "ops.roi_align": "vision.roi",
    "ops.roi_pool": "vision.roi",
}
# Modules that have moved -> where they are now: pickles name the old ones.
_MOVED = {
    "data.folder": "data.more.folder",
    "data.idx": "data.more.idx",
    "data.picture": "data.more.picture",
    "data.sequences": "data.more.sequences",
    "ops.boxes": "vision.boxes",
    "ops.roi": "vision.roi",
    "ops.sort": "ops.more.sort",
    "nn.alignment": "nn.more.alignment",
    "nn.embedding_bag": "nn.more.embedding_bag",
    "nn.rnn": "nn.more.rnn",
    "nn.row_conv": "nn.more.row_conv",
    "nn.transformer": "nn.more.transformer",
    "optim.cycle": "optim.more.cycle",
    "optim.observed": "optim.more.observed",
}
_HINTS = "torch.hints"  # knows what to use here in place of names that only PyTorch has

if TYPE_CHECKING:
    from . import course, lab, models, parallel, study
    from .audit import audit  # type: ignore[no-redef]
    from .audit.kept import saved_nbytes
    from .audit.layers import summary
    from .checkpoint import Checkpointer, load, load_weights, save, save_weights
    from .fast.cuda.capture import capture
    from .sparse import SparseRows
    from .study import FP8, FP8_HOPPER, FP16_ACCUMULATE, FP16_REDUCTIONS, FP16_VOLTA, POLICIES, PURE_FP16


def _load(path: str) -> _ModuleType | None:
    """A module below tinymp; None where the folder of its subpackage is not there."""
    folder = path.rpartition(".")[0] or path
    return None if _find_spec(f"{__name__}.{folder}") is None else _importlib.import_module(f"{__name__}.{path}")


def _required(name: str, path: str, error: type[Exception]) -> _ModuleType:
    """The module that holds what has this name."""
    if (module := _load(path)) is None:
        where = _Path(__path__[0], *(path.rpartition(".")[0] or path).split("."))
        raise error(f"{name} is not installed here: expected a folder {where}; install all of tinymp again")
    return module


def _find(name: str) -> _Any:
    """A public name of the table. AttributeError where its subpackage is not there."""
    module = _required(f"{__name__}.{name}", _HELD[name], AttributeError)
    return module if _HELD[name] == name else getattr(module, name.rpartition(".")[2])


class _Moved:
    """Finds a module under the name that it had before it moved, as a module with the same contents."""

    @classmethod
    def find_spec(cls, name: str, path: _Any = None, target: _Any = None) -> _Any:
        moved = name.removeprefix(f"{__name__}.") in _MOVED
        return _ModuleSpec(name, cls) if moved else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: _Any) -> None:
        """An empty one."""

    @staticmethod
    def exec_module(module: _ModuleType) -> None:
        name = module.__name__.removeprefix(f"{__name__}.")
        found = _required(f"{__name__}.{name}", _MOVED[name], ModuleNotFoundError)
        vars(module).update({key: x for key, x in vars(found).items() if not key.startswith("__")})


def _open(package: dict[str, _Any]) -> None:
    """Have a package, of which these are the globals, look for its other public names in the table (PEP 562)."""
    owner = package["__name__"]
    prefix = owner.removeprefix(__name__).removeprefix(".")
    held = {name.rpartition(".")[2]: name for name in _HELD if name.rpartition(".")[0] == prefix}

    def __getattr__(name: str) -> _Any:  # only called for names that do not exist
        if name in held and (found := _find(held[name])) is not None:
            package[name] = found
            return found
        hint = "" if name.startswith("_") else _instead(owner, name, __dir__())
        raise AttributeError(f"{owner} has no attribute '{name}'" + (f"; {hint}" if hint else ""))

    def __dir__() -> list[str]:
        return sorted({*package, *held})

    package.update(__getattr__=__getattr__, __dir__=__dir__)


def _instead(owner: str, name: str, there: list[str]) -> str:
    """Names to use in place of a public name that `owner` does not have: the hint for it, or similar names."""
    if owner == __name__ and name in _BF16:
        return f"BF16 needs ml_dtypes: {_hint('bf16')}"
    if owner == __name__ and hasattr(ops, name):
        return f"use {owner}.ops.{name}"
    hints = _load(_HINTS)
    if hints is not None and (said := hints.instead(owner, name)):
        return said
    near = _difflib.get_close_matches(name, [one for one in there if not one.startswith("_")])
    return f"did you mean {', '.join(near)}?" if near else ""


def _why(argument: str) -> str:
    """Why a function does not have an argument of PyTorch's, as the hints say; empty if they do not."""
    hints = _load(_HINTS)
    return "" if hints is None else hints.argument(argument)


_arguments.hint = _why
ops.bind(Tensor)
_name_all(globals(), Tensor)  # but for those that every op makes
backend.add("meta", lambda: _required("device 'meta'", "audit.meta", RuntimeError).meta)
if (_hints := _load(_HINTS)) is not None:
    _hints.mark(Tensor)
_BF16 = ("BF16", "FP8", "FP8_HOPPER", "bfloat16")
if BF16 is None:
    del BF16, bfloat16
_sys.meta_path.append(_Moved)
for _package in (
    globals(),
    vars(data),
    vars(nn),
    vars(nn.functions),
    vars(nn.loss),
    vars(ops),
    vars(optim),
    vars(optim.schedule),
):
    _open(_package)
