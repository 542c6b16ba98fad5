"""Sequences of several lengths and from their last step to their first; LSTMs whose outputs are projected (Sak et al.,
2014); and `lstm_cell`, one step made of small ops, the definition that `lstm_layer` is held to.
"""

from __future__ import annotations

from copy import copy
from itertools import accumulate
from typing import Any

import numpy as np

from ... import backend
from ...autograd import Array
from ...precision import gemm, store, widen
from ...tensor import Tensor, array_of
from ..dot import linear
from ..recurrent import LSTM, Steps, check, state_pair, times
from ..unary import sigmoid, tanh
from .views import chunk

__all__ = ["lstm_cell"]


class Packed(Steps):
    """Made on the host, once for all layers and directions.

    With lengths the sequences are sorted, longest first, and a step has one row for each sequence that still runs
    (PyTorch's PackedSequence): padding is neither computed nor read.
    """

    reverse = False

    def __init__(self, T: int, B: int, lengths: np.ndarray | None) -> None:
        super().__init__(T, B)
        if lengths is not None and lengths.min(initial=T) < T:
            self.padded = True
            self.order = np.argsort(-lengths, kind="stable")
            self.back = np.argsort(self.order)
            self.runs = lengths[self.order] > np.arange(T)[:, None]  # T, B
            sizes = np.count_nonzero(self.runs, axis=1).tolist()
            self.rows = [(slice(end - n, end), n) for end, n in zip(accumulate(sizes), sizes)]

    def turned(self) -> Packed:
        """The same steps, from the last to the first; in reverse a sequence starts at its own end."""
        other = copy(self)
        other.reverse, other.rows = True, self.rows[::-1]
        return other

    def pack(self, x: Array) -> Array:
        flat = super().pack(x)
        return flat[self._places(x)] if self.padded else flat

    def unpack(self, rows: Array) -> Array:
        """With zeros in the padding."""
        if self.padded:
            rows, flat = backend.of(rows).xp.zeros((self.T * self.B, rows.shape[1]), rows.dtype), rows
            rows[self._places(rows)] = flat
        return super().unpack(rows)

    def sort(self, state: Array) -> Array:
        return state[backend.of(state).xp.asarray(self.order)] if self.padded else state.copy()

    def unsort(self, state: Array) -> Array:
        return state[backend.of(state).xp.asarray(self.back)] if self.padded else state.copy()

    def after(self, state: Array, rows: Array) -> Array:
        if not self.padded:
            return rows
        state[: len(rows)] = rows
        return state

    def beyond(self, xp: Any) -> Array:
        """(T, B, 1), bool: True in the padding."""
        return xp.asarray(~self.runs[:, self.back, None])

    def before(self, first: Array, states: Array) -> Array:
        """In reverse, the row after it in time."""
        xp = backend.of(states).xp
        if not self.padded:
            return xp.concatenate((states, first))[self.B :] if self.reverse else super().before(first, states)
        t, k = np.nonzero(self.runs)
        starts = np.array([rows.start for rows, _ in (self.rows[::-1] if self.reverse else self.rows)])
        if self.reverse:
            following = np.minimum(t + 1, self.T - 1)
            inner, source = (t + 1 < self.T) & self.runs[following, k], starts[following] + k
        else:
            inner, source = t > 0, starts[t - 1] + k
        return xp.concatenate((first, states))[xp.asarray(np.where(inner, self.B + source, k))]

    def _places(self, like: Array) -> Array:
        t, k = np.nonzero(self.runs)
        return backend.of(like).xp.asarray(t * self.B + self.order[k])


def packed_steps(op: str, T: int, B: int, lengths: Any, reverse: bool) -> Steps:
    """`sequence_steps` of several lengths, or in reverse."""
    steps = lengths
    if not isinstance(lengths, Packed):
        steps = Packed(T, B, None if lengths is None or type(lengths) is Steps else sequence_lengths(op, lengths, T, B))
    return steps.turned() if reverse else steps


