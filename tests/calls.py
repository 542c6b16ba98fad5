"""A call of every op that computes something, on FP16 arguments, and of some layers.

tests/bits_of_ops.py makes them larger, and in FP32: lengths and dtype are asked when a call runs.
"""

from functools import partial

import numpy as np

import tinymp as mp
from tinymp import nn, ops

times, dtype, tensor = 1, "float16", mp.tensor  # of the calls that are made now


def n(length):
    """A length, or a list, that is so many times as long; what has the length 1 keeps it."""
    return length if length == 1 else length * times


def half(*shape, low=-1.0):
    values = np.random.default_rng(0).uniform(low, 0.9, [n(length) for length in shape]).astype(dtype)
    return tensor(values, requires_grad=True)


def positive(*shape):
    return half(*shape, low=0.1)


def ints(*values):
    return tensor(np.array(values))


def some():
    """Rows that are looked up, one of them twice."""
    return ints(*n([0, 2, 2]))


def labels():
    return ints(*n([0, 1, 2, 3]))


def diagonal():
    return tensor(np.eye(n(4), n(6)) > 0)


def _calls(names, *make, **options):
    return {name: partial(_call, name, make, options) for name in names.split()}


def _call(name, make, options):
    return getattr(ops, name)(*(m() for m in make), **options)


def _rows():
    return half(4, 6)


def _maps():
    return half(2, 3, 4, 4)


def _two():
    return 2


CALLS = {
    **_calls("elu gelu hardtanh leaky_relu logsigmoid relu sigmoid silu softplus tanh hardswish mish relu6", _rows),
    **_calls("cos sin sign abs exp neg square isfinite isinf isnan logical_not normalize dropout glu", _rows),
    **_calls("contiguous flatten tril triu", _rows),
    **_calls("acos asin atan ceil celu cosh erf erfinv expm1 floor hardsigmoid log1p", _rows),
    **_calls("round selu sinh softsign tan trunc", _rows),
    **_calls("log log10 log2 reciprocal rsqrt sqrt", lambda: positive(4, 6)),
    **_calls("softmax log_softmax logsumexp cumsum amax amin argmax argmin max min mean std sum", _rows, lambda: 1),
    **_calls("var prod all any sort argsort unbind unsqueeze", _rows, lambda: 1),
    **_calls("norm", _rows, _two, lambda: 1),
    **_calls("add sub mul div maximum minimum eq ne lt le gt ge logical_and logical_or", _rows, lambda: positive(4, 6)),
    **_calls("remainder fmod floor_divide atan2", _rows, lambda: positive(4, 6)),
    **_calls("mse_loss l1_loss huber_loss smooth_l1_loss kl_div", _rows, lambda: positive(4, 6)),
    **_calls("binary_cross_entropy binary_cross_entropy_with_logits", *[lambda: positive(4, 6)] * 2),
    **_calls("cross_entropy nll_loss", _rows, labels),
    **_calls("avg_pool2d max_pool2d adaptive_avg_pool2d adaptive_max_pool2d", _maps, _two),
    **_calls("avg_pool1d max_pool1d adaptive_avg_pool1d", lambda: half(2, 3, 4), _two),
    **_calls("scaled_dot_product_attention", *[lambda: half(2, 3, 4)] * 3),
    **_calls("conv1d", lambda: half(2, 3, 5), lambda: half(4, 3, 3), lambda: half(4)),
    **_calls("conv2d", _maps, lambda: half(4, 3, 3, 3), lambda: half(4)),
    **_calls("conv_transpose1d", lambda: half(2, 3, 5), lambda: half(3, 4, 3), lambda: half(4)),
    **_calls("conv_transpose2d", _maps, lambda: half(3, 4, 3, 3), lambda: half(4)),
    **_calls("bmm", lambda: half(2, 3, 4), lambda: half(2, 4, 5)),
    **_calls("matmul mm", lambda: half(3, 4), lambda: half(4, 5)),
    **_calls("linear", lambda: half(3, 4), lambda: half(5, 4), lambda: half(5)),
    **_calls("embedding", some, lambda: half(4, 3)),
    **_calls("embedding_bag", lambda: ints(*n([[0, 2], [2, 1]])), lambda: half(4, 3)),
    **_calls("batch_norm", _rows, lambda: None, lambda: None, lambda: half(6), lambda: half(6), training=True),
    **_calls("layer_norm", _rows, lambda: n(6), lambda: half(6), lambda: half(6)),
    **_calls("rms_norm", _rows, lambda: (n(6),), lambda: half(6)),
    **_calls("group_norm", lambda: half(2, 4, 3), _two, lambda: half(4), lambda: half(4)),
    **_calls("instance_norm", lambda: half(2, 4, 3)),
    **_calls("local_response_norm", _maps, _two),
    **_calls("threshold", _rows, lambda: 0.5, lambda: 2.0),
    **_calls("clamp clip", _rows, lambda: -0.5, lambda: 0.5),
    **_calls("pow", lambda: positive(4, 6), lambda: 3),
    **_calls("masked_fill", _rows, diagonal, lambda: 0.0),
    **_calls("gather", _rows, lambda: 1, lambda: tensor(np.zeros((n(4), n(2)), int))),
    **_calls("index_put", _rows, some, lambda: half(1, 1)),
    **_calls("index_select", _rows, lambda: 0, some),
    **_calls("index_add", _rows, lambda: 0, lambda: tensor(np.zeros(n(4), int)), lambda: half(4, 6)),
    **_calls("scatter", _rows, lambda: 1, lambda: tensor(np.zeros((n(4), 1), int)), lambda: half(4, 1)),
    **_calls("cat stack", lambda: [half(2, 3), half(2, 3)]),
    **_calls("chunk split topk", _rows, _two),
    **_calls("view reshape", _rows, lambda: -1),
    **_calls("expand", lambda: half(4, 1), lambda: -1, lambda: 3),
    **_calls("repeat", _rows, _two, lambda: 1),
    **_calls("diagonal", _rows),
    **_calls("flip", _rows, lambda: 1),
    **_calls("pad", _rows, lambda: (1, 1)),
    **_calls("permute", _rows, lambda: (1, 0)),
    **_calls("transpose", _rows, lambda: 0, lambda: 1),
    **_calls("squeeze", lambda: half(4, 1)),
    **_calls("unfold", _maps, _two),
    **_calls("interpolate", _maps, scale_factor=2, mode="bilinear"),
    **_calls("pixel_shuffle", lambda: half(1, 4, 2, 2), _two),
    **_calls("prelu", _rows, lambda: half(6)),
    "einsum": lambda: ops.einsum("ij,jk->ik", half(3, 4), half(4, 5)),
    "where": lambda: ops.where(diagonal(), half(4, 6), half(1, 6)),
    "getitem": lambda: half(4, 6)[1:],
    "ctc_loss": lambda: ops.ctc_loss(half(4, 2, 3), ints(*n([[1, 2], [2, 1]])), n(2) * [n(4)], n(2) * [2]),
    "lstm_cell": lambda: ops.lstm_cell(half(2, 3), (half(2, 4), half(2, 4)), *_weights(16)),
    "lstm_layer": lambda: ops.lstm_layer(half(5, 2, 3), (half(2, 4), half(2, 4)), *_weights(16)),
    "gru_cell": lambda: ops.gru_cell(half(2, 3), half(2, 4), *_weights(12)),
    "gru_layer": lambda: ops.gru_layer(half(5, 2, 3), half(2, 4), *_weights(12)),
}

