"""torch.nn.init: tinymp's initialisers, without the graph, as in PyTorch."""

from ..space import fill, names

_NAMES = "calculate_gain orthogonal_ trunc_normal_ uniform_ normal_ constant_ ones_ zeros_ xavier_uniform_ "
_NAMES += "xavier_normal_ kaiming_uniform_ kaiming_normal_"
_TABLE = names("nn.init", _NAMES)
for _old in ("uniform", "normal", "constant", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"):
    _TABLE[_old] = f"nn.init.{_old}_"  # PyTorch's names before version 0.4
fill(globals(), "torch.nn.init", _TABLE)
