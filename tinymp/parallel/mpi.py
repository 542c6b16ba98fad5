"""Groups over MPI (mpi4py), for processes on CPUs."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from .. import dtypes
from ..autograd import Array
from ..backend.extras import hint
from ..precision import store, widen
from .group import Group, Pending

BLOCK = 1 << 15  # numbers whose FP32 values stay in a core's cache


def limit_threads(most: int) -> None:
    """Let OpenBLAS, as NumPy's wheels bring it, use no more threads than this."""
    with suppress(AttributeError, OSError):  # another BLAS
        library = ctypes.CDLL(sys.modules["numpy._core._multiarray_umath"].__file__)
        library.scipy_openblas_set_num_threads64_(min(library.scipy_openblas_get_num_threads64_(), most))


def _add_fp16(a: Any, b: Any, _: Any) -> None:
    """b = a + b, rounded once. MPI's own sum of halves, where it has one, takes ten times as long."""
    xs, ys = np.frombuffer(a, dtypes.float16), np.frombuffer(b, dtypes.float16)
    for i in range(0, len(xs), BLOCK):
        x, y = xs[i : i + BLOCK], ys[i : i + BLOCK]
        y[...] = store(widen(x) + widen(y), like=y)


class Job(Pending):
    """Tasks that a thread does one after another while the program goes on."""

    def __init__(self, group: MPIGroup, what: str, do: Callable[[], Any]) -> None:
        self.group, self.what, self.do = group, what, do
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        began = time.perf_counter()
        try:
            self.do()
        except BaseException as error:
            self.error = error
        self.group.seconds += time.perf_counter() - began
        self.done.set()

    def wait(self) -> None:
        if not self.done.wait(self.group.timeout):
            raise RuntimeError(
                f"parallel: rank {self.group.rank} has waited for {self.group.timeout:g} s at {self.what}: another "
                "process calls something else, hangs, has ended, or computes for longer than that (then give init a "
                "larger timeout)"
            )
        if self.error is not None:
            raise self.error


class MPIGroup(Group):
    """See `Group`. One thread makes all calls of MPI that wait for others, in their order: so the program computes
    meanwhile, and does not wait for ever. seconds: that this thread has spent in them.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__()
        try:
            from mpi4py import MPI
        except ImportError:
            raise ImportError(f"parallel: several processes need mpi4py and an MPI: {hint('parallel')}") from None
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeError("parallel: expected an MPI that several threads may call (MPI_THREAD_MULTIPLE)")
        self.MPI, self.timeout, self.seconds = MPI, timeout, 0.0
        world = MPI.COMM_WORLD
        self.rank, self.size = world.rank, world.size
        self.comm = world.Dup()
        near = world.Split_type(MPI.COMM_TYPE_SHARED)
        if "OPENBLAS_NUM_THREADS" not in os.environ:
            limit_threads(max(len(os.sched_getaffinity(0)) // near.size, 1))
        near.Free()
        self.half = MPI.BYTE.Create_contiguous(2).Commit()
        self.add_fp16 = MPI.Op.Create(_add_fp16, commute=True)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="tinymp.parallel", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while job := self.jobs.get():
            job.run()

    def start(self, what: str, x: Array, *how: Any) -> Pending:
        job = Job(self, f"{what} of {x.dtype} {x.shape}", getattr(self, f"_{what}")(x, *how))
        self.jobs.put(job)
        return job

    def _all_reduce(self, x: Array, how: str) -> Callable[[], Any]:
        if x.dtype == dtypes.float16 and how == "sum":
            return lambda: self.comm.Allreduce(self.MPI.IN_PLACE, [x, x.size, self.half], self.add_fp16)
        op = {"sum": self.MPI.SUM, "min": self.MPI.MIN, "max": self.MPI.MAX}[how]
        return lambda: self.comm.Allreduce(self.MPI.IN_PLACE, x, op)

    def _broadcast(self, x: Array) -> Callable[[], Any]:
        return lambda: self.comm.Bcast([x, x.nbytes, self.MPI.BYTE])

    def _all_gather(self, x: Array) -> Callable[[], Any]:
        return lambda: self.comm.Allgather(self.MPI.IN_PLACE, [x, x.nbytes // self.size, self.MPI.BYTE])

    def _barrier(self, x: Array) -> Callable[[], Any]:
        return self.comm.Barrier

    def abort(self, code: int) -> None:
        self.MPI.COMM_WORLD.Abort(code)

    def close(self, failed: bool = False) -> None:
        if not failed:
            self.barrier()
        self.jobs.put(None)
        self.thread.join()
        self.add_fp16.Free()
        self.half.Free()
