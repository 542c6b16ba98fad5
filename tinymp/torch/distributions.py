"""torch.distributions: those of tinymp/nn/more/distributions.py."""

from .space import fill, names

_NAMES = "Bernoulli Categorical Distribution Normal kl_divergence"
fill(globals(), "torch.distributions", names("nn.more.distributions", _NAMES))
