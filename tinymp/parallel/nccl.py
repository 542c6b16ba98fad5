"""Groups over NCCL (CuPy's binding), for processes with a GPU each. No process waits on the host for what is sent."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from threading import Thread
from typing import Any

from ..autograd import Array
from ..backend import gpu
from ..backend.extras import hint
from ..gpu.recording import capturing
from .group import FORWARD, Group, Pending

LOOK = 1.0  # seconds between two looks at what is under way


class OnStream(Pending):
    """What a stream sends. The stream of the program waits for it."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        gpu.xp.cuda.get_current_stream().wait_event(self.event)


class NCCLGroup(Group):
    """See `Group`. The processes find each other over MPI, or over TCP where torchrun has started them.

    What is sent has a stream of its own, beside the program's. A thread looks whether it arrives in time; if it does
    not, this process says so and ends, and with it, by what started them, all others. Replays of a graph go unwatched.
    """

    device = "gpu"

    def __init__(self, timeout: float, torchrun: bool) -> None:
        super().__init__()
        self.timeout = timeout
        cuda = gpu.xp.cuda
        try:
            from cupyx.distributed import init_process_group

            if not torchrun:
                from mpi4py import MPI
        except ImportError as error:
            raise ImportError(
                f"parallel: several GPUs need NCCL, and mpi4py unless torchrun starts the program ({error}): "
                f"{hint('parallel')} nvidia-nccl-cu13"
            ) from None
        where: dict[str, Any] = {"use_mpi": True}
        self.world: Any = None
        if torchrun:
            self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
            # torchrun itself listens at MASTER_PORT
            port = int(os.environ.get("MASTER_PORT", 29500)) + 1
            where = {"host": os.environ.get("MASTER_ADDR", "127.0.0.1"), "port": port}
        else:
            self.world = MPI.COMM_WORLD
            self.rank, self.size = self.world.rank, self.world.size
            near = self.world.Split_type(MPI.COMM_TYPE_SHARED)
            self.local_rank = near.rank
            near.Free()
        if self.local_rank >= (count := cuda.runtime.getDeviceCount()):
            raise RuntimeError(
                f"parallel: expected a GPU for every process, got process {self.local_rank} of a machine with {count}: "
                "start as many processes as it has GPUs"
            )
        cuda.Device(self.local_rank).use()
        self.engine = init_process_group(self.size, self.rank, backend="nccl", **where)
        self.stream = cuda.Stream(non_blocking=True)
        self.under_way: deque = deque()  # (event, what, when it has to be done)
        self.open = True
        self.thread = Thread(target=self._look, name="tinymp.parallel", daemon=True)
        self.thread.start()

    def start(self, what: str, x: Array, *how: Any) -> Pending:
        self.stream.wait_event(gpu.xp.cuda.get_current_stream().record())
        if what == "all_reduce":
            self.engine.all_reduce(x, x, *how, stream=self.stream)
        elif what == "broadcast":
            self.engine.broadcast(_bytes(x), *how, stream=self.stream)
        elif what == "all_gather":
            own = _bytes(x[self.rank])
            self.engine.all_gather(own, _bytes(x), own.size, stream=self.stream)
        else:  # a barrier: on the stream, so that the host waits below
            self.engine.all_reduce(x, x, stream=self.stream)
        event = self.stream.record()
        if not capturing():  # a captured event is never done, and to ask for it ends the capture
            self.under_way.append((event, f"{what} of {x.dtype} {x.shape}", time.monotonic() + self.timeout))
        return OnStream(event)

    def _look(self) -> None:
        gpu.xp.cuda.Device(self.local_rank).use()
        while self.open:
            while self.under_way and self.under_way[0][0].done:
                self.under_way.popleft()
            if self.under_way and time.monotonic() > self.under_way[0][2]:
                print(
                    f"parallel: rank {self.rank} of {self.size} has waited for {self.timeout:g} s at "
                    f"{self.under_way[0][1]}: another process hangs, has ended, or computes for longer than that (then "
                    "give init a larger timeout)",
                    file=sys.stderr,
                    flush=True,
                )
                time.sleep(FORWARD)
                self.abort(1)
            time.sleep(LOOK)

    def abort(self, code: int) -> None:
        if self.world is not None:
            self.world.Abort(code)
        os._exit(code or 1)  # 0 would not end the others, which torchrun has started

    def close(self, failed: bool = False) -> None:
        if not failed:
            self.barrier()
            gpu.synchronize()
        self.open = False
        self.thread.join()


def _bytes(x: Array) -> Array:
    """x as NCCL takes every dtype where nothing is computed."""
    return x.reshape(-1).view("uint8")
