"""tinymp: a small deep-learning framework that trains in mixed precision and shows every precision decision.

    import tinymp as mp
    from tinymp import nn, ops, optim

Read `precision.py` first: ops change precision in its four functions and nowhere else.
"""

import importlib as _importlib
import sys as _sys
from contextlib import suppress as _suppress
from importlib.util import find_spec as _find_spec

with _suppress(ModuleNotFoundError):  # before anything loads NumPy
    _importlib.import_module(f"{__name__}.fast.cpu.blas").load_numpy()

from pathlib import Path as _Path
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING
from typing import Any as _Any

from . import arguments as _arguments
from . import backend, data, nn, ops, optim
from .arguments import name_all as _name_all
from .autograd import enable_grad, is_grad_enabled, no_grad
from .backend import __version__, default_device, device, get_rng_state, manual_seed, set_rng_state, synchronize
from .backend.extras import hint as _hint
from .dtypes import bfloat16, float16, float32, float64
from .events import NAMES as _NAMES_OF_ERRORS
from .events import Observer, observe
from .ops.create import empty, full, full_like, ones, zeros
from .ops.random import randn
from .precision import BF16, FP32, KINDS, MIXED, NO_MASTER, STOCHASTIC_ROUNDING, TF32, Policy, current_policy, use
from .tensor import Tensor, from_numpy, tensor

