"""What each kernel may cost, counted by the interpreter in the tests of selected.txt: a dearer kernel fails a test.

`python -m ptx.costs`, in tests/, writes limits.txt: a tenth more than each kernel costs now. It takes two minutes, and
some more where the compiler's results are not there yet.
"""

from __future__ import annotations

import pathlib
from collections import Counter

from gpu import test_nvrtc
from tinymp.gpu import kernels

from . import nvrtc, select

FILE = pathlib.Path(__file__).with_name("limits.txt")
ARCHITECTURE = "90"  # the sources are the same text for 80, and what differs for 70 is not launched there
MORE = 1.1  # times what a kernel costs when limits.txt is written
COSTS = ("instructions", "bytes", "sectors", "conflicts", "registers")
HEAD = """\
# A kernel costs at most, with any storage: {costs}.
# Instructions of warps and bytes read and written are per element of a launch's largest array, sectors of 32 bytes for
# each that the bytes fill (1: coalesced), conflicts per access of a warp to shared memory, registers per thread.
"""


def counted(rows: dict[str, select.Row]) -> dict[str, dict[str, float]]:
    """{"kernel storage": costs} of all tests together; `registers` adds theirs."""
    total: dict[str, Counter] = {}
    for _, ran in rows.values():
        for name, counts in ran.items():
            total.setdefault(name, Counter()).update(counts)
    found = {}
    for name, c in sorted(total.items()):
        moved = c["load bytes"] + c["store bytes"]
        found[name] = {"instructions": c["instructions"] / c["elements"], "bytes": moved / c["elements"]}
        found[name]["sectors"] = 32 * (c["load sectors"] + c["store sectors"]) / moved if moved else 0.0
        found[name]["conflicts"] = c["bank conflicts"] / c["shared accesses"] if c["shared accesses"] else 0.0
    return found


def limits() -> dict[str, dict[str, float]]:
    """{kernel: costs}, of limits.txt."""
    lines = (line.split() for line in FILE.read_text().splitlines() if not line.startswith("#"))
    return {name: dict(zip(COSTS, map(float, values))) for name, *values in lines}


def dearer(found: dict[str, dict[str, float]]) -> list[str]:
    """A sentence for every cost beyond its limit, and for every kernel that has none."""
    known = limits()
    said = []
    for name, costs in found.items():
        limit = known.get(name.partition(" ")[0])
        if limit is None:
            said.append(f"{name}: has no limit")
            continue
        said += [f"{name}: {costs[c]:.3g} {c}, at most {limit[c]}" for c in COSTS if costs[c] > limit[c]]
    return said


def registers(architecture: str, found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The same costs with "registers" per thread, from the assembler."""
    known, takes = select.known(), {}
    files = {path.stem: path for path in test_nvrtc.FILES.values()}
    for stem, storage in sorted({(known[name.partition(" ")[0]], name.partition(" ")[2]) for name in found}):
        code = kernels.source(files[stem])
        log = nvrtc.compiled(code, storage, nvrtc.stand_in(code, storage, architecture)).log
        takes |= {f"{name} {storage}": kernel.registers for name, kernel in test_nvrtc.used(log).items()}
    return {name: costs | {"registers": takes[name]} for name, costs in found.items()}


def main() -> None:
    done, rows = select.run(ARCHITECTURE, *select.selected())
    if done.returncode:
        raise SystemExit(done.stdout[-3000:])
    most: dict[str, dict[str, float]] = {}
    for name, costs in registers(ARCHITECTURE, counted(rows)).items():
        own = most.setdefault(name.partition(" ")[0], dict.fromkeys(COSTS, 0))
        own.update({c: max(own[c], MORE * costs[c]) for c in COSTS})
    lines = (" ".join([name, *(f"{own[c]:.3g}" for c in COSTS)]) for name, own in sorted(most.items()))
    FILE.write_text(HEAD.format(costs=", ".join(COSTS)) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
