"""The group that a process was started in."""

from __future__ import annotations

import os

from ..arguments import number
from .group import Group

# What starters say of the processes that they start: MPICH and Slurm's PMI, Open MPI, PMIx
STARTED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK")


def init(timeout: float = 300.0) -> Group:
    """The group that this process was started in, by mpiexec or Slurm's srun with PMI; alone, a group of one. BLAS has
    each one's share of the machine's cores. timeout: seconds that a call waits for the other processes.

    ImportError without the extra `parallel`; RuntimeError where what started the program and MPI do not fit.
    """
    timeout = number("init", "timeout", timeout, 0, above=True)
    tasks = int(os.environ.get("SLURM_NTASKS", 1)) if "SLURM_PROCID" in os.environ else 1
    by_mpi = any(name in os.environ for name in STARTED)
    if not by_mpi and {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        raise RuntimeError(
            "expected mpiexec to start the processes, got the variables RANK and WORLD_SIZE of torchrun: run "
            "`mpiexec -n 4 python ...`"
        )
    if not by_mpi and tasks == 1:
        return Group()
    from .mpi import MPIGroup

    group = MPIGroup(timeout)
    if group.size == 1 and tasks > 1:
        raise RuntimeError(
            f"Slurm has started {tasks} tasks, but MPI sees one: run srun with --mpi=pmi2 or "
            "--mpi=pmix, whichever this MPI was built for, or mpiexec within an allocation"
        )
    return group
