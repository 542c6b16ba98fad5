"""torch.nn.utils: clipping, and sequences in `rnn`."""

from ...space import fill, names
from . import rnn

_TABLE = names("optim", "clip_grad_norm_ clip_grad_value_") | names("nn", "parameters_to_vector vector_to_parameters")
_TABLE["clip_grad_norm"] = "optim.clip_grad_norm_"  # PyTorch's name before version 0.4
fill(globals(), "torch.nn.utils", _TABLE, "rnn")
