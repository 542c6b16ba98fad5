"""Modules beyond those of nn/functions.py and nn/loss.py: PReLU, which learns its slope; rows without parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import ops
from ...arguments import integers, name_all, number, tensor
from ...tensor import Tensor
from .. import init as initialise
from ..functions import Dropout, Function
from ..init import parameter
from ..module import Module

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d"]
__all__ += ["CELU", "SELU", "CTCLoss", "ConstantPad2d", "Hardsigmoid", "Softsign", "Threshold", "Unfold"]
__all__ += ["ELU", "GELU", "GLU", "Dropout1d", "Dropout2d", "Hardswish", "Hardtanh", "HuberLoss", "KLDivLoss", "L1Loss"]
__all__ += ["LocalResponseNorm", "LogSigmoid", "LogSoftmax", "MaxPool1d", "Mish", "NLLLoss", "PReLU", "PixelShuffle"]
__all__ += ["ReLU6", "SiLU"]
__all__ += ["ReflectionPad1d", "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d", "SmoothL1Loss", "Softplus"]
__all__ += ["Unflatten", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "ZeroPad2d"]


class ReLU6(Function, op=ops.relu6):
    """x limited to [0, 6]. See `ops.relu6`."""


class Hardtanh(Function, op=ops.hardtanh):
    """x limited to [min_val, max_val]. See `ops.hardtanh`."""


class Hardswish(Function, op=ops.hardswish):
    """x min(max(x + 3, 0), 6) / 6. See `ops.hardswish`."""


class Hardsigmoid(Function, op=ops.hardsigmoid):
    """min(max(x + 3, 0), 6) / 6. See `ops.hardsigmoid`."""


class SELU(Function, op=ops.selu):
    """1.0507 x where positive, else 1.7581 (exp(x) - 1). See `ops.selu`."""


class CELU(Function, op=ops.celu):
    """x where positive, else alpha * (exp(x / alpha) - 1). See `ops.celu`."""


class Softsign(Function, op=ops.softsign):
    """x / (1 + |x|). See `ops.softsign`."""


class Threshold(Function, op=ops.threshold):
    """x where it is above threshold, else value. See `ops.threshold`."""


class SiLU(Function, op=ops.silu):
    """x * sigmoid(x). See `ops.silu`."""


class LogSoftmax(Function, op=ops.log_softmax, dim=None):
    """ln softmax(x) along dim. See `ops.log_softmax`, which refuses dim=None."""


class ELU(Function, op=ops.elu):
    """x where positive, else alpha * (exp(x) - 1). See `ops.elu`."""


class GLU(Function, op=ops.glu):
    """a sigmoid(b) for the halves a, b of x along dim. See `ops.glu`."""


class Mish(Function, op=ops.mish):
    """x tanh(ln(1 + e^x)). See `ops.mish`."""


class Softplus(Function, op=ops.softplus):
    """ln(1 + exp(beta x)) / beta; x itself where beta x > threshold. See `ops.softplus`."""


class LogSigmoid(Function, op=ops.logsigmoid):
    """ln sigmoid(x). See `ops.logsigmoid`."""


class GELU(Function, op=ops.gelu):
    """x times the normal distribution function of x; approximate="tanh" for the tanh form. See `ops.gelu`."""


class LocalResponseNorm(Function, op=ops.local_response_norm):
    """x_c (k + alpha / size * sum of x^2 over `size` channels around c)^-beta. See `ops.local_response_norm`."""


class Upsample(Function, op=ops.interpolate):
    """Resize images to `size` or by `scale_factor`. See `ops.interpolate`."""


class UpsamplingNearest2d(Upsample, op=ops.interpolate, without=("mode", "align_corners", "recompute_scale_factor")):
    """Resize images to `size` or by `scale_factor`, by the nearest pixel. See `ops.interpolate`."""


class UpsamplingBilinear2d(Upsample, op=ops.interpolate, without=("mode", "align_corners", "recompute_scale_factor")):
    """Resize images to `size` or by `scale_factor`, bilinearly; corner pixels keep their values (align_corners)."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.interpolate(input, self.size, self.scale_factor, "bilinear", True)


class PixelShuffle(Function, op=ops.pixel_shuffle):
    """(N, C r^2, H, W) to (N, C, H r, W r) for r = upscale_factor. See `ops.pixel_shuffle`."""


class Unfold(Function, op=ops.unfold):
    """The windows of images as columns. See `ops.unfold`."""


class MaxPool1d(Function, op=ops.max_pool1d, last="ceil_mode"):
    """The maximum of every window; stride None means kernel_size. See `ops.max_pool1d`."""


