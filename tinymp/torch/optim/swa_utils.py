"""torch.optim.swa_utils: averages of weights."""

from ..space import fill, names

_TABLE = names("nn", "AveragedModel get_ema_avg_fn get_swa_avg_fn update_bn") | names("optim", "SWALR")
fill(globals(), "torch.optim.swa_utils", _TABLE)
