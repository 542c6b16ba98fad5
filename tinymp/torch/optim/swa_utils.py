"""torch.optim.swa_utils: averages of weights."""

from ..space import fill, names

fill(globals(), "torch.optim.swa_utils", names("optim", "AveragedModel SWALR get_ema_avg_fn get_swa_avg_fn update_bn"))
