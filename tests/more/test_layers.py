"""Layers of nn/more: PyTorch's constructors and state, and the op they call with what they were given."""

import numpy as np
import pytest

import tinymp as mp
from layers_of import constructor_is_pytorchs, forward_is, function, state_is
from oracle import randn
from tinymp import nn, ops

SIGNATURES = {  # see `layers_of.constructor_is_pytorchs`
    "Conv1d": "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode ~device ~dtype",
    "ConvTranspose1d": "in_channels out_channels kernel_size stride padding output_padding groups bias dilation "
    "padding_mode ~device ~dtype",
    "EmbeddingBag": "num_embeddings embedding_dim ~max_norm ~norm_type ~scale_grad_by_freq mode sparse ~_weight "
    "include_last_offset padding_idx ~device ~dtype",
    "MultiheadAttention": "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim batch_first ~device "
    "~dtype",
    "GroupNorm": "num_groups num_channels eps affine ~device ~dtype bias",
    "RMSNorm": "normalized_shape eps elementwise_affine ~device ~dtype",
    "InstanceNorm1d": "num_features eps momentum affine track_running_stats ~device ~dtype bias",
    "InstanceNorm2d": "num_features eps momentum affine track_running_stats ~device ~dtype bias",
    "RNNCell": "input_size hidden_size bias nonlinearity ~device ~dtype",
    "PReLU": "num_parameters init ~device ~dtype",
    "ReLU6": "~inplace",
    "Hardswish": "~inplace",
    "Mish": "~inplace",
    "GLU": "dim",
    "KLDivLoss": "~size_average ~reduce reduction log_target",
    "MaxPool1d": "kernel_size stride padding dilation return_indices ceil_mode",
    "AvgPool1d": "kernel_size stride padding ceil_mode count_include_pad",
    "AdaptiveAvgPool1d": "output_size",
    "AdaptiveMaxPool2d": "output_size return_indices",
    "ReflectionPad1d": "padding",
    "ReflectionPad2d": "padding",
    "ReplicationPad1d": "padding",
    "ReplicationPad2d": "padding",
    "LayerNorm": "normalized_shape eps elementwise_affine bias ~device ~dtype",
    "LocalResponseNorm": "size alpha beta k",
    "AvgPool2d": "kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "AdaptiveAvgPool2d": "output_size",
    "Hardtanh": "min_val max_val ~inplace",
    "ELU": "alpha ~inplace",
    "SELU": "~inplace",
    "CELU": "alpha ~inplace",
    "Threshold": "threshold value ~inplace",
    "GELU": "approximate",
    "SiLU": "~inplace",
    "Softplus": "beta threshold",
    "LogSigmoid": "",
    "Softmax": "dim",
    "LogSoftmax": "dim",
    "Unflatten": "dim unflattened_size",
    "Upsample": "size scale_factor mode align_corners recompute_scale_factor",
    "PixelShuffle": "upscale_factor",
    "ZeroPad2d": "padding",
    "CrossEntropyLoss": "weight ~size_average ignore_index ~reduce reduction label_smoothing",
    "NLLLoss": "weight ~size_average ignore_index ~reduce reduction",
    "MSELoss": "~size_average ~reduce reduction",
    "L1Loss": "~size_average ~reduce reduction",
    "SmoothL1Loss": "~size_average ~reduce reduction beta",
    "HuberLoss": "reduction delta",
    "BCEWithLogitsLoss": "weight ~size_average ~reduce reduction pos_weight",
    "BCELoss": "weight ~size_average ~reduce reduction",
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_constructors_are_pytorchs(name):
    constructor_is_pytorchs(name, SIGNATURES[name])


IMAGES = (2, 4, 6, 6)
# layer, input shape, the op that it must equal
FORWARD = [
    (lambda: nn.Conv1d(4, 2, 3, 2, 1, 1, 2), (2, 4, 9), lambda m, x: ops.conv1d(x, m.weight, m.bias, 2, 1, 1, 2)),
    (lambda: nn.ConvTranspose1d(4, 2, 3, 2, 1, 1, 2, True, 1), (2, 4, 7),
     lambda m, x: ops.conv_transpose1d(x, m.weight, m.bias, 2, 1, 1, 2, 1)),
    (lambda: nn.PReLU(4, 0.1), (2, 4, 3), lambda m, x: ops.where(x > 0, x, x * m.weight.reshape(1, 4, 1))),
    (lambda: nn.ReLU6(), (3, 4), function("relu6")),
    (lambda: nn.Hardswish(), (3, 4), function("hardswish")),
    (lambda: nn.Mish(), (3, 4), function("mish")),
    (lambda: nn.GLU(0), (4, 3), function("glu", 0)),
    (lambda: nn.MaxPool1d(3, 2, 1, 1, False, True), (2, 4, 9), function("max_pool1d", 3, 2, 1, ceil_mode=True)),
    (lambda: nn.AvgPool1d(3, 2, 1, False, False), (2, 4, 9), function("avg_pool1d", 3, 2, 1, False, False)),
    (lambda: nn.AdaptiveAvgPool1d(4), (2, 4, 9), function("adaptive_avg_pool1d", 4)),
    (lambda: nn.AdaptiveMaxPool2d((2, None)), IMAGES, function("adaptive_max_pool2d", (2, None))),
    (lambda: nn.ReflectionPad1d(2), (4, 9), function("pad", (2, 2), "reflect")),
    (lambda: nn.ReflectionPad2d((1, 2, 0, 3)), IMAGES, function("pad", (1, 2, 0, 3), "reflect")),
    (lambda: nn.ReplicationPad1d((3, 0)), (2, 4, 9), function("pad", (3, 0), "replicate")),
    (lambda: nn.ReplicationPad2d(1), IMAGES, function("pad", (1, 1, 1, 1), "replicate")),
    (lambda: nn.LocalResponseNorm(3, 0.1, 0.5, 2.0), IMAGES, function("local_response_norm", 3, 0.1, 0.5, 2.0)),
    (lambda: nn.AvgPool2d(3, 2, 1, False, False, None), IMAGES, function("avg_pool2d", 3, 2, 1, False, False)),
    (lambda: nn.AdaptiveAvgPool2d((2, None)), IMAGES, function("adaptive_avg_pool2d", (2, None))),
    (lambda: nn.Hardtanh(-0.5, 0.7), (3, 4), function("hardtanh", -0.5, 0.7)),
    (lambda: nn.ELU(0.5), (3, 4), function("elu", 0.5)),
    (lambda: nn.SELU(), (3, 4), function("selu")),
    (lambda: nn.CELU(0.5), (3, 4), function("celu", 0.5)),
    (lambda: nn.Threshold(0.1, 2.0), (3, 4), function("threshold", 0.1, 2.0)),
    (lambda: nn.GELU("tanh"), (3, 4), function("gelu", "tanh")),
    (lambda: nn.SiLU(), (3, 4), function("silu")),
    (lambda: nn.Softplus(2.0, 1.0), (3, 4), function("softplus", 2.0, 1.0)),
    (lambda: nn.LogSigmoid(), (3, 4), function("logsigmoid")),
    (lambda: nn.Softmax(0), (3, 4), function("softmax", 0)),
    (lambda: nn.LogSoftmax(1), (3, 4), function("log_softmax", 1)),
    (lambda: nn.Identity(1, a=2), (3, 4), lambda m, x: x),
    (lambda: nn.Unflatten(-2, (3, -1)), IMAGES, lambda m, x: x.reshape(2, 4, 3, 2, 6)),
    (lambda: nn.Upsample(None, 2, "bilinear", True), IMAGES, function("interpolate", None, 2, "bilinear", True)),
    (lambda: nn.PixelShuffle(2), IMAGES, function("pixel_shuffle", 2)),
    (lambda: nn.ZeroPad2d(1), IMAGES, function("pad", (1, 1, 1, 1))),
    (lambda: nn.ZeroPad2d((1, 2, 0, 3)), IMAGES, function("pad", (1, 2, 0, 3))),
]  # fmt: skip


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED])
@pytest.mark.parametrize(("build", "shape", "expected"), FORWARD, ids=[type(c[0]()).__name__ for c in FORWARD])
def test_forward_is_the_op(build, shape, expected, policy):
    forward_is(build, shape, expected, policy)


