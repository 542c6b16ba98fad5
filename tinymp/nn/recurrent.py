"""Recurrent layers: LSTM and GRU over whole sequences, LSTMCell and GRUCell for one step."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

from .. import ops
from ..arguments import flag, floating, integers, number
from ..ops.recurrent import gru_cell, gru_layer, lstm_cell, lstm_layer, sequence_steps, state_pair
from ..parameter import parameter
from ..tensor import Tensor
from . import init
from .module import Module, refuse_placement

MOST_LAYERS = 1 << 12  # more must be a mistake, and would take minutes to build


class RecurrentLayer(Module):
    """What LSTM, GRU and RNN share: weights, layers, directions, sequences of any length."""

    gates: ClassVar[int]  # blocks of rows in a weight
    _layer: Any  # (x, first states, suffix of the weights, **options) -> outputs, last states: one op
    proj_size = 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: None = None,
        dtype: None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        refuse_placement(name, device, dtype)
        (self.input_size,) = integers(name, "input_size", input_size, 1, 1)
        (self.hidden_size,) = integers(name, "hidden_size", hidden_size, 1, 1)
        (self.num_layers,) = integers(name, "num_layers", num_layers, 1, 1)
        if self.num_layers > MOST_LAYERS:
            raise ValueError(f"{name}: expected `num_layers` to be at most {MOST_LAYERS}, got {num_layers}")
        self.dropout = number(name, "dropout", dropout, 0, 1)
        if dropout and self.num_layers == 1:
            warnings.warn(f"{name}: dropout={dropout} acts between layers, and there is one layer", stacklevel=3)
        self.bias, self.batch_first = flag(name, "bias", bias), flag(name, "batch_first", batch_first)
        self.bidirectional = flag(name, "bidirectional", bidirectional)
        rows, output = self.gates * self.hidden_size, self.proj_size or self.hidden_size
        for layer in range(self.num_layers):
            columns = output * (1 + self.bidirectional) if layer else self.input_size
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple] = {"weight_ih": (rows, columns), "weight_hh": (rows, output)}
                if self.bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if self.proj_size:
                    shapes["weight_hr"] = (output, self.hidden_size)
                for part, shape in shapes.items():
                    self.register_parameter(part + suffix, parameter(*shape))
        self.reset_parameters()

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    def _weights(self, suffix: str) -> dict[str, Any]:
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return {part: vars(self)[part + suffix] for part in parts if part + suffix in vars(self)}

    def reset_parameters(self) -> None:
        """Draw all weights and biases anew."""
        _reset(self, self.hidden_size)

    def _run(self, input: Tensor, states: tuple, sizes: tuple, lengths: Any) -> tuple[Tensor, list]:
        """(outputs, [last values of each state]) from the user's input and states; a state is None, or
        (layers * directions, B, size).
        """
        name, x = type(self).__name__, floating(type(self).__name__, "input", input)
        if x.ndim not in (2, 3):
            axes = "(B, T, D)" if self.batch_first else "(T, B, D)"
            raise ValueError(f"{name}: expected `input` to be {axes}, or (T, D) without a batch, got shape {x.shape}")
        if x.shape[-1] != self.input_size:
            raise ValueError(
                f"{name}: expected input.shape[-1] == input_size == {self.input_size}, got input of shape {x.shape}"
            )
        batched = x.ndim == 3
        if not batched:
            if lengths is not None:
                raise ValueError(f"{name}: expected a batch (3 axes) for `lengths`, got input of shape {x.shape}")
            x = x.unsqueeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        count = self.num_layers * (1 + self.bidirectional)
        for (label, state), size in zip(states, sizes):
            shape = (count, x.shape[1], size) if batched else (count, size)
            if state is not None and floating(name, label, state).shape != shape:
                raise ValueError(
                    f"{name}: expected `{label}` to be {shape} (layers * directions, {'batch, ' * batched}size), got "
                    f"{state.shape}"
                )
        hx = [s if s is None or batched else s.unsqueeze(1) for _, s in states]
        steps = sequence_steps(name, x, lengths)
        last: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            if layer:
                x = ops.dropout(x, self.dropout, self.training)
            outputs = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                first = [s if s is None else s[len(last)] for s in hx]
                y, *after = self._layer(x, first, suffix, lengths=steps, reverse=direction == 1)
                outputs.append(y)
                last.append(after)
            x = ops.cat(outputs, 2) if self.bidirectional else outputs[0]
        after = [ops.stack(state) for state in zip(*last)]
        if not batched:
            return x.squeeze(1), [s.squeeze(1) for s in after]
        return x.transpose(0, 1) if self.batch_first else x, after

    def extra_repr(self) -> str:
        default = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        default["proj_size"] = 0
        changed = [f"{k}={getattr(self, k)}" for k, v in default.items() if getattr(self, k) != v]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *changed])


class LSTM(RecurrentLayer):
    """`num_layers` LSTM layers, each run over the whole sequence as one op (`ops.lstm_layer`).

    For layer k: weight_ih_lk (4 hidden_size, inputs), weight_hh_lk (4 hidden_size, outputs), bias_ih_lk and bias_hh_lk
    (4 hidden_size,), their rows in the order i, f, g, o; with proj_size, weight_hr_lk (proj_size, hidden_size). The
    second direction's have the suffix _reverse. `outputs` is proj_size or else hidden_size, `inputs` is input_size in
    the first layer, then outputs * directions. All start uniform on [-r, r), r = 1 / sqrt(hidden_size).

    dropout: probability, in training, with which each output of a layer is dropped before the next layer reads it.
    """

    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: None = None,
        dtype: None = None,
    ) -> None:
        (proj_size,) = integers("LSTM", "proj_size", proj_size, 1, 0)
        if proj_size >= integers("LSTM", "hidden_size", hidden_size, 1, 1)[0]:
            raise ValueError(f"LSTM: expected proj_size < hidden_size, got {proj_size} and {hidden_size}")
        self.proj_size = proj_size
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None, lengths: Any = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(output, (h_n, c_n)): what the last layer puts out at each step, and every layer's state after the last one.

        input: (T, B, D), (B, T, D) with batch_first, or (T, D). hx: h_0 and c_0, (layers * directions, B, outputs) and
        (..., hidden_size), without B where input has none; zeros by default. For truncated backpropagation through time
        pass the last (h_n, c_n), each detached. lengths: the length of each sequence of a padded batch, see
        `ops.recurrent.sequence_steps`. output: like input, with outputs * directions on the last axis.
        """
        h_0, c_0 = (None, None) if hx is None else state_pair("LSTM", hx)
        sizes = self.proj_size or self.hidden_size, self.hidden_size
        y, (h_n, c_n) = self._run(input, (("h_0", h_0), ("c_0", c_0)), sizes, lengths)
        return y, (h_n, c_n)

    def _layer(self, x: Tensor, first: list, suffix: str, **options: Any) -> tuple:
        return lstm_layer(x, (first[0], first[1]), **self._weights(suffix), **options)