# Definitions that these arguments do not reach
OTHERS = {
    **_calls("add sub mul div maximum minimum pow", lambda: positive(4, 6), lambda: positive(6)),
    "clamp to tensors": lambda: ops.clamp(half(4, 6), half(6), positive(6)),
    "div, rounded": lambda: ops.div(half(4, 6), positive(4, 6), rounding_mode="floor"),
    "gelu by tanh": lambda: ops.gelu(half(4, 6), approximate="tanh"),
    "getitem of arrays": lambda: half(4, 6)[some()],
    "pad by less than nothing": lambda: ops.pad(half(4, 6), (-1, 1)),
    "pad from inside": lambda: ops.pad(half(4, 6), (1, 1), mode="reflect"),
    "cross_entropy of probabilities": lambda: ops.cross_entropy(half(4, 6), positive(4, 6)),
    "cross_entropy, smooth": lambda: ops.cross_entropy(half(4, 6), labels(), label_smoothing=0.1),
    "mse_loss of data": lambda: ops.mse_loss(half(4, 6), positive(4, 6).detach()),
    "logits of data": lambda: ops.binary_cross_entropy_with_logits(half(4, 6), positive(4, 6).detach()),
    "max_pool2d, overlapping": lambda: ops.max_pool2d(half(2, 3, 4, 4), 2, 1),
    "matmul of a stack and a matrix": lambda: ops.matmul(half(2, 3, 4), half(4, 5)),
    "lstm_layer, projected": lambda: ops.lstm_layer(
        half(5, 2, 3), (half(2, 2), half(2, 4)), half(16, 3), half(16, 2), half(16), half(16), half(2, 4)
    ),
    "batch_norm with fixed statistics": lambda: ops.batch_norm(half(4, 6), *[positive(6).detach()] * 2, half(6)),
    "clone": lambda: half(4, 6).clone(),
    "cast": lambda: half(4, 6).to("float32" if dtype == "float16" else "float16"),
}


def _weights(rows):
    return half(rows, 3), half(rows, 4), half(rows), half(rows)


def _layer(layer, x):
    return mp.MIXED.cast(layer)(x)


LAYERS = {
    "Linear": lambda: _layer(nn.Linear(6, 5), half(4, 6)),
    "Conv2d": lambda: _layer(nn.Conv2d(3, 4, 3), half(2, 3, 4, 4)),
    "BatchNorm2d": lambda: _layer(nn.BatchNorm2d(3), half(2, 3, 4, 4)),
    "LayerNorm": lambda: _layer(nn.LayerNorm(6), half(4, 6)),
    "GroupNorm": lambda: _layer(nn.GroupNorm(3, 3), half(2, 3, 4)),
    "LSTM": lambda: _layer(nn.LSTM(3, 4), half(5, 2, 3)),
    "GRU": lambda: _layer(nn.GRU(3, 4), half(5, 2, 3)),
    "RNN": lambda: _layer(nn.RNN(3, 4), half(5, 2, 3)),
    "Embedding": lambda: _layer(nn.Embedding(9, 4), ints(0, 2, 2)),
    "MultiheadAttention": lambda: mp.MIXED.cast(nn.MultiheadAttention(4, 2))(*[half(3, 2, 4)] * 3),
    "TransformerEncoderLayer": lambda: _layer(nn.TransformerEncoderLayer(4, 2, 8), half(3, 2, 4)),
    "Dropout": lambda: _layer(nn.Dropout(), half(4, 6)),
    "CrossEntropyLoss": lambda: nn.CrossEntropyLoss()(half(4, 6), ints(0, 1, 2, 3)),
}