class AvgPool1d(Function, op=ops.avg_pool1d):
    """The mean of every window; stride None means kernel_size. See `ops.avg_pool1d`."""


class AvgPool2d(Function, op=ops.avg_pool2d):
    """The mean of every window; stride None means kernel_size. See `ops.avg_pool2d`."""


class AdaptiveAvgPool1d(Function, op=ops.adaptive_avg_pool1d):
    """Means over output_size cells. See `ops.adaptive_avg_pool1d`."""


class AdaptiveAvgPool2d(Function, op=ops.adaptive_avg_pool2d):
    """Means over a grid of output_size cells. See `ops.adaptive_avg_pool2d`."""


class AdaptiveMaxPool2d(Function, op=ops.adaptive_max_pool2d):
    """Maxima over a grid of output_size cells. See `ops.adaptive_max_pool2d`."""


def unflatten(input: Tensor, dim: int, unflattened_size: Any) -> Tensor:
    """`ops.unflatten` with the module's name of `sizes`."""
    return ops.unflatten(input, dim, unflattened_size)


class Unflatten(Function, op=unflatten):
    """Split axis dim into axes of lengths unflattened_size (one may be -1). See `ops.unflatten`."""


class Dropout1d(Dropout, op=ops.dropout1d, without=("training",)):
    """In training, channels of (N, C, L) or (C, L) become zero with probability p. See `ops.dropout1d`."""


class Dropout2d(Dropout, op=ops.dropout2d, without=("training",)):
    """In training, channels of (N, C, H, W), (N, C, L) or (N, C) become zero with probability p: `ops.dropout2d`."""


def constant_pad(input: Tensor, padding: Any, value: float) -> Tensor:
    """`ops.pad` of the last two axes with a value."""
    return ops.pad(input, integers("ConstantPad2d", "padding", padding, 4, -(2**31)), "constant", value)


class ConstantPad2d(Function, op=constant_pad):
    """`value` around images: padding is an integer or (left, right, top, bottom). See `ops.pad`."""


def padded(name: str, axes: int, mode: str = "constant") -> Callable[[Tensor, Any], Tensor]:
    """`ops.pad` of the last axes with this mode, for the module of this name."""

    def pad(input: Tensor, padding: Any) -> Tensor:
        if mode != "constant" and tensor(name, "input", input).ndim not in (axes + 1, axes + 2):
            raise ValueError(f"{name}: expected `input` to have {axes + 1} or {axes + 2} axes, got shape {input.shape}")
        return ops.pad(input, integers(name, "padding", padding, 2 * axes, -(2**31)), mode)

    return pad


class ZeroPad2d(Function, op=padded("ZeroPad2d", 2)):
    """Zeros around images: padding is an integer or (left, right, top, bottom). See `ops.pad`."""


class ReflectionPad1d(Function, op=padded("ReflectionPad1d", 1, "reflect")):
    """Both ends of (N, C, L) mirrored without the edge: padding is an integer or (left, right). See `ops.pad`."""


class ReflectionPad2d(Function, op=padded("ReflectionPad2d", 2, "reflect")):
    """Images (N, C, H, W) mirrored at their edges: an integer or (left, right, top, bottom). See `ops.pad`."""


class ReplicationPad1d(Function, op=padded("ReplicationPad1d", 1, "replicate")):
    """Both ends of (N, C, L) repeated: padding is an integer or (left, right). See `ops.pad`."""


class ReplicationPad2d(Function, op=padded("ReplicationPad2d", 2, "replicate")):
    """The edges of images (N, C, H, W) repeated: an integer or (left, right, top, bottom). See `ops.pad`."""


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

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class NLLLoss(Function, op=ops.nll_loss, inputs=2):
    """-input at the target class, for log-probabilities. See `ops.nll_loss`."""


class L1Loss(Function, op=ops.l1_loss, inputs=2, without=("weight",)):
    """|input - target|. See `ops.l1_loss`."""


class SmoothL1Loss(Function, op=ops.smooth_l1_loss, inputs=2):
    """Quadratic below beta, linear above, with slope 1. See `ops.smooth_l1_loss`."""


class HuberLoss(Function, op=ops.huber_loss, inputs=2, without=("weight",)):
    """Quadratic below delta, linear above, with slope delta. See `ops.huber_loss`."""


class KLDivLoss(Function, op=ops.kl_div, inputs=2):
    """target (ln target - input), for log-probabilities input. See `ops.kl_div`."""


class CTCLoss(Function, op=ops.ctc_loss, inputs=4):
    """-ln of the probability of targets under all alignments with log_probs. See `ops.ctc_loss`.

    forward takes log_probs (T, N, C), targets, input_lengths and target_lengths.
    """


name_all(globals())
