"""LSTM (Hochreiter & Schmidhuber, 1997); the GRU is in more/gru.py.

`lstm_layer` runs all steps of one layer in one direction as one op, with these roundings:

- The products of the input with its weights need not wait for the recurrence: one GEMM over all steps. Its result is
  the one large array, so it is stored, rounded once (MPT section 3.3: "converted to FP16 before writing to memory"),
  and each step overwrites its part with its gates, which backward needs: no more memory than the gates alone.
- The recurrent product of a step stays in its FP32 accumulators, and the gates are computed from the sum of the two in
  FP32: values that are used at once are not rounded. The gates, the state c and the output h are stored: activations
  are FP16 (MPT section 3.1), and so is the state between steps. Therefore a sequence in two parts, with the state
  carried over, is rounded as in one part, and backward differentiates at the values that the next step read.
- Backward carries dh and dc from step to step in FP32: they are sums of gradients, which are rounded when they are
  complete. The gradients at the gates are stored; dx and the gradients of the weights are one GEMM each over all steps.
"""

from __future__ import annotations

from typing import Any

from .. import backend
from ..arguments import flag, shaped, with_axes
from ..autograd import Array, Op
from ..backend.extras import held
from ..events import type_name
from ..fast_path import replaceable
from ..precision import DOT, gemm, reduce, store, widen
from ..tensor import Tensor
from .unary import sigmoid_of


class Steps:
    """The rows of each step of x (T, B, ...): here all B. more/recurrent.py has sequences of different lengths, and
    the reverse direction.

    rows: (slice, count) of each step's rows among all rows, in the order in which the steps run.
    """

    padded = False

    def __init__(self, T: int, B: int) -> None:
        self.T, self.B = T, B
        self.rows = [(slice(t * B, (t + 1) * B), B) for t in range(T)]

    def pack(self, x: Array) -> Array:
        """(T, B, n) to (rows, n), step after step."""
        return x.reshape(self.T * self.B, x.shape[2])

    def unpack(self, rows: Array) -> Array:
        """(rows, n) to (T, B, n)."""
        return rows.reshape(self.T, self.B, rows.shape[1])

    def sort(self, state: Array) -> Array:
        """A copy of a state (B, n) in the order of a step's rows."""
        return state.copy()

    def unsort(self, state: Array) -> Array:
        """The inverse of `sort`, and a copy as well."""
        return state.copy()

    def after(self, state: Array, rows: Array) -> Array:
        """The running state (B, n) after a step that computed these rows."""
        return rows

    def before(self, first: Array, states: Array) -> Array:
        """The state that each step read: for every row of states (rows, n) the row of the step before; for the first
        step that of first (B, n).
        """
        return backend.of(states).xp.concatenate((first, states))[: len(states)]


@replaceable(lambda w: backend.of(w).name)
def times(w: Array, rows: Array) -> Array:
    """rows w^T in FP32, unrounded. The weight is the first factor: for 32 rows BLAS takes 80 us instead of 146."""
    return gemm(w, rows.T, wide=True).T