# Module below tinymp -> its public names; those of a module in `more` belong to the package above. A module is imported
# when one of its names is first used.
_NAMES = {
    "study": """study BF16_AMPERE BF16_HOPPER FP16_ACCUMULATE FP16_AMPERE FP16_HOPPER FP16_REDUCTIONS FP16_SUMS_AMPERE
        FP16_SUMS_HOPPER FP16_SUMS_VOLTA FP16_VOLTA FP8 FP8_ADA FP8_BLACKWELL FP8_HOPPER FP8_HOPPER_FAST POLICIES
        PURE_FP16 TF32_AMPERE""",
    "study.sums": "precision.Fp64",
    "study.tensor_core": "tensor_core",
    **{package: package for package in ("audit", "course", "lab", "parallel")},
    "audit.bytes": "saved_nbytes",
    "audit.machine": "info",
    "audit.first": "optim.scaler.watch_backward",
    "gpu.capture": "capture",
    "checkpoint": "Checkpointer load load_weights save save_weights",
    "ops": "arange empty_like eye linspace ones_like rand rand_like randint randn_like randperm zeros_like",
    "parallel.batches": "data.loader.SharedBatches",
    "sparse": "SparseRows",
    "torch.convert": "from_torch",
    "data.more.collate": "default_collate loader.collated",
    "data.more.datasets": "ConcatDataset Subset random_split",
    "data.more.loading": "loader.LoadingThreads loader.go_to loader.position",
    "data.more.samplers": """BatchSampler RandomSampler Sampler SequentialSampler SubsetRandomSampler
        WeightedRandomSampler loader.GivenBatches""",
    "data.more.sequences": "pad_sequence",
    "gpu.machine": "backend.gpu.about backend.gpu.look",
    "nn.more.attention": "MultiheadAttention",
    "nn.more.average": "AveragedModel get_ema_avg_fn get_swa_avg_fn update_bn",
    "nn.more.containers": """ModuleDict ModuleList ParameterDict ParameterList containers.append containers.delete_part
        containers.extend containers.length containers.replace_part""",
    "nn.more.functions": """AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool2d AvgPool1d AvgPool2d BCELoss
        BCEWithLogitsLoss CELU CTCLoss ConstantPad1d ConstantPad2d CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss
        Dropout1d Dropout2d ELU GELU GLU GaussianNLLLoss Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss
        Identity KLDivLoss L1Loss LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d Mish
        NLLLoss PReLU PairwiseDistance PixelShuffle ReLU6 ReflectionPad1d ReflectionPad2d ReplicationPad1d
        ReplicationPad2d SELU SiLU SmoothL1Loss SoftMarginLoss Softmax Softplus Softsign Threshold TripletMarginLoss
        Unflatten Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d""",
    "nn.more.group_norm": "GroupNorm InstanceNorm1d InstanceNorm2d LayerNorm RMSNorm",
    "nn.more.init": """init.calculate_gain init.kaiming_normal_ init.kaiming_uniform_
        init.orthogonal_ init.trunc_normal_ init.xavier_normal_ init.xavier_uniform_""",
    "nn.more.hooks": """module.register_forward_hook module.register_forward_pre_hook
        module.register_full_backward_hook""",
    "nn.more.keep": "module.call_kept module.policies_kept",
    "nn.more.layers": "Conv1d ConvTranspose1d EmbeddingBag LazyLinear layers.from_pretrained",
    "nn.more.module": """module.add_module module.apply module.children module.extra_repr module.missing
        module.named_children module.text""",
    "nn.more.recurrent": "GRU GRUCell LSTMCell RNN RNNCell",
    "nn.more.reparametrised": "remove_spectral_norm remove_weight_norm spectral_norm weight_norm",
    "nn.more.transformer": """Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
        TransformerEncoderLayer""",
    "nn.more.utils": """PackedSequence pack_padded_sequence pack_sequence pad_packed_sequence parameters_to_vector
        vector_to_parameters""",
    "ops.more.arithmetic": """addcdiv addcmul addmm atan2 bmm cdist cosine_similarity diff dot dot.flattened
        floor_divide fmod lerp mm mv normalize outer pairwise_distance pointwise.div_rounded prelu remainder""",
    "ops.more.attention": "scaled_dot_product_attention",
    "ops.more.compare": """all any eq ge gt isfinite isinf isnan le logical_and logical_not logical_or lt ne
        pointwise.both pointwise.different_or_none pointwise.either pointwise.equal_or_none pointwise.invert""",
    "ops.more.conv": "conv.named_padding conv1d conv_transpose1d",
    "ops.more.convert": "convert.Move convert.bfloat16 convert.cast_items convert.clone convert.cuda",
    "ops.more.create": "arange empty_like eye linspace ones_like zeros_like",
    "ops.more.ctc": "ctc_loss",
    "ops.more.einsum": "einsum",
    "ops.more.embedding_bag": "embedding_bag",
    "ops.more.errors": "convert.answered",
    "ops.more.find": """allclose bincount bucketize count_nonzero equal isclose logical_xor nonzero one_hot searchsorted
        unique""",
    "ops.more.gru": "gru_cell gru_layer",
    "ops.more.index": "gather index.picked index.places index_add index_put index_select",
    "ops.more.in_place": """pointwise.add_ pointwise.clamp_ pointwise.div_ pointwise.in_place pointwise.masked_fill_
        pointwise.mul_ pointwise.sub_""",
    "ops.more.limits": "convert.in_range",
    "ops.more.log_softmax": "log_softmax",
    "ops.more.loss": """binary_cross_entropy cosine_embedding_loss gaussian_nll_loss hinge_embedding_loss huber_loss
        kl_div l1_loss loss.cross_entropy_of loss.weighted margin_ranking_loss nll_loss smooth_l1_loss soft_margin_loss
        triplet_margin_loss""",
    "ops.more.norm": "group_norm instance_norm layer_norm local_response_norm norm.of_empty_batch rms_norm",
    "ops.more.pad": "pad",
    "ops.more.pointwise": "clamp clip masked_fill maximum minimum neg pointwise.floating pointwise.of_one_kind where",
    "ops.more.pool": """adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d avg_pool2d max_pool1d
        pool.overlapping unfold""",
    "ops.more.random": """bernoulli dropout1d dropout2d gumbel_softmax multinomial normal rand rand_like randint
        randn_like randperm""",
    "ops.more.recurrent": "lstm_cell recurrent.ProjectedLSTM recurrent.packed_steps",
    "ops.more.reduce": "amax amin argmin cumprod cumsum logsumexp max min norm prod reduce.running_sums std var",
    "ops.more.resize": "interpolate pixel_shuffle",
    "ops.more.scatter": "index_fill scatter scatter_add",
    "ops.more.shape": """broadcast_tensors broadcast_to diag diagonal flip hstack masked_select meshgrid movedim narrow
        repeat repeat_interleave roll swapaxes take_along_dim tile tril triu unbind unflatten vstack""",
    "ops.more.sort": "argsort sort topk",
    "ops.more.unary": """acos asin atan ceil celu cosh elu erf erfinv expm1 floor gelu glu hardsigmoid hardswish
        hardtanh log10 log1p log2 logsigmoid mish relu6 round selu sign silu sinh softplus softsign tan threshold
        trunc""",
    "ops.more.views": "cat chunk contiguous expand permute split squeeze stack unsqueeze view",
    "optim.more.clip": "clip_grad_value_ clip.norm_p",
    "optim.more.rules": "Adadelta Adagrad AdamW Adamax NAdam RAdam RMSprop",
    "optim.more.schedule": """ConstantLR CosineAnnealingWarmRestarts ExponentialLR LambdaLR LinearLR
        MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau SWALR SequentialLR StepLR""",
}
_HELD = {
    ".".join([*module.split(".more.")[:-1], name]): module for module, names in _NAMES.items() for name in names.split()
}

