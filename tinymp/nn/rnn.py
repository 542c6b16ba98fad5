"""RNN and RNNCell: the plain recurrence h = tanh(W x + U h + b), made of small ops, one step at a time."""

from __future__ import annotations

from typing import Any

from .. import backend, ops
from ..arguments import choice
from ..ops.recurrent import Steps
from ..tensor import Tensor
from .recurrent import RecurrentCell, RecurrentLayer


class RNN(RecurrentLayer):
    """`num_layers` layers of h_t = f(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh), f tanh or relu (`nonlinearity`).

    For layer k: weight_ih_lk (hidden_size, inputs), weight_hh_lk (hidden_size, hidden_size), bias_ih_lk and bias_hh_lk
    (hidden_size,). The second direction's have the suffix _reverse. `inputs` is input_size in the first layer, then
    hidden_size * directions. All start uniform on [-r, r), r = 1 / sqrt(hidden_size).

    dropout: probability, in training, with which each output of a layer is dropped before the next layer reads it.
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: None = None,
        dtype: None = None,
    ) -> None:
        self.nonlinearity = choice("RNN", "nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None, lengths: Any = None) -> tuple[Tensor, Tensor]:
        """(output, h_n): what the last layer puts out at each step, and every layer's state after the last one.

        input: (T, B, D), (B, T, D) with batch_first, or (T, D). hx: (layers * directions, B, hidden_size), without B
        where input has none; zeros by default. lengths: the length of each sequence of a padded batch, see
        `ops.recurrent.sequence_steps`. output: like input, with hidden_size * directions on the last axis.
        """
        y, (h_n,) = self._run(input, (("hx", hx),), (self.hidden_size,), lengths)
        return y, h_n

    def _layer(self, x: Tensor, first: list, suffix: str, *, lengths: Steps, reverse: bool) -> tuple:
        w, steps = self._weights(suffix), x.shape[0]
        projected = ops.unbind(ops.linear(x, w["weight_ih"], w.get("bias_ih")))  # of all steps at once
        h = first[0]
        if h is None:
            h = ops.zeros((x.shape[1], self.hidden_size), dtype=x.dtype, device=x.device)
        outputs: list[Any] = [None] * steps
        for t in reversed(range(steps)) if reverse else range(steps):
            new = _step(self.nonlinearity, projected[t], h, w["weight_hh"], w.get("bias_hh"))
            if lengths.padded:  # sequences that have ended keep their state and put out zeros
                alive = Tensor(backend.of(x.data).xp.asarray(lengths.runs[t][lengths.back])[:, None])
                h, outputs[t] = ops.where(alive, new, h), ops.masked_fill(new, ops.logical_not(alive), 0)
            else:
                h = outputs[t] = new
        return ops.stack(outputs), h


class RNNCell(RecurrentCell):
    """One step of an RNN: forward(input, h) is f(W_ih input + b_ih + W_hh h + b_hh); h is zeros by default.

    weight_ih: (hidden_size, input_size), weight_hh: (hidden_size, hidden_size), bias_ih, bias_hh: (hidden_size,);
    input: (B, input_size) or (input_size,), h: (B, hidden_size) or (hidden_size,). f: tanh or relu (`nonlinearity`).
    All weights start uniform on [-r, r), r = 1 / sqrt(hidden_size).
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: None = None,
        dtype: None = None,
    ) -> None:
        self.nonlinearity = choice("RNNCell", "nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        x, (h,) = self._batch(input, [hx])
        h = _step(self.nonlinearity, ops.linear(x, self.weight_ih, self.bias_ih), h, self.weight_hh, self.bias_hh)
        return h if input.ndim == 2 else h.squeeze(0)


def _step(nonlinearity: str, x: Tensor, h: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """The next state from the projected input x (B, H) and the state h (B, H)."""
    z = ops.add(x, ops.linear(h, w, b))
    return ops.tanh(z) if nonlinearity == "tanh" else ops.relu(z)
