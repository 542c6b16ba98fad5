"""RowConv: what a recurrent layer in one direction lacks, a look at the next few steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import backend, ops
from ..arguments import flag, floating, integers
from ..ops.recurrent import sequence_steps
from ..tensor import Tensor
from . import init
from .init import parameter
from .module import Module, refuse_placement


class RowConv(Module):
    """y_t = sum of w_j x_(t + j) over j = 0 ... context - 1, for each feature by itself; zeros after the last step.

    The look-ahead ("row") convolution of Deep Speech 2 (Amodei et al., 2016, section 3.7), which the model of MPT
    section 4.3 has. weight: (hidden_size, context), uniform on [-r, r) with r = 1 / sqrt(context); no bias.
    batch_first: as of the recurrent layers.
    """

    def __init__(
        self, hidden_size: int, context: int, batch_first: bool = False, device: None = None, dtype: None = None
    ) -> None:
        super().__init__()
        refuse_placement("RowConv", device, dtype)
        (self.hidden_size,) = integers("RowConv", "hidden_size", hidden_size, 1, 1)
        (self.context,) = integers("RowConv", "context", context, 1, 1)
        self.batch_first = flag("RowConv", "batch_first", batch_first)
        self.weight = parameter(self.hidden_size, self.context)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        r = 1 / math.sqrt(self.context)
        init.uniform_(self.weight, -r, r)

    def forward(self, input: Tensor, lengths: Any = None) -> Tensor:
        """input: (T, B, hidden_size), (B, T, hidden_size) with batch_first, or (T, hidden_size); the output is like it.

        lengths: the length of each sequence of a padded batch, see `ops.recurrent.sequence_steps`. What lies beyond it
        is not read, and zero in the output.
        """
        x = floating("RowConv", "input", input)
        if x.ndim not in (2, 3) or x.shape[-1] != self.hidden_size:
            axes = "(B, T, hidden_size)" if self.batch_first else "(T, B, hidden_size)"
            raise ValueError(
                f"RowConv: expected `input` to be {axes}, or (T, hidden_size) without a batch, with hidden_size == "
                f"{self.hidden_size}, got shape {x.shape}"
            )
        if x.ndim == 2:
            if lengths is not None:
                raise ValueError(f"RowConv: expected a batch (3 axes) for `lengths`, got input of shape {x.shape}")
            x = x.unsqueeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        steps = sequence_steps("RowConv", x, lengths)
        if steps.padded:
            beyond = np.logical_not(steps.runs[:, steps.back])[:, :, None]
            x = x.masked_fill(Tensor(backend.of(x.data).xp.asarray(beyond)), 0.0)
        rows = ops.pad(x.permute(1, 2, 0), (0, self.context - 1))  # B, D, T
        y = ops.conv1d(rows, self.weight.unsqueeze(1), groups=self.hidden_size).permute(2, 0, 1)
        if input.ndim == 2:
            return y.squeeze(1)
        return y.transpose(0, 1) if self.batch_first else y

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, {self.context}" + (", batch_first=True" if self.batch_first else "")
