"""LSTM (Hochreiter & Schmidhuber, 1997; projection: Sak et al., 2014); the GRU is in more/gru.py.

`lstm_cell`, one step made of small ops, is the definition. `lstm_layer` runs all steps of one layer in one direction as
one op. What is rounded there, and what is not:

- The products of the input with its weights need not wait for the recurrence: one GEMM over all steps. Its result is
  the one large array, so it is stored, rounded once (MPT section 3.3: "converted to FP16 before writing to memory"),
  and each step overwrites its part with its gates, which backward needs: no more memory than the gates alone.
- The recurrent product of a step stays in its FP32 accumulators, and the gates are computed from the sum of the two in
  FP32: what is used at once is not rounded. The gates, the state c and the output h are stored: activations are FP16
  (MPT section 3.1), and so is the state between steps. So a sequence run in two parts, state carried over, is rounded
  as in one, and backward differentiates at the values that the next step read.
- Backward carries dh and dc from step to step in FP32: they are sums of gradients, which are rounded when they are
  complete. The gradients at the gates are stored; dx and the gradients of the weights are one GEMM each over all steps.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from .. import backend
from ..arguments import flag, floating, with_axes
from ..autograd import Array, Op
from ..backend.extras import held
from ..events import type_name
from ..fast_path import replaceable
from ..precision import DOT, gemm, reduce, store, widen
from ..tensor import Tensor, array_of
from .dot import linear
from .unary import sigmoid, sigmoid_of, tanh


class Steps:
    """Which rows belong to which step of x (T, B, ...). Made on the host, once for all layers and directions.

    Without lengths every step has B rows. With them the sequences are sorted, longest first, and a step has one row for
    each sequence that still runs (PyTorch's PackedSequence): padding is neither computed nor read.

    rows: per step, where its rows lie among all rows, and how many they are.
    """

    def __init__(self, T: int, B: int, lengths: np.ndarray | None = None) -> None:
        self.T, self.B = T, B
        sizes, self.padded = np.full(T, B), False
        if lengths is not None and lengths.min(initial=T) < T:
            self.padded = True
            self.order = np.argsort(-lengths, kind="stable")
            self.back = np.argsort(self.order)
            self.runs = lengths[self.order] > np.arange(T)[:, None]  # T, B
            sizes = np.count_nonzero(self.runs, axis=1)
        self.rows = [(slice(end - n, end), n) for end, n in zip(accumulate(sizes.tolist()), sizes.tolist())]

    def pack(self, xp: Any, x: Array) -> Array:
        """(T, B, n) to (rows, n), in the order of the steps."""
        flat = x.reshape(self.T * self.B, x.shape[2])
        return flat[self._places(xp)] if self.padded else flat

    def unpack(self, xp: Any, rows: Array) -> Array:
        """(rows, n) to (T, B, n), with zeros in the padding."""
        if self.padded:
            rows, flat = xp.zeros((self.T * self.B, rows.shape[1]), rows.dtype), rows
            rows[self._places(xp)] = flat
        return rows.reshape(self.T, self.B, rows.shape[1])

    def sort(self, xp: Any, state: Array) -> Array:
        """A copy of a state (B, n) with the longest sequence first."""
        return state[xp.asarray(self.order)] if self.padded else state.copy()

    def unsort(self, xp: Any, state: Array) -> Array:
        """The inverse of `sort`, and a copy as well."""
        return state[xp.asarray(self.back)] if self.padded else state.copy()

    def after(self, state: Array, rows: Array) -> Array:
        """The running state (B, n) after a step that computed its first rows."""
        if not self.padded:
            return rows
        state[: len(rows)] = rows
        return state

    def beyond(self, xp: Any) -> Array:
        """(T, B, 1), bool: True in the padding."""
        return xp.asarray(~self.runs[:, self.back, None])

    def before(self, xp: Any, first: Array, states: Array, reverse: bool) -> Array:
        """What each step read: for every row of states (rows, n) the row before it in time, at the ends that of first
        (B, n). In reverse, the row after it.
        """
        if not self.padded:
            joined = xp.concatenate((states, first) if reverse else (first, states))
            return joined[self.B :] if reverse else joined[: len(states)]
        t, k = np.nonzero(self.runs)
        starts = np.array([rows.start for rows, _ in self.rows])
        if reverse:
            following = np.minimum(t + 1, self.T - 1)
            inner, source = (t + 1 < self.T) & self.runs[following, k], starts[following] + k
        else:
            inner, source = t > 0, starts[t - 1] + k
        return xp.concatenate((first, states))[xp.asarray(np.where(inner, self.B + source, k))]

    def _places(self, xp: Any) -> Array:
        t, k = np.nonzero(self.runs)
        return xp.asarray(t * self.B + self.order[k])


@replaceable(lambda w: backend.of(w).name)
def times(w: Array, rows: Array) -> Array:
    """rows w^T, in the FP32 accumulators. The weight goes first: for 32 rows BLAS takes 80 us instead of 146."""
    return gemm(w, rows.T, wide=True).T


class Recurrent(Op):
    """What LSTM and GRU share: their input x (T, B, D), one product with it over all steps, running states."""

    kind = DOT
    steps: Steps
    reverse: bool

    @property
    def order(self) -> list:
        """Of the steps: (rows, how many)."""
        return self.steps.rows[::-1] if self.reverse else self.steps.rows

    def state(self, given: Array | None, n: int, like: Array) -> Array:
        """A running copy of a state (B, n), sorted; zeros for None."""
        return self.xp.zeros((self.steps.B, n), like.dtype) if given is None else self.steps.sort(self.xp, given)


class LSTM(Recurrent):
    """i, f, g, o = sigma, sigma, tanh, sigma of x_t W_ih^T + h W_hh^T + b;  c = f c + i g;  h = (o tanh c) W_hr^T, for
    t = 1 ... T, each step with the h and c of the one before; without W_hr, h = o tanh c.

    Backward through time: do = dh tanh c, dc += dh o (1 - tanh^2 c), di = dc g, df = dc c', dg = dc i; dz is these
    times the slopes a (1 - a), or 1 - g^2; on to the step before go dh = dz W_hh and dc f. Over all steps at once:
    dx = dz W_ih, dW_ih = dz^T x, dW_hh = dz^T h', db = sum dz, with h', c' the states that a step read.
    x: (T, B, D), h: (B, P), c: (B, H), W_ih: (4 H, D), W_hh: (4 H, P), W_hr: (P, H), P = H without it.
    """

    name = "lstm"
    arguments = ("input", "h_0", "c_0", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")

    def forward(self, x: Array, *given: Array, steps: Steps, reverse: bool) -> tuple:
        h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = given
        xp, H, P = self.xp, w_hh.shape[0] // 4, w_hh.shape[1]
        bias = b_hh if b_ih is None else b_ih if b_hh is None else widen(b_ih) + widen(b_hh)
        # rows, 4 H: products now, gates after each step. The bias may be FP32, and so is the sum that is stored
        gates = store(gemm(steps.pack(xp, x), w_ih.T, bias, wide=True), like=x)
        h, c = self.state(h0, P, x), self.state(c0, H, x)
        first, cells = (h.copy(), c.copy()), xp.empty((len(gates), H), x.dtype)
        hidden = xp.empty_like(cells)
        outputs = hidden if w_hr is None else xp.empty((len(gates), P), x.dtype)
        for rows, n in self.order:
            self.unit(gates[rows], times(w_hh, h[:n]), c[:n], cells[rows], hidden[rows])
            if w_hr is not None:
                outputs[rows] = store(times(w_hr, hidden[rows]), like=x)
            h, c = steps.after(h, outputs[rows]), steps.after(c, cells[rows])
        y = steps.unpack(xp, outputs)
        self.save(x, w_ih, w_hh, w_hr, *first, gates, cells, y, None if w_hr is None else hidden)
        return y, steps.unsort(xp, h), steps.unsort(xp, c)

    def unit(self, z: Array, m: Array, c: Array, cell: Array, h: Array) -> None:
        """A step of n rows, in place: z (n, 4 H), the products with x, becomes the gates; cell and h (n, H), the state
        and the output, are written. m: the products with the h before, FP32; c: the state before.
        """

        def step(c: Array, *zm: Array) -> tuple:
            z_i, z_f, z_g, z_o = (widen(z) + m for z, m in zip(zm[:4], zm[4:]))
            i, f, g, o = sigmoid_of(self, z_i), sigmoid_of(self, z_f), self.xp.tanh(z_g), sigmoid_of(self, z_o)
            wide = f * widen(c) + i * g
            return (*[store(y, like=c) for y in (i, f, g, o, wide, o * self.xp.tanh(wide))],)

        gates = self.xp.split(z, 4, 1)
        self.device.map_into((*gates, cell, h), step, c, *gates, *self.xp.split(m, 4, 1))

    def unit_backward(self, gates: Array, cell: Array, before: Array, d: Array, dy: Any, dc: Array, dz: Array) -> None:
        """Of such a step, in place: dz (n, 4 H) is written, and dc, FP32, goes on to the step before.

        before: the state before; d: the gradient of h, FP32; dy: what is still to be added to it, or None.
        """

        def step(cell: Array, before: Array, d: Array, dy: Any, dc: Array, *gates: Array) -> tuple:
            d, t, (i, f, g, o) = d if dy is None else d + dy, self.xp.tanh(widen(cell)), (widen(y) for y in gates)
            dc = dc + d * (o * (1 - t * t))
            slopes = dc * g * (i - i * i), dc * widen(before) * (f - f * f), dc * i * (1 - g * g), d * t * (o - o * o)
            return *[store(y, like=cell) for y in slopes], dc * f

        targets = *self.xp.split(dz, 4, 1), dc
        self.device.map_into(targets, step, cell, before, d, dy, dc, *self.xp.split(gates, 4, 1))

    def backward(self, dy: Array | None, dh_n: Array | None, dc_n: Array | None) -> tuple:
        x, w_ih, w_hh, w_hr, h_first, c_first, gates, cells, y, hidden = self.saved
        like_x, like_h, like_c, like_ih, like_hh, like_b_ih, like_b_hh, like_hr = self.targets
        xp, steps = self.xp, self.steps
        h_before = steps.before(xp, h_first, steps.pack(xp, y), self.reverse)
        c_before = steps.before(xp, c_first, cells, self.reverse)
        dh, dc = widen(self.state(dh_n, w_hh.shape[1], x)), widen(self.state(dc_n, cells.shape[1], x))
        dys = None if dy is None else xp.ascontiguousarray(widen(steps.pack(xp, dy)))
        dz, dp = xp.empty_like(gates), xp.empty_like(h_before)  # dp: with W_hr, the gradients of the outputs
        for rows, n in self.order[::-1]:
            d, g = dh[:n], None if dys is None else dys[rows]
            if w_hr is not None:
                dp[rows] = store(d if g is None else d + g, like=x)
                d, g = times(w_hr.T, dp[rows]), None
            self.unit_backward(gates[rows], cells[rows], c_before[rows], d, g, dc[:n], dz[rows])
            dh = steps.after(dh, times(w_hh.T, dz[rows]))
        # Under FP8 it is also a sum of what was stored: the dz of the gates, which no format has rounded
        db = store(reduce(dz, 0, "sum").reshape(-1), like=x)
        return (
            steps.unpack(xp, gemm(dz, w_ih)) if like_x else None,
            store(steps.unsort(xp, dh), like=like_h) if like_h else None,
            store(steps.unsort(xp, dc), like=like_c) if like_c else None,
            gemm(dz.T, steps.pack(xp, x)) if like_ih else None,
            gemm(dz.T, h_before) if like_hh else None,
            db if like_b_ih else None,
            db if like_b_hh else None,
            gemm(dp.T, hidden) if like_hr else None,
        )


# ---------------------------------------------------------------------------------------------------------- functions


def lstm_cell(
    input: Tensor,
    hx: tuple[Tensor, Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM, made of small ops: the definition that `lstm_layer` is held to. Returns (h, c).

    i, f, g, o = input w_ih^T + b_ih + h w_hh^T + b_hh, in this order;  c = sigmoid(f) c + sigmoid(i) tanh(g);
    h = sigmoid(o) tanh(c). input: (B, D), hx: h and c, both (B, H), w_ih: (4 H, D), w_hh: (4 H, H), biases: (4 H,).
    ValueError if they do not match.
    """
    h, c = state_pair("lstm_cell", hx)
    check("lstm_cell", 4, input, {"hx[0]": h, "hx[1]": c}, (w_ih, w_hh, b_ih, b_hh, None), ("w", "b"), "BD")
    i, f, g, o = held("ops.chunk")(linear(input, w_ih, b_ih) + linear(h, w_hh, b_hh), 4, 1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def lstm_layer(
    input: Tensor,
    hx: tuple[Tensor, Tensor] | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    weight_hr: Tensor | None = None,
    *,
    lengths: Any = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps of one LSTM layer in one direction: `lstm_cell` in a loop over input[t], as one op.

    input: (T, B, D); hx: h (B, P) and c (B, H) before the first step, or None for zeros; weight_ih: (4 H, D),
    weight_hh: (4 H, P), biases: (4 H,). weight_hr: (P, H) projects each output, h = (o tanh c) weight_hr^T; without it
    P = H. reverse: from the last step to the first. lengths: see `sequence_steps`.

    Returns the outputs (T, B, P), and h and c after the last step of each sequence. ValueError if shapes do not match,
    or for empty sequences.
    """
    h, c = (None, None) if hx is None else state_pair("lstm_layer", hx)
    weights = weight_ih, weight_hh, bias_ih, bias_hh, weight_hr
    check("lstm_layer", 4, input, {"hx[0]": h, "hx[1]": c}, weights)
    steps = sequence_steps("lstm_layer", input, lengths)
    return LSTM.apply(input, h, c, *weights, steps=steps, reverse=flag("lstm_layer", "reverse", reverse))


def sequence_steps(op: str, input: Tensor, lengths: Any) -> Steps:
    """The steps of input (T, B, ...), of which sequence b has lengths[b]; all have T where lengths is None.

    lengths: B integers in [1, T], in any order, as a list, array or Tensor. What lies beyond a sequence's length is
    padding: its output is zero, it changes no state and gets no gradient, and in reverse a sequence starts at its own
    end. The results are those of PyTorch's pack_padded_sequence, layer, pad_packed_sequence. The host reads lengths:
    a step with them cannot be captured as a CUDA graph.

    TypeError or ValueError, in the name of op, for other lengths and for an input without steps.
    """
    if isinstance(lengths, Steps):
        return lengths
    T, B = input.shape[:2]
    if not T:
        raise ValueError(f"{op}: expected sequences of at least one step, got `input` of shape {input.shape}")
    if lengths is None:
        return Steps(T, B)
    return Steps(T, B, sequence_lengths(op, lengths, T, B))


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


def state_pair(op: str, hx: Any) -> tuple[Tensor, Tensor]:
    """hx as (h, c); TypeError for anything else."""
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        got = f"{len(hx)} of them" if isinstance(hx, (tuple, list)) else type_name(hx)
        raise TypeError(f"{op}: expected `hx` to be two tensors, (h, c), got {got}")
    return hx[0], hx[1]


def check(
    op: str,
    gates: int,
    input: Tensor,
    states: dict,
    weights: tuple,
    names: tuple = ("weight", "bias"),
    axes: str = "TBD",
) -> None:
    """TypeError unless all are floating Tensors, ValueError unless they fit together.

    weights: W_ih, W_hh, b_ih, b_hh, W_hr, the last three or None; names: theirs; axes: those of input.
    """
    (w, b), (w_ih, w_hh, b_ih, b_hh, w_hr) = names, weights
    with_axes(op, "input", input, len(axes))
    H, (B, D) = with_axes(op, f"{w}_hh", w_hh, 2).shape[0] // gates, input.shape[-2:]
    rows = gates * H
    P = H if w_hr is None else with_axes(op, f"{w}_hr", w_hr, 2).shape[0]
    shapes: dict[str, tuple] = {f"{w}_ih": (floating(op, f"{w}_ih", w_ih), (rows, D)), f"{w}_hh": (w_hh, (rows, P))}
    shapes |= {f"{w}_hr": (w_hr, (P, H)), f"{b}_ih": (b_ih, (rows,)), f"{b}_hh": (b_hh, (rows,))}
    shapes |= {name: (state, (B, n)) for (name, state), n in zip(states.items(), (P, H))}
    for name, (x, shape) in shapes.items():
        if x is not None and floating(op, name, x).shape != shape:
            raise ValueError(
                f"{op}: expected `{name}` to be {shape}, got {x.shape} (input is {input.shape}, {w}_hh {w_hh.shape})"
            )
