"""Modules, parameters, layers, losses as modules, and initialisers."""

from typing import TYPE_CHECKING

from ..arguments import name_all as _name_all
from ..parameter import Parameter
from . import init
from .activation import GLU, Hardswish, Mish, PReLU, ReLU6
from .attention import MultiheadAttention
from .containers import ModuleDict, ModuleList, Sequential
from .functions import (
    ELU,
    GELU,
    AdaptiveAvgPool2d,
    AvgPool2d,
    Dropout,
    Flatten,
    Hardtanh,
    Identity,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    MaxPool2d,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
    Unflatten,
    ZeroPad2d,
)
from .group_norm import GroupNorm, InstanceNorm1d, InstanceNorm2d, RMSNorm
from .layers import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, Embedding, Linear
from .loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d, LayerNorm
from .padding import ReflectionPad1d, ReflectionPad2d, ReplicationPad1d, ReplicationPad2d
from .pooling import AdaptiveAvgPool1d, AdaptiveMaxPool2d, AvgPool1d, MaxPool1d
from .recurrent import GRU, LSTM, GRUCell, LSTMCell

__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BahdanauAttention",
    "BatchNorm1d",
    "BatchNorm2d",
    "CTCLoss",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Hardswish",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "KLDivLoss",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "LuongAttention",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "PixelShuffle",
    "PositionalEncoding",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "RowConv",
    "SampledSoftmaxLoss",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
    "Upsample",
    "ZeroPad2d",
    "init",
]

_name_all(globals())

if TYPE_CHECKING:
    from .more.alignment import BahdanauAttention, LuongAttention
    from .more.embedding_bag import EmbeddingBag
    from .more.functions import LocalResponseNorm, PixelShuffle, Upsample
    from .more.loss import CTCLoss, KLDivLoss, SampledSoftmaxLoss
    from .more.rnn import RNN, RNNCell
    from .more.row_conv import RowConv
    from .more.transformer import (
        PositionalEncoding,
        TransformerDecoder,
        TransformerDecoderLayer,
        TransformerEncoder,
        TransformerEncoderLayer,
    )