@pytest.mark.parametrize(
    ("layer", "state"),
    [
        (nn.Conv1d(4, 6, 3, groups=2), {"weight": (6, 2, 3), "bias": (6,)}),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), {"weight": (4, 3, 3), "bias": (6,)}),
        (nn.EmbeddingBag(5, 3), {"weight": (5, 3)}),
        (nn.PReLU(4), {"weight": (4,)}),
        (nn.GroupNorm(2, 4), {"weight": (4,), "bias": (4,)}),
        (nn.GroupNorm(2, 4, bias=False), {"weight": (4,)}),
        (nn.RMSNorm((4, 5)), {"weight": (4, 5)}),
        (nn.InstanceNorm2d(3), {}),
        (nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
         dict.fromkeys(["weight", "bias", "running_mean", "running_var"], (3,)) | {"num_batches_tracked": ()}),
        (nn.MultiheadAttention(8, 2),
         {"in_proj_weight": (24, 8), "in_proj_bias": (24,), "out_proj.weight": (8, 8), "out_proj.bias": (8,)}),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True, kdim=4, vdim=6),
         {"q_proj_weight": (8, 8), "k_proj_weight": (8, 4), "v_proj_weight": (8, 6), "in_proj_bias": (24,),
          "bias_k": (1, 1, 8), "bias_v": (1, 1, 8), "out_proj.weight": (8, 8), "out_proj.bias": (8,)}),
        (nn.RNN(3, 4, 2, bias=False), {"weight_ih_l0": (4, 3), "weight_hh_l0": (4, 4), "weight_ih_l1": (4, 4),
                                       "weight_hh_l1": (4, 4)}),
        (nn.RNNCell(3, 4), {"weight_ih": (4, 3), "weight_hh": (4, 4), "bias_ih": (4,), "bias_hh": (4,)}),
        (nn.LayerNorm((4, 5)), {"weight": (4, 5), "bias": (4, 5)}),
        (nn.CrossEntropyLoss(mp.tensor([1.0, 2.0])), {"weight": (2,)}),
        (nn.BCEWithLogitsLoss(pos_weight=mp.tensor([1.0])), {"pos_weight": (1,)}),
        (nn.MSELoss(), {}),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)  # fmt: skip
