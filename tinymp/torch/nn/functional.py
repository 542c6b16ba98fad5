"""torch.nn.functional: functions of tinymp.ops."""

from ..methods import FUNCTIONAL
from ..space import fill, names

_ALSO_AT_THE_TOP = """
    adaptive_avg_pool1d avg_pool1d batch_norm binary_cross_entropy_with_logits celu celu_ conv1d conv2d selu_
    conv_transpose1d conv_transpose2d cosine_similarity ctc_loss dropout embedding embedding_bag group_norm
    instance_norm kl_div layer_norm log_softmax max_pool1d max_pool2d pixel_shuffle prelu relu relu_ rms_norm selu
    sigmoid softmax tanh threshold threshold_
"""
_TABLE = names("ops", FUNCTIONAL + _ALSO_AT_THE_TOP)
_TABLE["upsample"] = "ops.interpolate"
del FUNCTIONAL
fill(globals(), "torch.nn.functional", _TABLE)
