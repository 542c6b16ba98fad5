"""Single ops on the CPU, forward and backward, in FP32 and FP16 storage, compared with PyTorch in FP32."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tinymp as mp

from .report import Report
from .worker import in_turn, ratio

TARGET = "<= 1.4"  # of the geometric mean of the ratios
PEER = "PyTorch FP32"
SIDES = PEER, "FP32", "FP16"


class Case(NamedTuple):
    """An op to time: run(f, *tensors) gives the result, where f has the functions of either library."""

    name: str
    arrays: tuple  # shapes of floating arguments, or (shape, high): integers below high
    run: Callable[..., Any]


IMAGES, ROWS, MILLION = (64, 64, 28, 28), (2048, 1000), (1024, 1024)


def _pointwise(name: str, *options: Any, shape: tuple = MILLION) -> Case:
    return Case(f"{name} of a million", (shape,), lambda f, x: getattr(f, name)(x, *options))


CASES = [
    Case("add", (MILLION, MILLION), lambda f, x, y: f.add(x, y)),
    Case("add, broadcast row", (MILLION, (1024,)), lambda f, x, y: f.add(x, y)),
    Case("mul", (MILLION, MILLION), lambda f, x, y: f.mul(x, y)),
    Case("mul, broadcast row", (MILLION, (1024,)), lambda f, x, y: f.mul(x, y)),
    Case("mul, broadcast column", (MILLION, (1024, 1)), lambda f, x, y: f.mul(x, y)),
    Case("div", (MILLION, MILLION), lambda f, x, y: f.div(x, y)),
    Case("maximum", (MILLION, MILLION), lambda f, x, y: f.maximum(x, y)),
    Case("clamp", (MILLION,), lambda f, x: f.clamp(x, min=-1.0, max=1.0)),
    *map(_pointwise, ("exp", "tanh", "sigmoid", "relu", "leaky_relu", "gelu", "silu", "elu", "softplus", "mish")),
    _pointwise("hardswish"),
    _pointwise("square"),
    Case("abs, sqrt", (MILLION,), lambda f, x: f.sqrt(f.abs(x))),
    Case("sum over rows", (MILLION,), lambda f, x: f.sum(x, 0)),
    Case("sum over columns", (MILLION,), lambda f, x: f.sum(x, 1)),
    Case("mean of all", (MILLION,), lambda f, x: f.mean(x)),
    Case("var over columns", (MILLION,), lambda f, x: f.var(x, 1)),
    Case("amax over columns", (MILLION,), lambda f, x: f.amax(x, 1)),
    Case("cumsum", (MILLION,), lambda f, x: f.cumsum(x, 1)),
    Case("norm", (MILLION,), lambda f, x: f.norm(x)),
    Case("softmax 2048 x 1000", (ROWS,), lambda f, x: f.softmax(x, -1)),
    Case("log_softmax 2048 x 1000", (ROWS,), lambda f, x: f.log_softmax(x, -1)),
    Case("layer_norm 2048 x 512", ((2048, 512), (512,), (512,)), lambda f, x, w, b: f.layer_norm(x, (512,), w, b)),
    Case("group_norm", (IMAGES, (64,), (64,)), lambda f, x, w, b: f.group_norm(x, 8, w, b)),
    Case("batch_norm", (IMAGES, (64,), (64,)), lambda f, x, w, b: f.batch_norm(x, None, None, w, b, training=True)),
    Case("normalize", (ROWS,), lambda f, x: f.normalize(x, dim=1)),
    Case("matmul 1024", (MILLION, MILLION), lambda f, x, y: f.matmul(x, y)),
    Case("linear 512 x 1024", ((512, 1024), MILLION, (1024,)), lambda f, x, w, b: f.linear(x, w, b)),
    Case("bmm 64 x 128", ((64, 128, 128), (64, 128, 128)), lambda f, x, y: f.bmm(x, y)),
    Case(
        "scaled_dot_product_attention",
        ((8, 8, 128, 64),) * 3,
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v),
    ),
    Case("conv2d 3x3, 64 to 64", (IMAGES, (64, 64, 3, 3)), lambda f, x, w: f.conv2d(x, w, padding=1)),
    Case("conv2d 1x1, 64 to 128", (IMAGES, (128, 64, 1, 1)), lambda f, x, w: f.conv2d(x, w)),
    Case("conv2d 4x4, stride 2", ((32, 48, 32, 32), (96, 48, 4, 4)), lambda f, x, w: f.conv2d(x, w, None, 2, 1)),
    Case("conv2d depthwise 3x3", (IMAGES, (64, 1, 3, 3)), lambda f, x, w: f.conv2d(x, w, padding=1, groups=64)),
    Case("conv2d 3x3, one image 512", ((1, 3, 512, 512), (32, 3, 3, 3)), lambda f, x, w: f.conv2d(x, w, padding=1)),
    Case(
        "conv_transpose2d 4x4, stride 2",
        ((32, 96, 16, 16), (96, 48, 4, 4)),
        lambda f, x, w: f.conv_transpose2d(x, w, None, 2, 1),
    ),
    Case("max_pool2d 2/2", (IMAGES,), lambda f, x: f.max_pool2d(x, 2)),
    Case("max_pool2d 3/2", (IMAGES,), lambda f, x: f.max_pool2d(x, 3, 2, 1)),
    Case("avg_pool2d 2/2", (IMAGES,), lambda f, x: f.avg_pool2d(x, 2)),
    Case("adaptive_avg_pool2d 7", (IMAGES,), lambda f, x: f.adaptive_avg_pool2d(x, 7)),
    Case(
        "interpolate bilinear",
        ((16, 32, 28, 28),),
        lambda f, x: f.interpolate(x, scale_factor=2, mode="bilinear"),
    ),
    Case("interpolate nearest", ((16, 32, 28, 28),), lambda f, x: f.interpolate(x, scale_factor=2)),
    Case("pad", (IMAGES,), lambda f, x: f.pad(x, (1, 1, 1, 1))),
    Case("permute, a copy", (IMAGES,), lambda f, x: f.permute(x, (0, 2, 3, 1)).contiguous()),
    Case("cat", (MILLION, MILLION), lambda f, x, y: f.cat([x, y], 1)),
    Case("embedding", (((4096,), 8192), (8192, 256)), lambda f, i, w: f.embedding(i, w)),
    Case("index_select", (MILLION, ((1024,), 1024)), lambda f, x, i: f.index_select(x, 0, i)),
    Case("gather", (MILLION, (MILLION, 1024)), lambda f, x, i: f.gather(x, 1, i)),
    Case("dropout", (MILLION,), lambda f, x: f.dropout(x, 0.5)),
    Case("cross_entropy 2048 x 1000", (ROWS, ((2048,), 1000)), lambda f, x, t: f.cross_entropy(x, t)),
    Case("mse_loss", (MILLION, MILLION), lambda f, x, y: f.mse_loss(x, y)),
    Case(
        "binary_cross_entropy_with_logits",
        (MILLION, MILLION),
        lambda f, x, y: f.binary_cross_entropy_with_logits(x, f.sigmoid(y).detach()),
    ),
]


class _Torch:
    """PyTorch's functions under one roof."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.nn.functional, name, None) or getattr(torch, name)


