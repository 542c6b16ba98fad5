"""torch.nn.functional: functions of tinymp.ops."""

from ..methods import changing as _changing
from ..space import fill, names

_NAMES = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d avg_pool2d batch_norm
    binary_cross_entropy binary_cross_entropy_with_logits celu conv1d conv2d conv_transpose1d conv_transpose2d
    cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dropout dropout1d dropout2d elu embedding
    embedding_bag gaussian_nll_loss gelu glu group_norm hardsigmoid hardswish hardtanh hinge_embedding_loss
    huber_loss instance_norm interpolate kl_div l1_loss layer_norm leaky_relu linear local_response_norm log_softmax
    logsigmoid margin_ranking_loss max_pool1d max_pool2d mish mse_loss nll_loss normalize one_hot pad
    pairwise_distance pixel_shuffle prelu relu relu6 rms_norm scaled_dot_product_attention selu sigmoid silu
    smooth_l1_loss soft_margin_loss softmax softplus softsign tanh threshold triplet_margin_loss unfold
"""
_TABLE = names("ops", _NAMES)
_TABLE["upsample"] = "ops.interpolate"
for _name in ("relu", "leaky_relu", "elu", "selu", "celu", "hardtanh", "threshold"):
    globals()[f"{_name}_"] = _changing(_name)
fill(globals(), "torch.nn.functional", _TABLE)
