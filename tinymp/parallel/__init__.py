"""Training in several processes (MPI): on the cores of one machine, or on many machines."""

from ..arguments import name_all as _name_all
from .gradients import DistributedDataParallel
from .group import Group
from .start import init

__all__ = ["DistributedDataParallel", "Group", "init"]

_name_all(globals())