def both_ways(index: int, side: str) -> Callable[[], None]:
    """A case, forward and backward: in PyTorch, or in tinymp with FP32 or FP16 storage."""
    case, rng = CASES[index], np.random.default_rng(0)
    arrays = [
        rng.integers(0, a[1], a[0]) if a and isinstance(a[0], tuple) else rng.standard_normal(a, np.float32)
        for a in case.arrays
    ]
    if side == PEER:
        import torch

        f: Any = _Torch()
        leaves: list[Any] = [torch.from_numpy(a) for a in arrays]
    else:
        f, half = mp.ops, side == "FP16"
        leaves = [mp.tensor(a.astype("float16") if half and a.dtype.kind == "f" else a) for a in arrays]
    for leaf, a in zip(leaves, arrays):
        leaf.requires_grad_(a.dtype.kind == "f")
    dy = case.run(f, *leaves).detach()

    def call() -> None:
        y = case.run(f, *leaves)
        y.backward(dy) if y.ndim else y.backward()
        for leaf in leaves:
            leaf.grad = None

    return call


def table(report: Report, rounds: int, cases: int | None = None) -> list[dict[str, Any]]:
    """A row for each of so many cases (all by default), the worst first."""
    rows: list[dict[str, Any]] = []
    for i, case in enumerate(CASES[:cases]):
        times = in_turn({side: (both_ways, i, side) for side in SIDES}, rounds, seconds=0.06)
        ratios = {f"{side} / {PEER}": ratio(times, side, PEER) for side in ("FP32", "FP16")}
        rows.append({"op": case.name, "ms": {s: 1000 * statistics.median(t) for s, t in times.items()}, **ratios})
    rows.sort(key=lambda row: -row[f"FP16 / {PEER}"])
    report.head("single ops, forward and backward, the worst first")
    for row in rows:
        for side in ("FP32", "FP16"):
            report.add(f"{row['op']}, {side}", row["ms"][side], "ms", peer=row["ms"][PEER])
    for side in ("FP32", "FP16"):
        mean = statistics.geometric_mean([row[f"{side} / {PEER}"] for row in rows])
        report.add(f"geometric mean of {len(rows)} ops, {side} / {PEER}", mean, "x", TARGET)
    return rows
