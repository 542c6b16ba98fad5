"""Who says that a process was killed. MPICH's mpiexec ends all others as soon as one is gone, by SIGKILL, and then may
name any of them; so each process that it has started hands its work to a child and stays, to say how that ended.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress

from .group import FORWARD

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent has ended
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2) if os.name == "posix" else ()


def guard() -> None:
    """Go on in a child of this process, which itself waits for its end, says so if a signal was the reason, and ends.

    Nothing happens where it could do harm or is not needed: when MPI, CuPy or a thread runs already, which a child
    would not have, and under starters without PMI_FD (Open MPI and torchrun, which name a process that was killed).
    """
    used = "mpi4py.MPI" in sys.modules or "cupy" in sys.modules or threading.active_count() > 1
    if used or "PMI_FD" not in os.environ or not sys.platform.startswith("linux"):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():  # of a fork beside threads: BLAS's own, which are made for it
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before
            os._exit(1)
        return

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        rank, size = os.environ.get("PMI_RANK", "?"), os.environ.get("PMI_SIZE", "?")
        sys.stderr.write(
            f"parallel: rank {rank} of {size} (process {child} on {platform.node()}) was ended by "
            f"{signal.Signals(-code).name}, and so all end\n"
        )
        sys.stderr.flush()
        time.sleep(FORWARD)
    os._exit(code if code >= 0 else 128 - code)
