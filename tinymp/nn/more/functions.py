"""Modules beyond those of nn/functions.py: losses, PReLU, which learns its slope, and rows without parameters."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...arguments import integers, number, tensor
from ...tensor import Tensor
from .. import init as initialise
from ..functions import Dropout, Function
from ..init import parameter
from ..module import Module

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d"]
__all__ += ["BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "Identity", "LogSoftmax", "MSELoss", "SiLU", "Softmax"]
__all__ += ["CELU", "SELU", "CTCLoss", "ConstantPad2d", "Hardsigmoid", "Softsign", "Threshold", "Unfold"]
__all__ += ["ELU", "GELU", "GLU", "Dropout1d", "Dropout2d", "Hardswish", "Hardtanh", "HuberLoss", "KLDivLoss", "L1Loss"]
__all__ += ["LocalResponseNorm", "LogSigmoid", "MaxPool1d", "Mish", "NLLLoss", "PReLU", "PixelShuffle", "ReLU6"]
__all__ += ["ReflectionPad1d", "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d", "SmoothL1Loss", "Softplus"]
__all__ += ["Unflatten", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d"]
__all__ += ["ConstantPad1d", "CosineEmbeddingLoss", "CosineSimilarity", "GaussianNLLLoss", "HingeEmbeddingLoss"]
__all__ += ["MarginRankingLoss", "PairwiseDistance", "SoftMarginLoss", "TripletMarginLoss"]


def _row(name: str, op: Any, says: str, base: type = Function, **options: Any) -> Any:
    """The Function of an op, a module of this name."""
    says = f"{says} See `ops.{op.__name__}`."
    return type(name, (base,), {"__doc__": says, "__module__": __name__}, op=op, **options)


def _pad(name: str, axes: int, mode: str, says: str, *without: str) -> Any:
    """The module that pads the last axes with this mode."""

    def pad(input: Tensor, padding: Any, value: Any = None) -> Tensor:
        if mode != "constant" and tensor(name, "input", input).ndim not in (axes + 1, axes + 2):
            raise ValueError(f"{name}: expected `input` to have {axes + 1} or {axes + 2} axes, got shape {input.shape}")
        return ops.pad(input, integers(name, "padding", padding, 2 * axes, -(2**31)), mode, value)

    sides = "(left, right)" if axes == 1 else "(left, right, top, bottom)"
    return _row(name, pad, f"{says}: padding is an integer or {sides}.", without=without)


def unflatten(input: Tensor, dim: int, unflattened_size: Any) -> Tensor:
    """`ops.unflatten` with the module's name of `sizes`."""
    return ops.unflatten(input, dim, unflattened_size)


SiLU = _row("SiLU", ops.silu, "x * sigmoid(x).")
Softmax = _row("Softmax", ops.softmax, "exp(x), divided by its sum along dim, which is needed.", dim=None)
LogSoftmax = _row("LogSoftmax", ops.log_softmax, "ln softmax(x) along dim, which is needed.", dim=None)
ReLU6 = _row("ReLU6", ops.relu6, "x limited to [0, 6].")
Hardtanh = _row("Hardtanh", ops.hardtanh, "x limited to [min_val, max_val].")
Hardswish = _row("Hardswish", ops.hardswish, "x min(max(x + 3, 0), 6) / 6.")
Hardsigmoid = _row("Hardsigmoid", ops.hardsigmoid, "min(max(x + 3, 0), 6) / 6.")
SELU = _row("SELU", ops.selu, "1.0507 x where positive, else 1.7581 (exp(x) - 1).")
CELU = _row("CELU", ops.celu, "x where positive, else alpha * (exp(x / alpha) - 1).")
Softsign = _row("Softsign", ops.softsign, "x / (1 + |x|).")
Threshold = _row("Threshold", ops.threshold, "x where it is above threshold, else value.")
ELU = _row("ELU", ops.elu, "x where positive, else alpha * (exp(x) - 1).")
GLU = _row("GLU", ops.glu, "a sigmoid(b) for the halves a, b of x along dim.")
Mish = _row("Mish", ops.mish, "x tanh(ln(1 + e^x)).")
Softplus = _row("Softplus", ops.softplus, "ln(1 + exp(beta x)) / beta; x itself where beta x > threshold.")
LogSigmoid = _row("LogSigmoid", ops.logsigmoid, "ln sigmoid(x).")
GELU = _row("GELU", ops.gelu, 'x times the normal distribution function of x; approximate="tanh" for the tanh form.')
LocalResponseNorm = _row(
    "LocalResponseNorm", ops.local_response_norm, "x, divided by a power of its neighbours' squares."
)
PixelShuffle = _row("PixelShuffle", ops.pixel_shuffle, "(N, C r^2, H, W) to (N, C, H r, W r) for r = upscale_factor.")
Unfold = _row("Unfold", ops.unfold, "The windows of images as columns.")
Unflatten = _row("Unflatten", unflatten, "Split axis dim into axes of lengths unflattened_size (one may be -1).")
MaxPool1d = _row("MaxPool1d", ops.max_pool1d, "The maximum of every window.", last="ceil_mode")
AvgPool1d = _row("AvgPool1d", ops.avg_pool1d, "The mean of every window.")
AvgPool2d = _row("AvgPool2d", ops.avg_pool2d, "The mean of every window.")
AdaptiveAvgPool1d = _row("AdaptiveAvgPool1d", ops.adaptive_avg_pool1d, "Means over output_size cells.")
AdaptiveAvgPool2d = _row("AdaptiveAvgPool2d", ops.adaptive_avg_pool2d, "Means over a grid of output_size cells.")
AdaptiveMaxPool2d = _row("AdaptiveMaxPool2d", ops.adaptive_max_pool2d, "Maxima over a grid of output_size cells.")
_channels = "In training, whole channels become zero with probability p."
Dropout1d = _row("Dropout1d", ops.dropout1d, _channels, Dropout, without=("training",))
Dropout2d = _row("Dropout2d", ops.dropout2d, _channels, Dropout, without=("training",))
ConstantPad1d = _pad("ConstantPad1d", 1, "constant", "`value` at both ends of (N, C, L)")
ConstantPad2d = _pad("ConstantPad2d", 2, "constant", "`value` around images")
ZeroPad1d = _pad("ZeroPad1d", 1, "constant", "Zeros at both ends of (N, C, L)", "value")
ZeroPad2d = _pad("ZeroPad2d", 2, "constant", "Zeros around images", "value")
ReflectionPad1d = _pad("ReflectionPad1d", 1, "reflect", "Both ends of (N, C, L) mirrored without the edge", "value")
ReflectionPad2d = _pad("ReflectionPad2d", 2, "reflect", "Images (N, C, H, W) mirrored at their edges", "value")
ReplicationPad1d = _pad("ReplicationPad1d", 1, "replicate", "Both ends of (N, C, L) repeated", "value")
ReplicationPad2d = _pad("ReplicationPad2d", 2, "replicate", "The edges of images (N, C, H, W) repeated", "value")