class GRU(RecurrentLayer):
    """`num_layers` GRU layers, each run over the whole sequence as one op (`ops.gru_layer`).

    For layer k: weight_ih_lk (3 hidden_size, inputs), weight_hh_lk (3 hidden_size, hidden_size), bias_ih_lk and
    bias_hh_lk (3 hidden_size,), their rows in the order r, z, n. The second direction's have the suffix _reverse.
    `inputs` is input_size in the first layer, then hidden_size * directions. All start uniform on [-r, r),
    r = 1 / sqrt(hidden_size).

    dropout: probability, in training, with which each output of a layer is dropped before the next layer reads it.
    """

    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None, lengths: Any = None) -> tuple[Tensor, Tensor]:
        """(output, h_n): what the last layer puts out at each step, and every layer's state after the last one.

        input: (T, B, D), (B, T, D) with batch_first, or (T, D). hx: (layers * directions, B, hidden_size), without B
        where input has none; zeros by default. lengths: the length of each sequence of a padded batch, see
        `ops.recurrent.sequence_steps`. output: like input, with hidden_size * directions on the last axis.
        """
        y, (h_n,) = self._run(input, (("hx", hx),), (self.hidden_size,), lengths)
        return y, h_n

    def _layer(self, x: Tensor, first: list, suffix: str, **options: Any) -> tuple:
        return gru_layer(x, first[0], **self._weights(suffix), **options)


