"""torch.cuda.amp: the older place of `torch.amp`."""

from ..space import fill, names

fill(globals(), "torch.cuda.amp", names("torch.amp", "GradScaler autocast prepare"))
