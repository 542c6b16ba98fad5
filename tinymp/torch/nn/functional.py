"""torch.nn.functional: functions of tinymp.ops."""

from ..space import fill, names

ALONE = """
    adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d binary_cross_entropy cosine_embedding_loss cross_entropy
    dropout1d dropout2d elu elu_ gaussian_nll_loss gelu glu hardsigmoid hardswish hardtanh hardtanh_ leaky_relu_
    hinge_embedding_loss huber_loss interpolate l1_loss leaky_relu linear local_response_norm logsigmoid mse_loss
    margin_ranking_loss mish nll_loss normalize one_hot pad pairwise_distance relu6 scaled_dot_product_attention silu
    smooth_l1_loss soft_margin_loss softplus softsign triplet_margin_loss unfold
"""
_ALSO_AT_THE_TOP = """
    adaptive_avg_pool1d avg_pool1d batch_norm binary_cross_entropy_with_logits celu celu_ conv1d conv2d selu_
    conv_transpose1d conv_transpose2d cosine_similarity ctc_loss dropout embedding embedding_bag group_norm
    instance_norm kl_div layer_norm log_softmax max_pool1d max_pool2d pixel_shuffle prelu relu relu_ rms_norm selu
    sigmoid softmax tanh threshold threshold_
"""
_TABLE = names("ops", ALONE + _ALSO_AT_THE_TOP)
_TABLE["upsample"] = "ops.interpolate"
fill(globals(), "torch.nn.functional", _TABLE)
