"""Values, gradients and roundings, in every dtype, against PyTorch in FP64: a line per op."""

import re

import numpy as np
import pytest

from oracle import check, distinct, randn
from tinymp import ops

torch = pytest.importorskip("torch")


class Theirs:
    def __getattr__(self, name):
        return getattr(torch.nn.functional, name, None) or getattr(torch, name)


A, B = distinct(4, 6, step=0.3), distinct(4, 6, seed=1, step=0.3)
INPUTS = {  # integers and truths have no gradient
    "a": A,
    "b": B,
    "p": 0.5 + np.abs(B),
    "small": distinct(6, 8, step=0.03),
    "near_1": 1 + 0.3 * randn(2, 8, 3),
    "kinks": distinct(6, 40, step=0.0703125),  # none at -3, 0, 3 or 6
    "scalar": np.array(0.3),
    "none": np.empty((0, 3)),
    "three": distinct(2, 4, 6, step=0.25),
    "signal": distinct(2, 6, 11),
    "image": distinct(2, 4, 7, 5),
    "volume": randn(1, 2, 2, 3, 4),
    "kernel1": randn(6, 3, 3, seed=1),
    "kernel1t": randn(6, 2, 3, seed=1),
    "w": randn(4, seed=2),
    "w6": randn(6, seed=3),
    "v": randn(4, 6, seed=3),
    "table": distinct(7, 4),
    "f": randn(7, seed=1),
    "rows": np.array([[1, 2, 1], [6, 0, 6]]),
    "flat": np.array([1, 2, 1, 6, 0, 3, 3]),
    "offsets": np.array([0, 3, 3, 6]),
    "index": np.array([[2, 0, 3], [1, 3, 0]]),
    "into": randn(2, 5),
    "places": np.array([0, 3, 3, 1, 0]),
    "more": randn(5, 6, seed=1),
}
# The options of oracle.check, and calls of one op each, of o (tinymp.ops or PyTorch's functions)
CASES = [
    ({"magnitude": 200.0}, """
        o.remainder(a, p) | o.fmod(a, p) | o.floor_divide(a, p) | o.atan2(a, b) | o.lerp(a, b, p) | o.lerp(a, b, 0.3)
        o.addcmul(a, b, p, value=0.5) | o.addcdiv(a, b, p, value=0.5) | o.mv(a, b[0]) | o.outer(a[0], b[1])
        o.addmm(a[0, :4], a, b.T, beta=0.5, alpha=2) | o.diff(a, 1, 0, b, b[:1]) | o.diff(a, 0, 0, b[:1])
        o.cdist(a, b) | o.pairwise_distance(a, b) | o.cosine_similarity(a, b) | o.addmm(a[:, :4], a, b.T, beta=0)"""),
    ({}, """
        o.erf(kinks) | o.log1p(small) | o.expm1(small) | o.tan(small) | o.atan(kinks) | o.asin(small) | o.acos(small)
        o.sinh(small) | o.cosh(small) | o.log2(p) | o.log10(p) | o.softsign(kinks) | o.selu(small) | o.celu(small, 3.0)
        o.hardsigmoid(kinks) | o.relu6(kinks) | o.hardswish(kinks) | o.hardswish(none) | o.mish(kinks) | o.mish(scalar)
        o.threshold(kinks, 0.2, -2.5) | o.prelu(three, w) | o.prelu(three, w[:1]) | o.prelu(scalar, w[0])
        o.floor(a) | o.ceil(a) | o.round(a) | o.trunc(a) | o.log_softmax(a, 1) | o.log_softmax(three, -2) | o.erf(none)
        o.max_pool1d(signal, 3, 2, 1) | o.max_pool1d(signal, 3, 3, ceil_mode=True) | o.avg_pool1d(signal, 4, 1, 2)
        o.avg_pool1d(signal, 3, 2, 1, False, False) | o.max_pool1d(signal[0], 3, 1, 0, 2) | o.norm(a)
        o.norm(a, 2, 0) | o.avg_pool2d(image, 4, 2, 1, True) | o.avg_pool2d(image, 2, 2, 0, True, False)
        o.adaptive_avg_pool1d(signal, 3) | o.adaptive_avg_pool1d(signal, 13) | o.norm(three, 3, (0, 2)) | o.norm(a, -1)
        o.norm(a, float("inf"), 1) | o.norm(a, float("-inf"), -1, True) | o.norm(three, 1.5) | o.norm(a, 0.5, 0)
        o.prod(near_1) | o.prod(near_1, 1, True) | o.cumprod(near_1, 1) | o.cumprod(near_1, -1)"""),
    ({"magnitude": 16.0, "grad_length": 1024}, """
        o.interpolate(image, (6, 8), mode="bilinear") | o.interpolate(image, 5, mode="bilinear", align_corners=True)
        o.interpolate(image, scale_factor=2.6, mode="bilinear") | o.interpolate(image, (6, 8), mode="bicubic")
        o.interpolate(image, scale_factor=2.6, mode="bicubic") | o.interpolate(signal, 6, mode="linear")
        o.interpolate(image, (1, 4), mode="bicubic", align_corners=True) | o.interpolate(volume, 5, mode="trilinear")
        o.conv1d(signal, kernel1, w6, stride=2, padding=2, dilation=2, groups=2) | o.conv1d(signal[0, :3], kernel1)
        o.conv_transpose1d(signal, kernel1t, w6[:4], 3, 2, 1, 2, 2) | o.conv_transpose1d(signal[0], kernel1t)
        o.group_norm(image, 2, w, w6[:4]) | o.group_norm(a, 2) | o.layer_norm(a, (6,), w6) | o.layer_norm(a, (4, 6), v)
        o.rms_norm(a, (6,), w6, 1e-3) | o.rms_norm(a, (4, 6)) | o.normalize(three, 1.0) | o.normalize(three, 3.0, -1)
        o.normalize(three, 1.5, 0)"""),
    ({"inherited": 4, "grad_length": 1024}, """
        o.instance_norm(image, weight=w, bias=w) | o.unfold(image, (3, 2), (1, 2), (1, 0))
        o.adaptive_max_pool2d(image, 3) | o.adaptive_max_pool2d(image, (9, 8)) | o.adaptive_max_pool2d(image[0], 2)
        o.local_response_norm(signal, 3, 0.5, 0.75, 2.0) | o.local_response_norm(signal, 4, 0.5, 0.6, 2.0)
        o.local_response_norm(signal, 9, 2.0) | o.interpolate(image, (2, 4), mode="area") | o.repeat_interleave(a, 2, 1)
        o.embedding_bag(rows, table, mode="sum") | o.embedding_bag(rows, table, padding_idx=6) | o.tile(a, (2, 1, 3))
        o.embedding_bag(rows, table, mode="max", padding_idx=6) | o.embedding_bag(flat, table, offsets, mode="max")
        o.embedding_bag(flat, table, offsets, padding_idx=6) | o.index_add(a, 0, places, more, alpha=-0.5)
        o.scatter_add(into, 1, index * 0 + 1, b[:2, :4]) | o.scatter_add(into, 0, index[:1] * 0, b[:2, :3])
        o.embedding_bag(flat, table, offsets, mode="sum", per_sample_weights=f)"""),
    ({"inherited": 2, "roundings": 2}, "o.glu(three, 0) | o.glu(three)"),
    ({"roundings": 0, "length": -4, "grad_length": 64}, """
        o.interpolate(image, scale_factor=(1, 0.5)) | o.interpolate(image, (123, 1)) | o.interpolate(signal, 6)
        o.interpolate(image, scale_factor=2.3) | o.interpolate(volume, scale_factor=(2, 1, 0.5)) | o.tril(a, -1)
        o.interpolate(image, (3, 8), mode="nearest-exact") | o.pixel_shuffle(image, 2) | o.triu(three, 2)
        o.sort(three, 0)[0] | o.sort(three, -1, descending=True)[0] | o.topk(a, 5, 1, False)[0] | o.topk(a, 2)[0]
        o.scatter(into, 1, index, b[:2, :3]) | o.scatter(into, 1, index[:1], b[:2, :4])
        o.scatter(into, 1, index, 0.5) | o.clip(a, -1, 1)
        o.index_fill(a, 1, places, 0.5) | o.index_fill(a, -2, places, 2)"""),
    ({"result": "float32", "roundings": 3, "magnitude": 100.0}, """
        o.kl_div(a, p, reduction="batchmean") | o.kl_div(a, b, reduction="sum", log_target=True)
        o.margin_ranking_loss(a, b, b.sign(), 0.3) | o.hinge_embedding_loss(a, b.sign(), 0.8, reduction="sum")
        o.soft_margin_loss(a, b.sign()) | o.cosine_embedding_loss(a, b, b[:, 0].sign(), 0.1)
        o.triplet_margin_loss(a, b, p, swap=True, reduction="none") | o.gaussian_nll_loss(a, b, p, True)"""),
]  # fmt: skip
ROWS = [(call, options) for options, text in CASES for call in re.split(r" \| |\n", text.strip())]


@pytest.mark.parametrize(("call", "options"), [(call.strip(), o) for call, o in ROWS])
def test_ops_are_those_of_pytorch(call, options):
    names = [name for name in INPUTS if re.search(rf"\b{name}\b(?!=)", call)]

    def of(o, inputs):
        return eval(call, {"o": o} | dict(zip(names, inputs, strict=True)))

    check(
        lambda *x: of(ops, x),
        lambda *x: of(Theirs(), map(torch.tensor, x)).numpy(),
        *[INPUTS[name] for name in names],
        **{"length": 64, "grad_length": 256} | options,
    )
