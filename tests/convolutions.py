"""Convolutions of every kind, to which the definition and its fast paths are held, and oracles of them."""

import numpy as np


def loops(x, w, b=None, stride=(1, 1), pads=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    """The definition of a 2-d cross-correlation, one output position at a time."""
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    n, _, h, width = x.shape
    o, cg, kh, kw = w.shape
    oh = (h - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (width - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((n, o, oh, ow))
    for k in range(o):
        group = slice(k // (o // groups) * cg, (k // (o // groups) + 1) * cg)
        for i in range(oh):
            for j in range(ow):
                rows = slice(i * stride[0], i * stride[0] + dilation[0] * (kh - 1) + 1, dilation[0])
                cols = slice(j * stride[1], j * stride[1] + dilation[1] * (kw - 1) + 1, dilation[1])
                y[:, k, i, j] = (x[:, group, rows, cols] * w[k]).sum((1, 2, 3))
    return y if b is None else y + b[:, None, None]


def transposed(x, w, b=None, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1, dilation=(1, 1)):
    """The definition of a transposed convolution: every input value adds its kernel to the output."""
    n, c, h, width = x.shape
    _, og, kh, kw = w.shape
    full = [
        (m - 1) * s + d * (k - 1) + 1 + e
        for m, s, d, k, e in zip((h, width), stride, dilation, (kh, kw), output_padding)
    ]
    y = np.zeros((n, og * groups, *full))
    for k in range(c):
        group = slice(k // (c // groups) * og, (k // (c // groups) + 1) * og)
        for i in range(h):
            for j in range(width):
                rows = slice(i * stride[0], i * stride[0] + dilation[0] * (kh - 1) + 1, dilation[0])
                cols = slice(j * stride[1], j * stride[1] + dilation[1] * (kw - 1) + 1, dilation[1])
                y[:, group, rows, cols] += x[:, k, i, j][:, None, None, None] * w[k]
    y = y[:, :, padding[0] : full[0] - padding[0], padding[1] : full[1] - padding[1]]
    return y if b is None else y + b[:, None, None]


def sides(padding):
    return tuple((p, p) for p in padding)


CASES = [
    # input, weight, stride, padding, dilation, groups
    ((2, 3, 6, 5), (4, 3, 3, 3), (1, 1), (0, 0), (1, 1), 1),
    ((2, 3, 6, 5), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((3, 2, 7, 6), (4, 2, 3, 2), (2, 3), (2, 1), (1, 1), 1),
    ((2, 4, 7, 7), (6, 2, 3, 3), (1, 2), (1, 0), (2, 1), 2),
    ((2, 3, 6, 6), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    ((1, 5, 4, 4), (3, 5, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 2, 8, 7), (3, 2, 2, 4), (3, 2), (0, 3), (3, 2), 1),
    ((2, 3, 5, 4), (5, 3, 1, 1), (2, 3), (0, 0), (3, 2), 1),  # places that no tap meets, and a dilation beyond them
]

TRANSPOSED = [
    # input, weight, stride, padding, output_padding, groups, dilation
    ((2, 3, 4, 5), (3, 2, 3, 3), (1, 1), (0, 0), (0, 0), 1, (1, 1)),
    ((2, 3, 4, 4), (3, 4, 4, 4), (2, 2), (1, 1), (0, 0), 1, (1, 1)),
    ((1, 4, 3, 4), (4, 2, 3, 2), (2, 3), (1, 0), (1, 2), 2, (1, 1)),
    ((2, 2, 3, 3), (2, 3, 2, 3), (1, 2), (1, 2), (1, 1), 1, (2, 2)),
    ((1, 1, 1, 1), (1, 1, 2, 2), (1, 1), (0, 0), (0, 0), 1, (1, 1)),
]
