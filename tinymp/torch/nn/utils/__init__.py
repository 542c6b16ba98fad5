"""torch.nn.utils: clipping, and sequences in `rnn`."""

from ...space import fill, names
from . import rnn

_NAMES = "parameters_to_vector remove_spectral_norm remove_weight_norm spectral_norm vector_to_parameters weight_norm"
_TABLE = names("optim", "clip_grad_norm_ clip_grad_value_") | names("nn", _NAMES)
_TABLE["clip_grad_norm"] = "optim.clip_grad_norm_"  # PyTorch's name before version 0.4
fill(globals(), "torch.nn.utils", _TABLE, "rnn")