# -------------------------------------------------------------------------------------------------------------- cells


class RecurrentCell(Module):
    """What LSTMCell, GRUCell and RNNCell share: the weights of one step."""

    gates: ClassVar[int]

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: None = None, dtype: None = None
    ) -> None:
        super().__init__()
        name = type(self).__name__
        refuse_placement(name, device, dtype)
        (self.input_size,) = integers(name, "input_size", input_size, 1, 1)
        (self.hidden_size,) = integers(name, "hidden_size", hidden_size, 1, 1)
        rows = self.gates * self.hidden_size
        self.weight_ih = parameter(rows, self.input_size)
        self.weight_hh = parameter(rows, self.hidden_size)
        self.bias_ih = parameter(rows) if flag(name, "bias", bias) else None
        self.bias_hh = parameter(rows) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights and biases anew."""
        _reset(self, self.hidden_size)

    def _batch(self, input: Tensor, states: list) -> tuple[Tensor, list]:
        """input and states, zeros for None, with a batch axis. ValueError for wrong sizes."""
        name, x = type(self).__name__, floating(type(self).__name__, "input", input)
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(
                f"{name}: expected `input` to be (B, {self.input_size}) or ({self.input_size},), got shape {x.shape}"
            )
        shape = (*x.shape[:-1], self.hidden_size)
        for state in states:
            if state is not None and floating(name, "hx", state).shape != shape:
                raise ValueError(f"{name}: expected the state `hx` to be {shape}, got {state.shape}")
        filled = [ops.zeros(shape, dtype=x.dtype, device=x.device) if s is None else s for s in states]
        return (x, filled) if x.ndim == 2 else (x.unsqueeze(0), [s.unsqueeze(0) for s in filled])

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + (", bias=False" if self.bias_ih is None else "")


class LSTMCell(RecurrentCell):
    """One step of an LSTM (`ops.lstm_cell`): forward(input, (h, c)) is the next (h, c); zeros by default.

    weight_ih: (4 hidden_size, input_size), weight_hh: (4 hidden_size, hidden_size), bias_ih, bias_hh: (4 hidden_size,),
    rows in the order i, f, g, o; input: (B, input_size) or (input_size,), h and c: (B, hidden_size) or (hidden_size,).
    All weights start uniform on [-r, r), r = 1 / sqrt(hidden_size).
    """

    gates = 4

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        x, states = self._batch(input, [None, None] if hx is None else list(state_pair("LSTMCell", hx)))
        h, c = lstm_cell(x, tuple(states), self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return (h, c) if input.ndim == 2 else (h.squeeze(0), c.squeeze(0))


class GRUCell(RecurrentCell):
    """One step of a GRU (`ops.gru_cell`): forward(input, h) is the next h; zeros by default.

    weight_ih: (3 hidden_size, input_size), weight_hh: (3 hidden_size, hidden_size), bias_ih, bias_hh: (3 hidden_size,),
    rows in the order r, z, n; input: (B, input_size) or (input_size,), h: (B, hidden_size) or (hidden_size,).
    All weights start uniform on [-r, r), r = 1 / sqrt(hidden_size).
    """

    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        x, (h,) = self._batch(input, [hx])
        h = gru_cell(x, h, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return h if input.ndim == 2 else h.squeeze(0)


def _reset(layer: Module, hidden_size: int) -> None:
    r = 1 / math.sqrt(hidden_size)
    for p in layer.parameters():
        init.uniform_(p, -r, r)
