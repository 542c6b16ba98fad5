"""OpenBLAS, with which NumPy multiplies matrices: its kernels, and the waiting of its threads. Both are fixed when
NumPy loads OpenBLAS. Before that tinymp/__init__.py sets them:

- Kernels. OpenBLAS's releases up to 0.3.31 do not know AMD's CPUs from Zen 5 on, and use the kernels for AVX2
  ("Haswell") although these CPUs have AVX-512: half the speed. FP32 sums then add their terms in another order.
- Waiting. After each product OpenBLAS's threads spin for 2^26 cycles (25 ms), each using a full core: other work takes
  up to twice as long (measured: 31 and 71 ms for the same convolution). 2^20 cycles are enough for products that follow
  each other, as in an LSTM.

Your own OPENBLAS_CORETYPE and OPENBLAS_THREAD_TIMEOUT stay; TINYMP_BLAS=0 leaves OpenBLAS alone.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Mapping

OFF, CORE, TIMEOUT = "TINYMP_BLAS", "OPENBLAS_CORETYPE", "OPENBLAS_THREAD_TIMEOUT"
RIGHT, LESSER = "SkylakeX", ("Haswell", "Zen")  # kernels by their names: for AVX-512, and for AVX2
NEEDED = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}  # used by the right ones
ZEN_5 = 26  # AMD's number of that family; OpenBLAS does not know later ones either


def settings(cpu: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings for the environment before OpenBLAS is loaded. cpu: the text of /proc/cpuinfo."""
    if environment.get(OFF) == "0":
        return {}
    facts = _facts(cpu)
    family = " ".join(facts.get("cpu family", []))
    unknown = facts.get("vendor_id") == ["AuthenticAMD"] and family.isdigit() and int(family) >= ZEN_5
    wanted = {TIMEOUT: "20"}
    if unknown and set(facts.get("flags", ())) >= NEEDED:
        wanted[CORE] = RIGHT
    return {name: value for name, value in wanted.items() if name not in environment}


def load_numpy() -> None:
    """Load NumPy with these settings, then restore the environment: other programs decide for themselves."""
    if "numpy" in sys.modules:
        return
    wanted = settings(cpu(), os.environ)
    os.environ.update(wanted)
    try:
        import numpy  # noqa: F401
    finally:
        for name in wanted:
            del os.environ[name]


def describe() -> str:
    """The library behind NumPy's products, its kernels and threads, and one line about lost speed, if any."""
    from ...backend.extras import hint

    try:
        import threadpoolctl
    except ModuleNotFoundError:
        return f"unknown ({hint('fast')} to see it)"
    found = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
    if not found:
        return "unknown"
    library = next((one for one in found if "numpy" in one["filepath"]), found[0])  # SciPy brings one of its own
    kernels, threads = library.get("architecture") or "unknown", library["num_threads"]
    text = f"{library['internal_api']} {library['version']}, kernels {kernels}, {threads} thread{'s' * (threads != 1)}"
    lost = [] if library["internal_api"] != "openblas" else complaints(kernels, cpu(), os.environ)
    return "; ".join([text, *lost])


def complaints(kernels: str, cpu: str, environment: Mapping[str, str]) -> list[str]:
    """Complaints about kernels too slow for this CPU, or NumPy loaded before tinymp, each with its cure."""
    lost, wanted = [], settings(cpu, environment)
    if kernels in LESSER and set(_facts(cpu).get("flags", ())) >= NEEDED:
        if CORE in environment:
            cure = f"{CORE}={environment[CORE]} is set in the environment: unset it"
        elif environment.get(OFF) == "0":
            cure = f"{OFF}=0 is set: unset it"
        elif CORE in wanted:
            cure = "import tinymp before NumPy"
        else:
            cure = f"set {CORE}={RIGHT} before Python starts"
        lost.append(f"this CPU has AVX-512, with which products take about half the time: {cure}")
    elif too_late and wanted:
        lost.append("its threads wait 25 ms for the next product, which slows the rest: import tinymp before NumPy")
    return lost


def cpu() -> str:
    """Linux's description of the CPUs; empty elsewhere."""
    try:
        return pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _facts(cpu: str) -> dict[str, list[str]]:
    """The entries of the first CPU, by their names, in words."""
    lines = [line.partition(":") for line in cpu.split("\n\n", 1)[0].splitlines()]
    return {name.strip(): value.split() for name, _, value in lines}


too_late = "numpy" in sys.modules