def sequence_lengths(op: str, lengths: Any, T: int, B: int) -> np.ndarray:
    """lengths, as in `sequence_steps`, on the host; TypeError or ValueError unless they are B integers in [1, T]."""
    given = backend.to_cpu(array_of(op, lengths.array if isinstance(lengths, Tensor) else lengths))
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"{op}: expected `lengths` to be integers, got {given.dtype}")
    if given.shape != (B,):
        raise ValueError(f"{op}: expected `lengths` to have one entry for each of the {B} sequences, got {given.shape}")
    for b in np.flatnonzero((given < 1) | (given > T))[:1]:
        raise ValueError(
            f"{op}: expected `lengths` in [1, {T}], the steps of `input`, got {given[b]} for sequence {b}"
            + ("; leave out empty sequences" if given[b] < 1 else "")
        )
    return np.asarray(given, int)


class ProjectedLSTM(LSTM):
    """`LSTM` with h = (o tanh c) W_hr^T, W_hr: (P, H), which the next step reads: h: (B, P), W_hh: (4 H, P)."""

    name = "lstm"
    arguments = (*LSTM.arguments, "weight_hr")  # type: ignore[assignment]

    def forward(self, x: Array, *given: Array, steps: Steps) -> tuple:
        h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = given
        xp, H, P = self.xp, w_hh.shape[0] // 4, w_hh.shape[1]
        gates = self.products(x, w_ih, b_ih, b_hh)
        h, c = self.state(h0, P, x), self.state(c0, H, x)
        first, cells = (h.copy(), c.copy()), xp.empty((len(gates), H), x.dtype)
        hidden, outputs = xp.empty_like(cells), xp.empty((len(gates), P), x.dtype)
        for rows, n in steps.rows:
            self.unit(gates[rows], times(w_hh, h[:n]), c[:n], cells[rows], hidden[rows])
            outputs[rows] = store(times(w_hr, hidden[rows]), like=x)
            h, c = steps.after(h, outputs[rows]), steps.after(c, cells[rows])
        y = steps.unpack(outputs)
        self.save(x, w_ih, w_hh, w_hr, *first, gates, cells, y, hidden)
        return y, steps.unsort(h), steps.unsort(c)

    def backward(self, dy: Array | None, dh_n: Array | None, dc_n: Array | None) -> tuple:
        x, w_ih, w_hh, w_hr, h_first, c_first, gates, cells, y, hidden = self.saved
        xp, steps = self.xp, self.steps
        h_before = steps.before(h_first, steps.pack(y))
        c_before = steps.before(c_first, cells)
        dh, dc = widen(self.state(dh_n, w_hh.shape[1], x)), widen(self.state(dc_n, cells.shape[1], x))
        dys = None if dy is None else xp.ascontiguousarray(widen(steps.pack(dy)))
        dz, dp = xp.empty_like(gates), xp.empty_like(h_before)  # dp: the gradients of the outputs
        for rows, n in steps.rows[::-1]:
            dp[rows] = store(dh[:n] if dys is None else dh[:n] + dys[rows], like=x)
            d = times(w_hr.T, dp[rows])
            self.unit_backward(gates[rows], cells[rows], c_before[rows], d, None, dc[:n], dz[rows])
            dh = steps.after(dh, times(w_hh.T, dz[rows]))
        gradients = self.of_all_steps(dz, dh, dc, x, h_before, w_ih)
        return *gradients, gemm(dp.T, hidden) if self.targets[7] else None


def lstm_cell(
    input: Tensor,
    hx: tuple[Tensor, Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM, made of small ops: the definition that `lstm_layer` is held to. Returns (h, c).

    i, f, g, o = input w_ih^T + b_ih + h w_hh^T + b_hh;  c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c).
    input: (B, D), hx: h and c, (B, H), w_ih: (4 H, D), w_hh: (4 H, H), biases: (4 H,). ValueError if they do not match.
    """
    h, c = state_pair("lstm_cell", hx)
    weights = {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}
    check("lstm_cell", 4, input, {"hx[0]": h, "hx[1]": c}, weights, 2)
    i, f, g, o = chunk(linear(input, w_ih, b_ih) + linear(h, w_hh, b_hh), 4, 1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c
