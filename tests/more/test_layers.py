"""Layers of nn/more: PyTorch's constructors and state, and the op they call with what they were given."""

import pytest

import tinymp as mp
from layers_of import state_is
from tinymp import nn


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
