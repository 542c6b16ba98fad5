"""torch.nn.parallel: DataParallel; DistributedDataParallel is tinymp.parallel's, which takes a group of processes."""

from ..space import fill

_TABLE = {"DataParallel": "torch.nn.DataParallel", "DistributedDataParallel": "parallel.DistributedDataParallel"}
fill(globals(), "torch.nn.parallel", _TABLE)
