"""torch.nn: tinymp's layers, losses and modules, by PyTorch's names."""

from ...nn import Parameter
from ..space import fill, names
from . import functional, init, parallel, utils
from .module import Module, Sequential

_NAMES = """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool2d AvgPool1d AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d
    BatchNorm2d CTCLoss ConstantPad2d Conv1d Conv2d ConvTranspose1d ConvTranspose2d CrossEntropyLoss Dropout
    Dropout1d Dropout2d ELU Embedding EmbeddingBag Flatten GELU GLU GRU GRUCell GroupNorm Hardswish Hardtanh
    HuberLoss Identity InstanceNorm1d InstanceNorm2d KLDivLoss L1Loss LSTM LSTMCell LayerNorm LazyLinear LeakyReLU
    Linear LocalResponseNorm LogSigmoid LogSoftmax MSELoss MaxPool1d MaxPool2d Mish ModuleDict ModuleList
    MultiheadAttention NLLLoss PReLU ParameterDict ParameterList PixelShuffle RMSNorm RNN RNNCell ReLU ReLU6
    ReflectionPad1d ReflectionPad2d ReplicationPad1d ReplicationPad2d SiLU Sigmoid SmoothL1Loss Softmax Softplus
    Tanh Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer Unflatten
    Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad2d
"""


class DataParallel(Module):
    """The module itself, which runs on one GPU, as `module`: what PyTorch's does where there is one."""

    def __init__(self, module: Module, device_ids: object = None, output_device: object = None, dim: int = 0) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: object, **options: object) -> object:
        return self.module(*args, **options)


fill(globals(), "torch.nn", names("nn", _NAMES), "functional init parallel utils")
