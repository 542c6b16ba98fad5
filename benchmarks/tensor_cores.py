"""Compare `mp.tensor_core` with all published results of GPUs: `python -m benchmarks.tensor_cores FOLDER [--out FILE]`.

FOLDER is `model_validation` of a clone of github.com/north-numerical-computing/MATLAB-tensor-core: 5,000 sums for each
GPU, format and result. Prints how many have other bits. (tests/study/tensor_cores.npz has 200 of each.)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import tinymp as mp
from benchmarks.machine import write

GPUS = {
    "V100": "volta",
    **dict.fromkeys(("A100", "A2"), "ampere"),
    **dict.fromkeys(("Ada", "L40S"), "ada"),
    **dict.fromkeys(("H100", "H200"), "hopper"),
    "B200": "blackwell",
}


def numbers(path: Path, base: int) -> np.ndarray:
    """FP32 numbers, given by their bits as text in this base: one row per line."""
    rows = [[int(word, base) for word in line.split()] for line in path.read_text().splitlines() if line.strip()]
    return np.array(rows, np.uint32).view(np.float32)


def compare(folder: Path, gpu: str, kind: str, result: str) -> dict[str, object]:
    """Count the sums in a folder for which `tensor_core` gives other bits."""
    a, b = (numbers(folder / f"{name}_{gpu}_{kind}.txt", 16) for name in "ab")
    c, d = (numbers(folder / f"{name}.txt", 2) for name in (f"c_{gpu}_fp32", f"d_{gpu}_{result}"))
    architecture = GPUS[gpu]
    if kind[0] == "E" and architecture == "hopper" and result == "fp32":
        c[...] = 0  # wgmma, to which no accumulator was given
    elif kind[0] == "E" and architecture in ("hopper", "blackwell"):
        architecture += "-mma"
    c = c.astype(result.replace("fp", "float"))
    found = mp.tensor_core(a[:, None], b[:, :, None], c[:, None], architecture, kind.lower(), result)
    other = found[:, :, 0].astype(np.float32).view(np.uint32) != d.view(np.uint32)
    return {
        **{"gpu": gpu, "architecture": architecture, "operands": kind.lower(), "accumulate": result},
        **{"tried": len(d), "differing": int(other.sum())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [
        compare(path.parent, gpu, path.parent.name, path.stem.rpartition("_")[2])
        for gpu in GPUS
        for path in sorted((options.folder / gpu).glob("*/d_*.txt"))
    ]
    for row in rows:
        print(*(str(value).ljust(15) for value in row.values()))
    print(f"{sum(row['differing'] for row in rows)} of {sum(row['tried'] for row in rows)} have other bits")
    if options.out:
        write(options.out, rows)


if __name__ == "__main__":
    main()
