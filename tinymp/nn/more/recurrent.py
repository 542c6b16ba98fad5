"""GRU and RNN over whole sequences; LSTMCell, GRUCell and RNNCell for one step."""

from __future__ import annotations

from typing import Any, ClassVar

from ... import backend, ops
from ...arguments import choice, flag, floating, integers, shaped
from ...autograd import taken
from ...ops.more.gru import gru_cell, gru_layer
from ...ops.more.recurrent import lstm_cell
from ...ops.recurrent import state_pair
from ...tensor import Tensor
from ..init import parameter
from ..module import Module
from ..recurrent import RecurrentLayer, first_states, reset
from .utils import PackedSequence, run_packed

__all__ = ["GRU", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


class GRU(RecurrentLayer):
    """`num_layers` GRU layers, each run over the whole sequence as one op (`ops.gru_layer`).

    For layer k: weight_ih_lk (3 hidden_size, inputs), weight_hh_lk (3 hidden_size, hidden_size), bias_ih_lk and
    bias_hh_lk (3 hidden_size,), rows in the order r, z, n; those of the second direction end in _reverse. `inputs` is
    input_size, then hidden_size * directions. All start uniform on [-r, r), r = 1 / sqrt(hidden_size). dropout:
    probability, in training, of dropping an output of a layer before the next layer reads it.
    """

    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None, lengths: Any = None) -> tuple[Tensor, Tensor]:
        """(output, h_n): what the last layer puts out at each step, and every layer's state after the last one.

        input: (T, B, D), (B, T, D) with batch_first, or (T, D). hx: (layers * directions, B, hidden_size), without B
        where input has none; zeros by default. lengths: of each sequence, see `ops.recurrent.sequence_steps`.
        """
        run = run_packed if isinstance(input, PackedSequence) else RecurrentLayer.run
        y, (h_n,) = run(self, input, (("hx", hx),), (self.hidden_size,), lengths)
        return y, h_n

    def _layer(self, x: Tensor, first: list, suffix: str, **options: Any) -> tuple:
        return gru_layer(x, first[0], **self._weights(suffix), **options)


class RecurrentCell(Module):
    """The base of LSTMCell, GRUCell and RNNCell: the weights of one step."""

    gates: ClassVar[int]

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        name = type(self).__name__
        (self.input_size,) = integers(name, "input_size", input_size, 1, 1)
        (self.hidden_size,) = integers(name, "hidden_size", hidden_size, 1, 1)
        rows = self.gates * self.hidden_size
        self.weight_ih = parameter(rows, self.input_size)
        self.weight_hh = parameter(rows, self.hidden_size)
        self.bias = flag(name, "bias", bias)
        self.bias_ih, self.bias_hh = (parameter(rows) if self.bias else None for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights and biases anew."""
        reset(self, self.hidden_size)

    def _batch(self, input: Tensor, states: list) -> tuple[Tensor, list]:
        """input and states, zeros for None, with a batch axis. ValueError for wrong sizes."""
        name = type(self).__name__
        x, *states = taken("cell", (floating(name, "input", input), *states))
        n = self.input_size
        if x.ndim not in (1, 2) or x.shape[-1] != n:
            raise ValueError(f"{name}: expected `input` to be (B, {n}) or ({n},), got shape {x.shape}")
        shape = (*x.shape[:-1], self.hidden_size)
        for state in states:
            shaped(name, "hx", state, shape, "the state of input")
        filled = [ops.zeros(shape, dtype=x.dtype, device=x.device) if s is None else s for s in first_states(x, states)]
        return (x, filled) if x.ndim == 2 else (x.unsqueeze(0), [s.unsqueeze(0) for s in filled])


class LSTMCell(RecurrentCell):
    """One step of an LSTM (`ops.lstm_cell`): forward(input, (h, c)) is the next (h, c); zeros by default.

    weight_ih: (4 hidden_size, input_size), weight_hh: (4 hidden_size, hidden_size), bias_ih, bias_hh: (4 hidden_size,),
    rows in the order i, f, g, o, uniform on [-r, r), r = 1 / sqrt(hidden_size). input: (B, input_size), h, c: (B,
    hidden_size), all with B or without.
    """

    gates = 4

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        x, states = self._batch(input, [None, None] if hx is None else list(state_pair("LSTMCell", hx)))
        h, c = lstm_cell(x, tuple(states), self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return (h, c) if input.ndim == 2 else (h.squeeze(0), c.squeeze(0))


class GRUCell(RecurrentCell):
    """One step of a GRU (`ops.gru_cell`): forward(input, h) is the next h; zeros by default.

    As `LSTMCell`, with 3 hidden_size rows in the order r, z, n.
    """

    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        x, (h,) = self._batch(input, [hx])
        h = gru_cell(x, h, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return h if input.ndim == 2 else h.squeeze(0)


class RNN(RecurrentLayer):
    """`num_layers` layers of h_t = f(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh), f tanh or relu (`nonlinearity`).

    weight_ih_lk (hidden_size, inputs), weight_hh_lk (hidden_size, hidden_size), bias_ih_lk and bias_hh_lk
    (hidden_size,); for the rest see `GRU`.
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
    ) -> None:
        self.nonlinearity = choice("RNN", "nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    forward = GRU.forward

    def _layer(self, x: Tensor, first: list, suffix: str, *, lengths: Any, reverse: bool) -> tuple:
        w, steps = self._weights(suffix), x.shape[0]
        if lengths.padded:
            beyond = Tensor(lengths.beyond(backend.of(x.array).xp))
            x = ops.masked_fill(x, beyond, 0)  # a zero gradient times what lies there may be NaN
        projected = ops.unbind(ops.linear(x, w["weight_ih"], w.get("bias_ih")))  # of all steps at once
        h = first[0]
        if h is None:
            h = ops.zeros((x.shape[1], self.hidden_size), dtype=x.dtype, device=x.device)
        outputs: list[Any] = [None] * steps
        for t in reversed(range(steps)) if reverse else range(steps):
            new = _step(self.nonlinearity, projected[t], h, w["weight_hh"], w.get("bias_hh"))
            if lengths.padded:  # sequences that have ended keep their state and put out zeros
                h, outputs[t] = ops.where(beyond[t], h, new), ops.masked_fill(new, beyond[t], 0)
            else:
                h = outputs[t] = new
        return ops.stack(outputs), h


class RNNCell(RecurrentCell):
    """One step of an RNN: forward(input, h) is f(W_ih input + b_ih + W_hh h + b_hh), f tanh or relu (`nonlinearity`).

    As `LSTMCell`, with hidden_size rows; h is zeros by default.
    """

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        self.nonlinearity = choice("RNNCell", "nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, bias)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        x, (h,) = self._batch(input, [hx])
        h = _step(self.nonlinearity, ops.linear(x, self.weight_ih, self.bias_ih), h, self.weight_hh, self.bias_hh)
        return h if input.ndim == 2 else h.squeeze(0)


def _step(nonlinearity: str, x: Tensor, h: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """The next state from the projected input x (B, H) and the state h (B, H)."""
    z = ops.add(x, ops.linear(h, w, b))
    return ops.tanh(z) if nonlinearity == "tanh" else ops.relu(z)
