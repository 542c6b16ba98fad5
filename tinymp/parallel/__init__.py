"""Training in several processes: on the cores of one machine, on many machines (MPI), on many GPUs (NCCL)."""

from ..arguments import name_all as _name_all
from .gradients import DistributedDataParallel
from .group import Group
from .norm import SyncBatchNorm
from .start import init

__all__ = ["DistributedDataParallel", "Group", "SyncBatchNorm", "init"]

_name_all(globals())