def test_state_is_pytorchs(layer, state):
    state_is(layer, state)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (lambda: nn.Conv1d(1, 1, 3, padding="same"), "Conv1d(1, 1, kernel_size=(3,), padding='same')  weight"),
        (lambda: nn.LayerNorm((4, 5), 1e-3, False), "LayerNorm(normalized_shape=(4, 5), eps=0.001, elementwise"),
        (lambda: nn.GroupNorm(2, 4, 1e-3, False), "GroupNorm(2, 4, eps=0.001, affine=False)"),
        (lambda: nn.InstanceNorm1d(3, affine=True), "InstanceNorm1d(3, affine=True)"),
        (lambda: nn.RMSNorm(4), "RMSNorm(normalized_shape=(4,))"),
        (lambda: nn.MultiheadAttention(8, 2, 0.1), "MultiheadAttention(8, 2, dropout=0.1, kdim=8, vdim=8"),
        (lambda: nn.EmbeddingBag(5, 3, mode="max"), "EmbeddingBag(5, 3, mode='max')"),
        (lambda: nn.CrossEntropyLoss(mp.tensor([1.0, 2.0]), label_smoothing=0.1),
         "CrossEntropyLoss(label_smoothing=0.1)"),
    ],
)  # fmt: skip
def test_repr(layer, text):
    assert repr(layer()).startswith(text)


def test_max_pool_returns_indices():
    y, index = nn.MaxPool2d(2, return_indices=True)(mp.tensor(randn(1, 1, 4, 4)))
    assert y.shape == index.shape == (1, 1, 2, 2)


def test_a_padding_may_be_a_numpy_integer():
    assert nn.ReplicationPad1d(np.int64(2))(mp.tensor(np.ones((1, 2, 3), "float32"))).shape == (1, 2, 7)


def test_sizes_may_be_tensors():
    size = mp.tensor(4)
    assert nn.ConvTranspose2d(2, size, 1).weight.shape == (2, 4, 1, 1)
    assert nn.MultiheadAttention(size, 2).head_dim == 2


@pytest.mark.parametrize("shape", [5, (5,), [4, 5]])
@pytest.mark.parametrize(("affine", "bias"), [(True, True), (True, False), (False, True)])
def test_layer_norm(shape, affine, bias):
    m = nn.LayerNorm(shape, 1e-3, affine, bias)
    assert [name for name, _ in m.named_parameters()] == ["weight", "bias"][: affine * (1 + bias)]
    assert all(p.normalisation for p in m.parameters())
    x = randn(3, 4, 5)
    axes = tuple(range(-len(m.normalized_shape), 0))
    expected = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-3)
    np.testing.assert_allclose(m(mp.tensor(x.astype("float32"))).numpy(), expected, rtol=1e-5, atol=1e-5)