class Upsample(Function, op=ops.interpolate):
    """Resize images to `size` or by `scale_factor`. See `ops.interpolate`."""


_modes: Any = {"without": ("mode", "align_corners", "recompute_scale_factor")}
UpsamplingNearest2d = _row("UpsamplingNearest2d", ops.interpolate, "Resize by the nearest pixel.", Upsample, **_modes)


class UpsamplingBilinear2d(Upsample, op=ops.interpolate, **_modes):
    """Resize images to `size` or by `scale_factor`, bilinearly; corner pixels keep their values (align_corners)."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.interpolate(input, self.size, self.scale_factor, "bilinear", True)


class Identity(Module):
    """Its input; whatever the constructor is given is ignored, so that it can stand in for any layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class PReLU(Module):
    """x where positive, else weight x. weight: (num_parameters,), one for all or one per channel, from `init` on.

    See `ops.prelu`.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        (self.num_parameters,) = integers("PReLU", "num_parameters", num_parameters, 1, 1)
        self.init = number("PReLU", "init", init)
        self.weight = parameter(self.num_parameters)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight `init`."""
        initialise.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return ops.prelu(input, self.weight)


class Loss(Function):
    """forward(input, target), in FP32 (NVG section 2.3.1). Options that are tensors, such as a weight, are buffers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, value in self._options().items():
            if isinstance(value, Tensor):
                delattr(self, name)
                self.register_buffer(name, value)


_two: Any = {"base": Loss, "inputs": 2}
_unweighted = _two | {"without": ("weight",)}
CrossEntropyLoss = _row("CrossEntropyLoss", ops.cross_entropy, "-ln softmax(input) at the target class.", **_two)
MSELoss = _row("MSELoss", ops.mse_loss, "(input - target)^2.", **_unweighted)
_of_logits = ops.binary_cross_entropy_with_logits
BCEWithLogitsLoss = _row("BCEWithLogitsLoss", _of_logits, "Binary cross entropy of sigmoid(input).", **_two)
BCELoss = _row("BCELoss", ops.binary_cross_entropy, "Binary cross entropy of probabilities.", **_two)
NLLLoss = _row("NLLLoss", ops.nll_loss, "-input at the target class, for log-probabilities.", **_two)
L1Loss = _row("L1Loss", ops.l1_loss, "|input - target|.", **_unweighted)
SmoothL1Loss = _row("SmoothL1Loss", ops.smooth_l1_loss, "Quadratic below beta, linear above, with slope 1.", **_two)
HuberLoss = _row("HuberLoss", ops.huber_loss, "Quadratic below delta, linear above, with slope delta.", **_unweighted)
KLDivLoss = _row("KLDivLoss", ops.kl_div, "target (ln target - input), for log-probabilities input.", **_two)
_three = _two | {"inputs": 3}
MarginRankingLoss = _row("MarginRankingLoss", ops.margin_ranking_loss, "max(0, -y (x1 - x2) + margin).", **_three)
CosineEmbeddingLoss = _row("CosineEmbeddingLoss", ops.cosine_embedding_loss, "Cosines, near 1 or below.", **_three)
TripletMarginLoss = _row("TripletMarginLoss", ops.triplet_margin_loss, "max(0, near - far + margin).", **_three)
GaussianNLLLoss = _row("GaussianNLLLoss", ops.gaussian_nll_loss, "(ln v + (input - target)^2 / v) / 2.", **_three)
HingeEmbeddingLoss = _row("HingeEmbeddingLoss", ops.hinge_embedding_loss, "x, or max(0, margin - x).", **_two)
SoftMarginLoss = _row("SoftMarginLoss", ops.soft_margin_loss, "ln(1 + exp(-target input)).", **_two)
CosineSimilarity = _row("CosineSimilarity", ops.cosine_similarity, "The cosine of x1 and x2 along dim.", inputs=2)
PairwiseDistance = _row("PairwiseDistance", ops.pairwise_distance, "The p-norm of x1 - x2 + eps.", inputs=2)
CTCLoss = _row("CTCLoss", ops.ctc_loss, "-ln of the probability of targets under all alignments.", Loss, inputs=4)