def blocks(x: Array, n: int) -> list[Array]:
    """The n blocks of columns of x (rows, n H), views of it. `split` of the libraries takes seven times as long."""
    return [*x.reshape(len(x), n, x.shape[1] // n).swapaxes(0, 1)]


class Recurrent(Op):
    """The base of LSTM and GRU: their input x (T, B, D), one product with it over all steps, running states."""

    kind = DOT
    steps: Steps

    def state(self, given: Array | None, n: int, like: Array) -> Array:
        """A running copy of a state (B, n), sorted; zeros for None."""
        return self.xp.zeros((self.steps.B, n), like.dtype) if given is None else self.steps.sort(given)


class LSTM(Recurrent):
    """i, f, g, o = sigma, sigma, tanh, sigma of x_t W_ih^T + h W_hh^T + b;  c = f c + i g;  h = o tanh c, for
    t = 1 ... T, each step with the h and c of the one before.

    Backward through time: do = dh tanh c, dc += dh o (1 - tanh^2 c), di = dc g, df = dc c', dg = dc i; dz is these
    times the slopes a (1 - a), or 1 - g^2; on to the step before go dh = dz W_hh and dc f. Over all steps at once:
    dx = dz W_ih, dW_ih = dz^T x, dW_hh = dz^T h', db = sum dz, with h', c' the states that a step read.
    x: (T, B, D), h, c: (B, H), W_ih: (4 H, D), W_hh: (4 H, H).
    """

    name = "lstm"
    arguments = ("input", "h_0", "c_0", "weight_ih", "weight_hh", "bias_ih", "bias_hh")

    def forward(self, x: Array, *given: Array, steps: Steps) -> tuple:
        h0, c0, w_ih, w_hh, b_ih, b_hh = given
        H, gates = w_hh.shape[1], self.products(x, w_ih, b_ih, b_hh)
        h, c = self.state(h0, H, x), self.state(c0, H, x)
        first, cells = (h.copy(), c.copy()), self.xp.empty((len(gates), H), x.dtype)
        outputs = self.xp.empty_like(cells)
        for rows, n in steps.rows:
            self.unit(gates[rows], times(w_hh, h[:n]), c[:n], cells[rows], outputs[rows])
            h, c = steps.after(h, outputs[rows]), steps.after(c, cells[rows])
        y = steps.unpack(outputs)
        self.save(x, w_ih, w_hh, *first, gates, cells, y)
        return y, steps.unsort(h), steps.unsort(c)

    def products(self, x: Array, w_ih: Array, b_ih: Array | None, b_hh: Array | None) -> Array:
        """x W_ih^T + b (rows, 4 H) of all steps; each step overwrites its rows by its gates. The bias may be FP32."""
        bias = b_hh if b_ih is None else b_ih if b_hh is None else widen(b_ih) + widen(b_hh)
        return store(gemm(self.steps.pack(x), w_ih.T, bias, wide=True), like=x)

    def unit(self, z: Array, m: Array, c: Array, cell: Array, h: Array) -> None:
        """A step of n rows, in place: z (n, 4 H), the products with x, becomes the gates; cell and h (n, H), the state
        and the output, are written. m: the products with the h before, FP32; c: the state before.
        """

        def step(c: Array, *zm: Array) -> tuple:
            z_i, z_f, z_g, z_o = (widen(z) + m for z, m in zip(zm[:4], zm[4:]))
            i, f, g, o = sigmoid_of(self, z_i), sigmoid_of(self, z_f), self.xp.tanh(z_g), sigmoid_of(self, z_o)
            wide = f * widen(c) + i * g
            return (*[store(y, like=c) for y in (i, f, g, o, wide, o * self.xp.tanh(wide))],)

        gates = blocks(z, 4)
        self.device.map_into((*gates, cell, h), step, c, *gates, *blocks(m, 4))

    def unit_backward(self, gates: Array, cell: Array, before: Array, d: Array, dy: Any, dc: Array, dz: Array) -> None:
        """The backward of a step, in place: it writes dz (n, 4 H), and dc, FP32, for the step before.

        before: the state before; d: the gradient of h, FP32; dy: a gradient to add to it, or None.
        """

        def step(cell: Array, before: Array, d: Array, dy: Any, dc: Array, *gates: Array) -> tuple:
            d, t, (i, f, g, o) = d if dy is None else d + dy, self.xp.tanh(widen(cell)), (widen(y) for y in gates)
            dc = dc + d * (o * (1 - t * t))
            slopes = dc * g * (i - i * i), dc * widen(before) * (f - f * f), dc * i * (1 - g * g), d * t * (o - o * o)
            return *[store(y, like=cell) for y in slopes], dc * f

        targets = *blocks(dz, 4), dc
        self.device.map_into(targets, step, cell, before, d, dy, dc, *blocks(gates, 4))

    def backward(self, dy: Array | None, dh_n: Array | None, dc_n: Array | None) -> tuple:
        x, w_ih, w_hh, h_first, c_first, gates, cells, y = self.saved
        xp, steps, H = self.xp, self.steps, w_hh.shape[1]
        h_before, c_before = steps.before(h_first, steps.pack(y)), steps.before(c_first, cells)
        dh, dc = widen(self.state(dh_n, H, x)), widen(self.state(dc_n, H, x))
        dys = None if dy is None else xp.ascontiguousarray(widen(steps.pack(dy)))
        dz = xp.empty_like(gates)
        for rows, n in steps.rows[::-1]:
            g = None if dys is None else dys[rows]
            self.unit_backward(gates[rows], cells[rows], c_before[rows], dh[:n], g, dc[:n], dz[rows])
            dh = steps.after(dh, times(w_hh.T, dz[rows]))
        return self.of_all_steps(dz, dh, dc, x, h_before, w_ih)

    def of_all_steps(self, dz: Array, dh: Array, dc: Array, x: Array, h_before: Array, w_ih: Array) -> tuple:
        """The seven gradients, from those at the gates and at the first state; h_before: the h that each step read."""
        like_x, like_h, like_c, like_ih, like_hh, like_b_ih, like_b_hh = self.targets[:7]
        # Under FP8 this also sums stored values: the dz of the gates, which no format has rounded
        db = store(reduce(dz, 0, "sum").reshape(-1), like=x)
        return (
            self.steps.unpack(gemm(dz, w_ih)) if like_x else None,
            store(self.steps.unsort(dh), like=like_h) if like_h else None,
            store(self.steps.unsort(dc), like=like_c) if like_c else None,
            gemm(dz.T, self.steps.pack(x)) if like_ih else None,
            gemm(dz.T, h_before) if like_hh else None,
            db if like_b_ih else None,
            db if like_b_hh else None,
        )


# ---------------------------------------------------------------------------------------------------------- functions


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
    """All steps of one LSTM layer in one direction: `ops.lstm_cell` in a loop over input[t], as one op.

    input: (T, B, D); hx: h (B, P) and c (B, H) before the first step, or None for zeros; weight_ih: (4 H, D),
    weight_hh: (4 H, P), biases: (4 H,). weight_hr: (P, H) projects each output, h = (o tanh c) weight_hr^T; without it
    P = H. reverse: from the last step to the first. lengths: see `sequence_steps`.

    Returns the outputs (T, B, P), and h and c after the last step of each sequence. ValueError if shapes do not match,
    or for empty sequences.
    """
    op, (h, c) = "lstm_layer", (None, None) if hx is None else state_pair("lstm_layer", hx)
    weights: dict[str, Any] = {"weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias_ih, "bias_hh": bias_hh}
    weights |= {} if weight_hr is None else {"weight_hr": weight_hr}
    steps = sequence_steps(op, input, lengths, flag(op, "reverse", reverse))
    check(op, 4, input, {"hx[0]": h, "hx[1]": c}, weights)
    kind = LSTM if weight_hr is None else held("ops.recurrent.ProjectedLSTM")
    return kind.apply(input, h, c, *weights.values(), steps=steps)


def sequence_steps(op: str, input: Tensor, lengths: Any, reverse: bool = False) -> Steps:
    """The steps of input (T, B, D); sequence b has lengths[b] of them, or T if lengths is None.

    lengths: B integers in [1, T], in any order, as a list, array or Tensor. Steps beyond a sequence's length are
    padding: their output is zero, they change no state and get no gradient, and in reverse a sequence starts at its own
    end. The results are those of PyTorch's pack_padded_sequence, layer, pad_packed_sequence. The host reads lengths:
    a step with them cannot be captured as a CUDA graph.

    TypeError or ValueError, in the name of op, for other lengths and for an input without steps.
    """
    T, B, _ = with_axes(op, "input", input, 3).shape
    if not T:
        raise ValueError(f"{op}: expected sequences of at least one step, got `input` of shape {input.shape}")
    plain = not reverse and (lengths is None or type(lengths) is Steps)
    return Steps(T, B) if plain else held("ops.recurrent.packed_steps")(op, T, B, lengths, reverse)


def state_pair(op: str, hx: Any) -> tuple[Tensor, Tensor]:
    """hx as (h, c); TypeError for anything else."""
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        got = f"{len(hx)} of them" if isinstance(hx, (tuple, list)) else type_name(hx)
        raise TypeError(f"{op}: expected `hx` to be two tensors, (h, c), got {got}")
    return hx[0], hx[1]


def check(op: str, gates: int, input: Tensor, states: dict, weights: dict, axes: int = 3) -> None:
    """TypeError unless all are floating Tensors, ValueError unless they fit together.

    weights: by their names W_ih, W_hh, b_ih, b_hh (biases may be None), and W_hr if there is one; axes: input.ndim.
    """
    (B, D), (ih, hh, *_) = with_axes(op, "input", input, axes).shape[-2:], weights
    H = with_axes(op, hh, weights[hh], 2).shape[0] // gates
    P = with_axes(op, "weight_hr", weights["weight_hr"], 2).shape[0] if "weight_hr" in weights else H
    with_axes(op, ih, weights[ih], 2)
    shapes = (gates * H, D), (gates * H, P), (gates * H,), (gates * H,), (P, H)
    for (name, x), shape in [*zip(weights.items(), shapes), *zip(states.items(), ((B, P), (B, H)))]:
        shaped(op, name, x, shape, f"input {input.shape} and {hh} {weights[hh].shape}")
