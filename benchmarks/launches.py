"""The microseconds of Python that a launch costs: `python -m benchmarks.launches`.

On the stand-in for a GPU, with kernels and products by cuBLAS that do nothing. "Launch" is `Kernels.launch` alone, for
the kernels of an op, and of a pointwise op `Plan.run`, which makes its results, too; "op" is all of the op, per launch,
with what the stand-in takes for the arrays that it makes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import tinymp as mp
from tinymp import ops
from tinymp.gpu.elementwise import Plan
from tinymp.gpu.kernels import Kernels

from .machine import device

ROUNDS, CALLS = 7, 200


def microseconds(call: Callable[[], Any]) -> float:
    """Of one call, on the processor: the least mean of several rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(CALLS):
            call()
        times.append((time.process_time() - start) / CALLS)
    return 1e6 * min(times)


def steps() -> dict[str, Callable[[], Any]]:
    """Forward passes, and forward with backward, of the ops whose launches are most of a training step."""

    def tensor(*shape: int) -> mp.Tensor:
        return mp.tensor(np.ones(shape, "float16"), requires_grad=True)

    image, weight, scale = tensor(8, 8, 4, 4), tensor(8, 8, 3, 3), tensor(8)
    statistics = [mp.tensor(np.ones(8, "float32")) for _ in range(2)]
    rows, logits, labels = tensor(16, 64), tensor(16, 64), mp.tensor(np.zeros(16, "int64"))
    row_scale = tensor(64)

    def backward(loss: Callable[[], mp.Tensor]) -> Callable[[], None]:
        def step() -> None:
            y = loss()
            y.backward(y.array)

        return step

    forward = {
        "relu": lambda: ops.relu(image),
        "add": lambda: ops.add(image, image),
        "conv2d": lambda: ops.conv2d(image, weight, padding=1),
        "batch_norm": lambda: ops.batch_norm(image, *statistics, scale, scale, training=True),
        "layer_norm": lambda: ops.layer_norm(rows, 64, row_scale, row_scale),
        "cross_entropy": lambda: ops.cross_entropy(logits, labels),
        "max_pool2d": lambda: ops.max_pool2d(image, 2),
    }
    return forward | {f"{name}, backward": backward(step) for name, step in forward.items()}


def measure(step: Callable[[], Any]) -> tuple[int, float, float]:
    """The launches of a step, and the microseconds of one: of the launch alone, and of the whole op."""
    seen: list[Callable[[], Any]] = []

    def noted(launch: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            seen.append(partial(launch, *args, **options))
            return launch(*args, **options)

        return call

    step()  # plans are made
    with (
        mock.patch.object(Kernels, "launch", noted(Kernels.launch)),
        mock.patch.object(Plan, "run", noted(Plan.run)),
    ):
        step()

    def again() -> None:
        for launch in seen:
            launch()

    return len(seen), microseconds(again) / len(seen), microseconds(step) / len(seen)


def nothing(*_: Any, **__: Any) -> None:
    """In place of a kernel."""


def main() -> None:
    with device("cuda-on-cpu"), mp.device("gpu"):
        function = sys.modules["cupy"].cuda.Function
        idle = mock.patch.object(sys.modules["tinymp.backend.gpu"], "call_cublas", nothing)
        with mock.patch.object(function, "__call__", nothing), idle:
            print(f"{'':28} launches  launch, us   op, us")
            for name, step in steps().items():
                count, alone, whole = measure(step)
                print(f"{name:28} {count:8} {alone:11.2f} {whole:8.1f}")


if __name__ == "__main__":
    main()