_NAMED = "", "data", "nn", "nn.init", "ops", "optim"  # errors of these begin with the names of the table

if TYPE_CHECKING:
    from . import course, lab, parallel, study
    from .audit import audit  # type: ignore[no-redef]
    from .audit.bytes import saved_nbytes
    from .audit.machine import info
    from .checkpoint import Checkpointer, load, load_weights, save, save_weights
    from .gpu.capture import capture
    from .ops.more.create import arange, empty_like, eye, linspace, ones_like, zeros_like
    from .ops.more.random import rand, rand_like, randint, randn_like, randperm
    from .sparse import SparseRows
    from .study import *
    from .study.tensor_core import tensor_core
    from .torch.convert import from_torch


def _load(path: str) -> _ModuleType | None:
    """A module below tinymp; None if its subpackage is missing."""
    folder = path.rpartition(".")[0] or path
    return None if _find_spec(f"{__name__}.{folder}") is None else _importlib.import_module(f"{__name__}.{path}")


def _required(name: str, path: str, error: type[Exception]) -> _ModuleType:
    """The module that defines this name; `error` if its subpackage is missing."""
    if (module := _load(path)) is None:
        where = _Path(__path__[0], *(path.rpartition(".")[0] or path).split("."))
        raise error(f"{name} is not installed here: expected a folder {where}; install all of tinymp again")
    return module


def _find(name: str) -> _Any:
    """The object of a public name in the table. AttributeError if its subpackage is missing."""
    module = _required(f"{__name__}.{name}", _HELD[name], AttributeError)
    return module if _HELD[name] == name else getattr(module, name.rpartition(".")[2])


def _open(package: dict[str, _Any]) -> None:
    """Let a package, given by its globals, find its other public names in the table (PEP 562)."""
    owner = package["__name__"]
    prefix = owner.removeprefix(__name__).removeprefix(".")
    held = {name.rpartition(".")[2]: name for name in _HELD if name.rpartition(".")[0] == prefix}

    def __getattr__(name: str) -> _Any:  # only called for names that do not exist
        if name in held:
            made = {"__name__": __name__, name: _find(held[name])}
            if prefix in _NAMED:
                _name_all(made)
            package[name] = made[name]
            return made[name]
        hint = "" if name.startswith("_") else _instead(owner, name, __dir__())
        raise (_arguments.no_attribute if hint else AttributeError)(
            f"{owner} has no attribute '{name}'; {hint or 'names that PyTorch alone has are in tinymp.torch'}"
        )

    def __dir__() -> list[str]:
        return sorted({*package, *held})

    package.update(__getattr__=__getattr__, __dir__=__dir__)
    if "__all__" in package:
        package["__all__"] += held


def _instead(owner: str, name: str, there: list[str]) -> str:
    """A hint for a public name that `owner` lacks: similar names, or how to install it."""
    if owner == __name__ and name in _BF16:
        return f"BF16 needs ml_dtypes: {_hint('bf16')}"
    if owner == __name__ and hasattr(ops, name):
        return f"use {owner}.ops.{name}"
    from difflib import get_close_matches

    near = get_close_matches(name, [one for one in there if one[0].lower() == name[0].lower()], cutoff=0.8)
    return f"did you mean {', '.join(near)}?" if near else ""


ops.bind(Tensor)
_NAMES_OF_ERRORS.update(name.rpartition(".")[2] for name in _HELD)
_name_all(globals(), Tensor)  # not Tensor, which every op makes
backend.add("meta", lambda: _required("device 'meta'", "audit.meta", RuntimeError).meta)
_BF16 = ("BF16", "FP8", "FP8_HOPPER", "bfloat16")
if BF16 is None:
    del BF16, bfloat16
for _package in sorted({name.rpartition(".")[0] for name in _HELD}):
    _open(vars(_sys.modules[f"{__name__}.{_package}".rstrip(".")]))
