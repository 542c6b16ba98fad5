"""Modules, parameters, layers, losses as modules, and initialisers."""

from typing import TYPE_CHECKING

from ..arguments import name_all as _name_all
from ..parameter import Parameter
from . import containers, functions, init, layers, loss, norm, recurrent
from .containers import *
from .functions import *
from .layers import *
from .loss import *
from .module import Module
from .norm import *
from .recurrent import *

__all__ = ["Module", "Parameter", "init", *containers.__all__, *functions.__all__, *layers.__all__, *loss.__all__]
__all__ += [*norm.__all__, *recurrent.__all__, "parameters_to_vector", "vector_to_parameters"]
__all__ += ["RNN", "CTCLoss", "EmbeddingBag", "KLDivLoss", "LocalResponseNorm", "MultiheadAttention", "PReLU"]
__all__ += ["PixelShuffle", "RNNCell", "Unflatten", "Upsample", "UpsamplingNearest2d", "ZeroPad2d"]
__all__ += ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "MaxPool1d", "ModuleDict"]
__all__ += ["ELU", "GELU", "GLU", "Hardswish", "Hardtanh", "LogSigmoid", "Mish", "ReLU6", "SmoothL1Loss", "Softplus"]
__all__ += ["GRU", "GRUCell", "GroupNorm", "HuberLoss", "InstanceNorm1d", "InstanceNorm2d", "LSTMCell", "RMSNorm"]
__all__ += ["PackedSequence", "Transformer", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence"]
__all__ += ["ConstantPad2d", "Dropout1d", "Dropout2d", "LazyLinear", "ParameterDict", "ParameterList"]
__all__ += ["TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "UpsamplingBilinear2d"]
__all__ += ["ReflectionPad1d", "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d", "TransformerEncoderLayer"]

_name_all(globals())

if TYPE_CHECKING:
    from .more.attention import *
    from .more.embedding_bag import *
    from .more.functions import *
    from .more.group_norm import *
    from .more.gru import *
    from .more.lazy import *
    from .more.loss import *
    from .more.module_dict import *
    from .more.packed import *
    from .more.parameters import *
    from .more.rnn import *
    from .more.transformer import *
    from .more.vector import *
