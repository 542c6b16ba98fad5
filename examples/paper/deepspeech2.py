"""Deep Speech 2 (Amodei et al., 2016), forward-only, as MPT section 4.3 has it: spectrograms to characters, by CTC."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinymp import ops
from tinymp.nn import GRU, BatchNorm1d, Conv2d, Linear, Module, ModuleList, init
from tinymp.nn.init import parameter
from tinymp.tensor import Tensor, tensor

from .scale import FULL, Scale

KERNELS = (41, 11), (21, 11)  # of the two convolutions, over frequencies and frames
STRIDES = (2, 2), (2, 1)
CLIP = 20.0  # what the rectifiers clip at


class FrameNorm(BatchNorm1d):
    """Batch norm whose mean and variance are over all frames of all utterances ("sequence-wise", Deep Speech 2, section
    3.2) and over no padding, which is 0 again in what comes out.

    forward(x, lengths): x (T, B, C) or (T, B, C, bands); lengths (B,), an array on the host.
    """

    def forward(self, x: Tensor, lengths: np.ndarray) -> Tensor:  # type: ignore[override]
        T, B = x.shape[:2]
        rows = x.reshape(T * B, *x.shape[2:])
        frames = np.flatnonzero(np.arange(T)[:, None] < lengths)
        if len(frames) == T * B:
            return super().forward(rows).reshape(x.shape)
        y = super().forward(rows[frames])
        place = np.zeros(T * B, int)  # of each frame among those that are normalised; 0 where there is none
        place[frames] = np.arange(1, len(frames) + 1)
        nothing = ops.zeros((1, *x.shape[2:]), dtype=y.dtype, device=y.device)
        return ops.cat([nothing, y])[place].reshape(x.shape)


class DeepSpeech2(Module):
    """Spectrograms (B, T, bands) of utterances with `lengths` frames -> logits (B, T', classes), and their lengths.

    Two convolutions over frequencies and frames, three GRU layers that read forward, a row convolution that looks
    `context` frames ahead, a dense layer, and the logits; class 0 is CTC's blank. Frames beyond an utterance are 0 in
    every layer and count in no statistic, so that padding changes no result. T' = ceil(T / 2).

    From Deep Speech 2: channels, kernels and strides of the convolutions (section 3.5); GRU layers of 2,560 cells and a
    context of 80 frames, those of its best forward-only model; batch norm, ReLUs clipped at 20 and a dense layer before
    the logits; 29 classes: a to z, apostrophe, space and blank. That makes 115,533,053 parameters, for MPT
    "approximately 115 million". Our choice: 161 bands, those of windows of 20 ms at 16 kHz; and what a GRU layer puts
    out is normalised for the next one, not the products with its weights, as one op runs a whole layer.

    For Mandarin ("a total of 215 million", says MPT, of "a similar architecture") 6,000 characters and the blank, Deep
    Speech 2's, and GRU layers of 3,360 cells, our choice, make 214,638,545 parameters.
    """

    def __init__(
        self,
        num_classes: int = 29,
        *,
        bands: int = 161,
        hidden_size: int = 2560,
        context: int = 80,
        scale: Scale = FULL,
    ) -> None:
        super().__init__()
        channels, hidden = scale.channels(32), scale.channels(hidden_size)
        self.convolutions, self.recurrent = ModuleList([]), ModuleList([])
        inputs, rows = 1, bands
        for kernel, stride in zip(KERNELS, STRIDES):
            padding = kernel[0] // 2, kernel[1] // 2
            self.convolutions.append(Conv2d(inputs, channels, kernel, stride, padding, bias=False))
            inputs, rows = channels, (rows - 1) // stride[0] + 1
        for layer in scale.layers(range(3)):
            self.recurrent.append(GRU(hidden if layer else channels * rows, hidden))
        self.convolution_norms = ModuleList([FrameNorm(channels) for _ in self.convolutions])
        self.recurrent_norms = ModuleList([FrameNorm(hidden) for _ in self.recurrent])
        self.row_convolution = RowConv(hidden, context + 1)  # from this frame on
        self.dense = Linear(hidden, hidden, bias=False)
        self.dense_norm = FrameNorm(hidden)
        self.output = Linear(hidden, num_classes)

    def forward(self, spectrograms: Tensor, lengths: Any) -> tuple[Tensor, np.ndarray]:
        """The logits, and B lengths, which are on the host. lengths: integers in [1, T], a list or array."""
        x, host = spectrograms, np.asarray(lengths)
        B, T, _ = x.shape
        inside = tensor(np.arange(T) < host[:, None]).to(x.device)  # B, T
        y = ops.where(inside.unsqueeze(2), x, 0.0).transpose(1, 2).unsqueeze(1)  # B, 1, bands, T
        for convolution, norm, (_, stride) in zip(self.convolutions, self.convolution_norms, STRIDES):
            host = (host - 1) // stride + 1
            y = convolution(y).permute(3, 0, 1, 2)  # T, B, channels, bands
            y = ops.hardtanh(norm(y, host), 0.0, CLIP).permute(1, 2, 3, 0)
        y = y.permute(3, 0, 1, 2).reshape(y.shape[3], B, -1)  # T, B, channels * bands
        for layer, norm in zip(self.recurrent, self.recurrent_norms):
            y = norm(layer(y, lengths=host)[0], host)
        y = ops.hardtanh(self.row_convolution(y), 0.0, CLIP)
        y = ops.hardtanh(self.dense_norm(self.dense(y), host), 0.0, CLIP)
        return self.output(y).transpose(0, 1), host


class RowConv(Module):
    """y_t = sum of w_j x_(t + j) over j = 0 ... context - 1, for each feature by itself; zeros after the last step.

    The look-ahead ("row") convolution of Deep Speech 2 (Amodei et al., 2016, section 3.7): what a recurrent layer in
    one direction lacks. x: (T, B, hidden_size); weight: (hidden_size, context), uniform on [-r, r) with
    r = 1 / sqrt(context).
    """

    def __init__(self, hidden_size: int, context: int) -> None:
        super().__init__()
        self.context, self.weight = context, parameter(hidden_size, context)
        init.uniform_(self.weight, -(context**-0.5), context**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        rows = ops.pad(x.permute(1, 2, 0), (0, self.context - 1))  # B, D, T
        return ops.conv1d(rows, self.weight.unsqueeze(1), groups=x.shape[2]).permute(2, 0, 1)
