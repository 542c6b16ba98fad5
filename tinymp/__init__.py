"""tinymp: a small deep-learning framework that trains in mixed precision and shows every precision decision.

    import tinymp as mp
    from tinymp import nn, ops, optim

Read `precision.py` first: ops change precision in its four functions and nowhere else.
"""

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
from . import precision as _precision
from .arguments import name_all as _name_all
from .backend import __version__, default_device, device, get_rng_state, info, manual_seed, set_rng_state, synchronize
from .backend.extras import hint as _hint
from .dtypes import bfloat16, float16, float32, float64
from .events import Observer, observe
from .fast_path import enable_fast
from .grad_mode import enable_grad, is_grad_enabled, no_grad
from .ops.create import arange, empty, empty_like, eye, full, full_like, linspace, ones, ones_like, zeros, zeros_like
from .ops.random import rand, rand_like, randint, randn, randn_like, randperm
from .precision import BF16, FP32, KINDS, MIXED, NO_MASTER, STOCHASTIC_ROUNDING, TF32, Policy, current_policy, use
from .tensor import Tensor, from_numpy, tensor

# Module below tinymp -> the public names that it holds. It is imported when one of them is first used.
_NAMES = {
    "study": """study BF16_AMPERE BF16_HOPPER FP16_ACCUMULATE FP16_AMPERE FP16_HOPPER FP16_REDUCTIONS FP16_SUMS_AMPERE
        FP16_SUMS_HOPPER FP16_SUMS_VOLTA FP16_VOLTA FP8 FP8_ADA FP8_BLACKWELL FP8_HOPPER FP8_HOPPER_FAST POLICIES
        PURE_FP16 TF32_AMPERE""",
    "study.tensor_core": "tensor_core",
    "audit": "audit",
    "audit.bytes": "saved_nbytes",
    "fast.cuda.capture": "capture",
    "checkpoint": "Checkpointer load load_weights save save_weights",
    "course": "course",
    "lab": "lab",
    "models": "models",
    "parallel": "parallel",
    "parallel.batches": "data.loader.SharedBatches",
    "sparse": "SparseRows",
    "torch.convert": "from_torch",
    "data.more.position": "data.loader.go_to data.loader.position",
    "data.more.samplers": "data.BatchSampler data.ConcatDataset data.RandomSampler data.Sampler data.SequentialSampler "
    "data.SubsetRandomSampler data.WeightedRandomSampler",
    "data.more.sequences": "data.pad_sequence",
    "data.more.threads": "data.loader.LoadingThreads",
    "nn.more.attention": "nn.MultiheadAttention",
    "nn.more.embedding_bag": "nn.EmbeddingBag",
    "nn.more.functions": "nn.LocalResponseNorm nn.PReLU nn.PixelShuffle nn.Upsample nn.AdaptiveAvgPool1d "
    "nn.AdaptiveMaxPool2d nn.AvgPool1d nn.MaxPool1d nn.ReflectionPad1d nn.ReflectionPad2d nn.ReplicationPad1d "
    "nn.ReplicationPad2d nn.Unflatten nn.ZeroPad2d nn.ConstantPad2d nn.Dropout1d nn.Dropout2d "
    "nn.UpsamplingBilinear2d nn.UpsamplingNearest2d nn.functions.Unflatten nn.functions.ZeroPad2d "
    "nn.AdaptiveAvgPool2d nn.ELU nn.GELU nn.GLU nn.Hardswish nn.Hardtanh nn.LogSigmoid nn.Mish nn.ReLU6 nn.Softplus "
    "nn.functions.AdaptiveAvgPool2d nn.functions.ELU nn.functions.GELU nn.functions.Hardtanh nn.functions.LogSigmoid "
    "nn.functions.Softplus nn.functions.LocalResponseNorm nn.functions.PixelShuffle nn.functions.Upsample",
    "nn.more.group_norm": "nn.GroupNorm nn.InstanceNorm1d nn.InstanceNorm2d nn.RMSNorm",
    "nn.more.backward_hook": "nn.WatchedBackward",
    "nn.more.gru": "nn.GRU nn.GRUCell nn.LSTMCell nn.recurrent.GRU nn.recurrent.GRUCell nn.recurrent.LSTMCell",
    "nn.more.init": "nn.init.dirac_ nn.init.eye_ nn.init.orthogonal_ nn.init.trunc_normal_",
    "nn.more.keep": "nn.call_kept nn.policies_kept",
    "nn.more.lazy": "nn.LazyLinear",
    "nn.more.loss": "nn.CTCLoss nn.HuberLoss nn.KLDivLoss nn.SmoothL1Loss "
    "nn.loss.CTCLoss nn.loss.HuberLoss nn.loss.KLDivLoss nn.loss.SmoothL1Loss",
    "nn.more.module_dict": "nn.ModuleDict nn.ParameterDict nn.containers.ModuleDict",
    "nn.more.packed": "nn.PackedSequence nn.pack_padded_sequence nn.pack_sequence nn.pad_packed_sequence",
    "nn.more.parameters": "nn.ParameterList",
    "nn.more.rnn": "nn.RNN nn.RNNCell",
    "nn.more.transformer": "nn.Transformer nn.TransformerDecoder nn.TransformerDecoderLayer nn.TransformerEncoder "
    "nn.TransformerEncoderLayer",
    "nn.more.vector": "nn.parameters_to_vector nn.vector_to_parameters",
    "ops.more.activation": "ops.elu ops.gelu ops.glu ops.hardswish ops.hardtanh ops.logsigmoid ops.mish ops.prelu "
    "ops.relu6 ops.softplus",
    "ops.more.arithmetic": "ops.addcdiv ops.addcmul ops.addmm ops.atan2 ops.cdist ops.cosine_similarity ops.dot "
    "ops.floor_divide ops.fmod ops.lerp ops.mv ops.outer ops.pairwise_distance ops.remainder",
    "ops.more.attention": "ops.scaled_dot_product_attention",
    "ops.more.ctc": "ops.ctc_loss",
    "ops.more.divergence": "ops.kl_div",
    "ops.more.elementary": "ops.acos ops.asin ops.atan ops.ceil ops.celu ops.cosh ops.erf ops.expm1 ops.floor "
    "ops.hardsigmoid ops.log10 ops.log1p ops.log2 ops.round ops.selu ops.sinh ops.softsign ops.tan ops.trunc",
    "ops.more.dropout": "ops.dropout1d ops.dropout2d",
    "ops.more.embedding_bag": "ops.embedding_bag",
    "ops.more.einsum": "ops.einsum",
    "ops.more.find": "ops.allclose ops.bincount ops.count_nonzero ops.equal ops.isclose ops.logical_xor ops.nonzero "
    "ops.one_hot ops.unique",
    "ops.more.gather": "ops.gather ops.index_select",
    "ops.more.group_norm": "ops.group_norm ops.instance_norm ops.rms_norm",
    "ops.more.gru": "ops.gru_cell ops.gru_layer",
    "ops.more.huber": "ops.huber_loss ops.smooth_l1_loss",
    "ops.more.local_response_norm": "ops.local_response_norm",
    "ops.more.logsumexp": "ops.logsumexp",
    "ops.more.margin": "ops.cosine_embedding_loss ops.gaussian_nll_loss ops.hinge_embedding_loss "
    "ops.margin_ranking_loss ops.soft_margin_loss ops.triplet_margin_loss",
    "ops.more.moves": "ops.broadcast_to ops.diag ops.diagonal ops.hstack ops.masked_select ops.meshgrid ops.movedim "
    "ops.narrow ops.repeat_interleave ops.roll ops.swapaxes ops.take_along_dim ops.tile ops.unflatten ops.vstack",
    "ops.more.normalize": "ops.normalize",
    "ops.more.pool1d": "ops.adaptive_avg_pool1d ops.adaptive_avg_pool2d ops.adaptive_max_pool2d "
    "ops.avg_pool1d ops.max_pool1d",
    "ops.more.prod": "ops.prod",
    "ops.more.rearrange": "ops.flip ops.tril ops.triu ops.unbind",
    "ops.more.resize": "ops.interpolate ops.pixel_shuffle",
    "ops.more.sample": "ops.bernoulli ops.multinomial ops.normal",
    "ops.more.scatter": "ops.scatter",
    "ops.more.sort": "ops.argsort ops.sort ops.topk",
    "ops.more.unfold": "ops.unfold",
    "ops.more.vector_norm": "ops.norm",
    "optim.more.cycle": "optim.OneCycleLR optim.ReduceLROnPlateau",
    "optim.more.rules": "optim.Adadelta optim.Adamax optim.NAdam optim.RAdam",
    "optim.more.schedule": "optim.ConstantLR optim.CosineAnnealingWarmRestarts optim.ExponentialLR "
    "optim.MultiplicativeLR optim.PolynomialLR optim.LinearLR optim.MultiStepLR optim.SequentialLR "
    "optim.schedule.LinearLR optim.schedule.MultiStepLR optim.schedule.SequentialLR",
    "vision.boxes": "ops.batched_nms ops.box_iou ops.clip_boxes_to_image ops.decode_boxes ops.encode_boxes ops.nms "
    "ops.remove_small_boxes",
    "vision.roi": "ops.roi_align ops.roi_pool",
}
_HELD = {name: module for module, names in _NAMES.items() for name in names.split()}
# Old name of a module that has moved -> where it is now: pickles name the old ones.
_MOVED = {
    "nn.activation": "nn",
    "nn.padding": "nn",
    "nn.pooling": "nn",
    "ops.boxes": "vision.boxes",
    "ops.roi": "vision.roi",
} | {
    f"{package}.{name}": f"{package}.more.{name}"
    for package, names in {
        "data": "sequences",
        "nn": "attention embedding_bag group_norm rnn transformer",
        "ops": "attention group_norm sort",
        "optim": "cycle",
    }.items()
    for name in names.split()
}
_HINTS = "hints"  # knows what to use here in place of names that only PyTorch has

