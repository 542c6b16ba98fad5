"""The group that a process was started in."""

from __future__ import annotations

import os

from ..arguments import choice, number
from .group import Group

# What starters say of the processes that they start: MPICH and Slurm's PMI, Open MPI, PMIx; torchrun
STARTED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK")


def init(device: str = "cpu", timeout: float = 300.0) -> Group:
    """The group that this process was started in; alone, a group of one.

    device   "cpu": MPI (mpi4py), for programs that mpiexec, or Slurm's srun with PMI, started. "gpu": NCCL, one process
             per GPU, also with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). This
             process's GPU is then in use, and BLAS has this process's share of the machine's cores
    timeout  seconds that a call waits for the other processes

    ImportError without the extra `parallel`; RuntimeError where what started the program and the engine do not fit.
    """
    choice("init", "device", device, ("cpu", "gpu"))
    timeout = number("init", "timeout", timeout, 0, above=True)
    tasks = int(os.environ.get("SLURM_NTASKS", 1)) if "SLURM_PROCID" in os.environ else 1
    by_mpi, by_torchrun = any(name in os.environ for name in STARTED), {"RANK", "WORLD_SIZE"} <= os.environ.keys()
    if not by_mpi and not by_torchrun and tasks == 1:
        return Group()
    if device == "gpu":
        from .nccl import NCCLGroup

        return NCCLGroup(timeout, torchrun=not by_mpi and by_torchrun)
    if not by_mpi and by_torchrun:
        raise RuntimeError(
            "expected mpiexec to start processes that train on CPUs, got the variables RANK and "
            "WORLD_SIZE of torchrun: run `mpiexec -n 4 python ...`"
        )
    from .mpi import MPIGroup

    group = MPIGroup(timeout)
    if group.size == 1 and tasks > 1:
        raise RuntimeError(
            f"Slurm has started {tasks} tasks, but MPI sees one: run srun with --mpi=pmi2 or "
            "--mpi=pmix, whichever this MPI was built for, or mpiexec within an allocation"
        )
    return group