if TYPE_CHECKING:
    from . import course, lab, models, parallel, study
    from .audit import audit  # type: ignore[no-redef]
    from .audit.bytes import saved_nbytes
    from .checkpoint import Checkpointer, load, load_weights, save, save_weights
    from .fast.cuda.capture import capture
    from .sparse import SparseRows
    from .study import (
        BF16_AMPERE,
        BF16_HOPPER,
        FP8,
        FP8_ADA,
        FP8_BLACKWELL,
        FP8_HOPPER,
        FP8_HOPPER_FAST,
        FP16_ACCUMULATE,
        FP16_AMPERE,
        FP16_HOPPER,
        FP16_REDUCTIONS,
        FP16_SUMS_AMPERE,
        FP16_SUMS_HOPPER,
        FP16_SUMS_VOLTA,
        FP16_VOLTA,
        POLICIES,
        PURE_FP16,
        TF32_AMPERE,
    )
    from .study.tensor_core import tensor_core
    from .torch.convert import from_torch


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
        vars(module).update({key: x for key, x in vars(found).items() if key == "__getattr__" or key[:2] != "__"})


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
        # `from owner import name` would drop the text of an AttributeError, but for a submodule it has to be one
        named = hint and _sys._getframe(1).f_code.co_name == "_handle_fromlist" and not _find_spec(f"{owner}.{name}")
        raise (ImportError if named else AttributeError)(f"{owner} has no attribute '{name}'{hint and '; '}{hint}")

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
    from difflib import get_close_matches

    near = get_close_matches(name, [one for one in there if one[0].lower() == name[0].lower()], cutoff=0.8)
    return f"did you mean {', '.join(near)}?" if near else ""


ops.bind(Tensor)
_name_all(globals(), Tensor)  # but for those that every op makes
_precision.change = lambda *policy, **fields: _required("study", "study", TypeError).change(*policy, **fields)
backend.add("meta", lambda: _required("device 'meta'", "audit.meta", RuntimeError).meta)
if (_hints := _load(_HINTS)) is not None:
    _hints.mark(Tensor, nn.module.INSTEAD)
    _arguments.otherwise = _hints.refused
_BF16 = ("BF16", "FP8", "FP8_HOPPER", "bfloat16")
if BF16 is None:
    del BF16, bfloat16
_sys.meta_path.append(_Moved)
for _package in sorted({name.rpartition(".")[0] for name in _HELD}):
    _open(vars(_sys.modules[f"{__name__}.{_package}".rstrip(".")]))
