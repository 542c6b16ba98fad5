"""LSTM (Hochreiter & Schmidhuber, 1997; projection: Sak et al., 2014) and GRU (Cho et al., 2014).

`lstm_cell` and `gru_cell`, one step made of small ops, are the definition. `lstm_layer` and `gru_layer` run all steps
of one layer in one direction as one op. What is rounded there, and what is not:

- The products of the input with its weights need not wait for the recurrence: one GEMM over all steps. Its result is
  the one large array, so it is stored, rounded once (MPT section 3.3: "converted to FP16 before writing to memory"),
  and each step overwrites its part with its gates, which backward needs: no more memory than the gates alone.
- The recurrent product of a step stays in its FP32 accumulators, and the gates are computed from the sum of the two in
  FP32: what is used at once is not rounded. The gates, the state c and the output h are stored: activations are FP16
  (MPT section 3.1), the state between steps, too. So a sequence run in two parts, state carried over, is rounded as in
  one, and backward differentiates at the values that the next step read.
- Backward carries dh and dc from step to step in FP32: they are sums of gradients, which are rounded when they are
  complete. The gradients at the gates are stored; dx and the gradients of the weights are one GEMM each over all steps.

The methods `_gates` and `_gates_backward` do what a step does besides its products.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from .. import backend
from ..arguments import flag, floating
from ..autograd import Array, Op
from ..caller import type_name
from ..precision import DOT, gemm, reduce, store, widen
from ..tensor import Tensor, array_of
from .activation import sigmoid, tanh
from .dot import linear, operand
from .shape import chunk


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
        """The inverse of `sort`, a copy, too."""
        return state[xp.asarray(self.back)] if self.padded else state.copy()

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


class _Recurrent(Op):
    """What LSTM and GRU share: their input x (T, B, D), one product with it over all steps, running states."""

    kind = DOT
    steps: Steps
    reverse: bool

    @property
    def order(self) -> list:
        """Of the steps: (rows, how many)."""
        return self.steps.rows[::-1] if self.reverse else self.steps.rows

    def _start(self, x: Array, w_ih: Array, bias: Array | None) -> Array:
        """The product of all rows of x with W_ih, stored."""
        wide = bias is not None and bias.dtype != x.dtype  # cuBLAS would round such a bias before the product is added
        return store(gemm(self.steps.pack(self.xp, x), w_ih.T, bias, wide=wide), like=x)

    def _state(self, state: Array | None, n: int, like: Array) -> Array:
        """A running copy of a state (B, n), sorted; zeros for None."""
        xp = self.xp
        return xp.zeros((self.steps.B, n), like.dtype) if state is None else self.steps.sort(xp, state)

    def _after(self, state: Array, rows: Array) -> Array:
        """The running state after a step that computed its first rows: the rows themselves, if they are all of it."""
        if not self.steps.padded and rows.flags.c_contiguous:
            return rows
        state[: len(rows)] = rows  # the other sequences have ended, or the rows lie transposed (products by BLAS)
        return state

    def _read(self, *arrays: Array | None) -> list[Any]:
        """Stored arrays as the steps read them: NumPy's widened before the loop."""
        return [operand(self.device, x) for x in arrays]

    def _times(self, w: Array, rows: Array) -> Array:
        """rows w^T, in FP32 accumulators. For BLAS the weight goes first: for 32 rows 80 us instead of 146."""
        if self.device.gemm_rounds:
            return gemm(rows, w.T, wide=True)
        return gemm(w, operand(self.device, rows).T, wide=True, like=rows).T

    def _grad_rows(self, dy: Array | None) -> Array | None:
        return None if dy is None else self.xp.ascontiguousarray(self.steps.pack(self.xp, dy))

    def _sigmoid(self, z: Array) -> None:
        """z <- 1 / (1 + e^-z). e^-z may overflow to inf, and 1 / inf is the right 0."""
        self.xp.negative(z, out=z)
        self.xp.exp(z, out=z)
        z += 1
        self.xp.divide(1, z, out=z)


class LSTM(_Recurrent):
    """i, f, g, o = sigma, sigma, tanh, sigma of x_t W_ih^T + h W_hh^T + b;  c = f c + i g;  h = (o tanh c) W_hr^T, for
    t = 1 ... T, each step with the h and c of the one before; without W_hr, h = o tanh c.

    Backward through time: do = dh tanh c, dc += dh o (1 - tanh^2 c), di = dc g, df = dc c', dg = dc i; dz is these
    times the slopes a (1 - a), or 1 - g^2; on to the step before go dh = dz W_hh and dc f. Over all steps at once:
    dx = dz W_ih, dW_ih = dz^T x, dW_hh = dz^T h', db = sum dz, with h', c' the states that a step read.
    x: (T, B, D), h: (B, P), c: (B, H), W_ih: (4 H, D), W_hh: (4 H, P), W_hr: (P, H), P = H without it.
    """

    name = "lstm"
    arguments = ("input", "h_0", "c_0", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")

    def forward(
        self,
        x: Array,
        h0: Array | None,
        c0: Array | None,
        w_ih: Array,
        w_hh: Array,
        b_ih: Array | None,
        b_hh: Array | None,
        w_hr: Array | None,
        *,
        steps: Steps,
        reverse: bool,
    ) -> tuple:
        xp, H, P = self.xp, w_hh.shape[0] // 4, w_hh.shape[1]
        bias = b_hh if b_ih is None else b_ih if b_hh is None else widen(b_ih) + widen(b_hh)
        a = self._start(x, w_ih, bias)  # rows, 4 H: products now, gates after each step
        h, c = self._state(h0, P, x), self._state(c0, H, x)
        first = h.copy(), c.copy()
        cells, hidden = xp.empty((len(a), H), x.dtype), xp.empty((len(a), H), x.dtype)
        outputs = hidden if w_hr is None else xp.empty((len(a), P), x.dtype)
        a, wide_hh, wide_hr = self._read(a, w_hh, w_hr)
        for rows, n in self.order:
            self._gates(self._times(wide_hh, h[:n]), c[:n], a[rows], cells[rows], hidden[rows])
            if w_hr is not None:
                outputs[rows] = store(self._times(wide_hr, hidden[rows]), like=x)
            h, c = self._after(h, outputs[rows]), self._after(c, cells[rows])
        y = steps.unpack(xp, outputs)
        self.save(x, w_ih, w_hh, w_hr, *first, store(a, like=x), cells, y, None if w_hr is None else hidden)
        return y, steps.unsort(xp, h), steps.unsort(xp, c)

    def _gates(self, m: Array, c: Array, a: Array, cell: Array, h: Array) -> None:
        """One step of n rows, in FP32 between reading and storing: a, cell, h <- gates, state, output.

        m: (n, 4 H), the products with h, FP32; c: (n, H), the state before; a: (n, 4 H), the products with x, widened.
        """
        xp = self.xp
        a += m
        gates = a.reshape(len(a), 4, c.shape[1])
        i, f, g, o = gates[:, 0], gates[:, 1], gates[:, 2], gates[:, 3]
        t = xp.tanh(g)
        self._sigmoid(a)  # all of it: one pass over neighbours in memory is faster than two around g
        g[...] = t
        wide = f * widen(c)
        wide += i * g
        cell[...] = store(wide, like=cell)
        xp.tanh(wide, out=wide)
        wide *= o
        h[...] = store(wide, like=h)

    def backward(self, dy: Array | None, dh_n: Array | None, dc_n: Array | None) -> tuple:
        x, w_ih, w_hh, w_hr, h_first, c_first, a, cells, y, hidden = self.saved
        like_x, like_h, like_c, like_ih, like_hh, like_b_ih, like_b_hh, like_hr = self.targets
        xp, steps = self.xp, self.steps
        h_before = steps.before(xp, h_first, steps.pack(xp, y), self.reverse)
        c_before = steps.before(xp, c_first, cells, self.reverse)
        dh, dc = widen(self._state(dh_n, w_hh.shape[1], x)), widen(self._state(dc_n, cells.shape[1], x))
        dz, dp = xp.empty_like(a), xp.empty_like(h_before)  # dp: with W_hr, the gradients of the outputs
        wide_hh, wide_hr, a, cells, c_before, dys = self._read(w_hh, w_hr, a, cells, c_before, self._grad_rows(dy))
        for rows, n in self.order[::-1]:
            d, g, z = dh[:n], None if dys is None else dys[rows], dz[rows]
            if w_hr is not None:
                if g is not None:
                    d += g
                dp[rows] = store(d, like=x)
                d, g = self._times(wide_hr.T, dp[rows]), None
            self._gates_backward(a[rows], c_before[rows], cells[rows], d, g, dc[:n], z)
            dh = self._after(dh, self._times(wide_hh.T, z))
        del a, cells, c_before, dys  # twice as large as what is stored
        (wide,) = self._read(dz)
        # Under FP8, too, a sum of what was stored: the dz of the gates, which no format has rounded
        db = (like_b_ih or like_b_hh) and store(reduce(wide, 0, "sum", like=dz).reshape(-1), like=x)
        return (
            like_x and steps.unpack(xp, gemm(wide, w_ih, like=dz)),
            like_h and store(steps.unsort(xp, dh), like=like_h),
            like_c and store(steps.unsort(xp, dc), like=like_c),
            like_ih and gemm(wide.T, steps.pack(xp, x), like=dz),
            like_hh and gemm(wide.T, h_before, like=dz),
            like_b_ih and db,
            like_b_hh and db,
            like_hr and gemm(dp.T, hidden),
        )

    def _gates_backward(
        self, a: Array, c_before: Array, cell: Array, dh: Array, dy: Array | None, dc: Array, dz: Array
    ) -> None:
        """One step of n rows: dz (n, 4 H) <- the gradient at the gates, dc <- the gradient of the state before.

        a, c_before, cell: as `_read` gives them; dh, dc: (n, H), FP32, the gradients of this step's output and state;
        dy: (n, H), or None: the output's gradient from outside, not yet in dh. dh may be overwritten.
        """
        xp = self.xp
        if dy is not None:
            dh += dy
        gates = a.reshape(len(a), 4, cell.shape[1])
        i, f, g, o = gates[:, 0], gates[:, 1], gates[:, 2], gates[:, 3]
        squares = gates * gates
        slope = gates - squares
        xp.subtract(1, squares[:, 2], out=slope[:, 2])
        t = xp.tanh(cell)
        wide = xp.empty_like(gates)
        xp.multiply(dh, t, out=wide[:, 3])
        t *= t
        xp.subtract(1, t, out=t)
        t *= o
        t *= dh
        dc += t
        xp.multiply(dc, g, out=wide[:, 0])
        xp.multiply(dc, c_before, out=wide[:, 1])
        xp.multiply(dc, i, out=wide[:, 2])
        dc *= f
        wide *= slope
        dz[...] = store(wide.reshape(a.shape), like=dz)


class GRU(_Recurrent):
    """r, z = sigma of x_t W_ih^T + b_ih + m with m = h W_hh^T + b_hh, n = tanh(x_t W_in^T + b_in + r m_n);
    h = (1 - z) n + z h, for t = 1 ... T, each step with the h of the one before. Rows of the weights: r, z, n.

    Backward through time: dn = dh (1 - z) (1 - n^2), dz = dh (h' - n) z (1 - z), dr = dn m_n r (1 - r); on to the step
    before goes dh z + dm W_hh with dm = dr, dz, dn r. Over all steps at once, with dp = dr, dz, dn:
    dx = dp W_ih, dW_ih = dp^T x, db_ih = sum dp, dW_hh = dm^T h', db_hh = sum dm, h' the state that a step read.
    x: (T, B, D), h: (B, H), W_ih: (3 H, D), W_hh: (3 H, H).
    """

    name = "gru"
    arguments = ("input", "h_0", "weight_ih", "weight_hh", "bias_ih", "bias_hh")

    def forward(
        self,
        x: Array,
        h0: Array | None,
        w_ih: Array,
        w_hh: Array,
        b_ih: Array | None,
        b_hh: Array | None,
        *,
        steps: Steps,
        reverse: bool,
    ) -> tuple:
        xp, H = self.xp, w_hh.shape[1]
        a = self._start(x, w_ih, b_ih)  # rows, 3 H: products now, gates after each step
        h = self._state(h0, H, x)
        first = h.copy()
        inner, outputs = xp.empty((len(a), H), x.dtype), xp.empty((len(a), H), x.dtype)
        a, wide_hh = self._read(a, w_hh)
        for rows, n in self.order:
            self._gates(self._times(wide_hh, h[:n]), b_hh, h[:n], a[rows], inner[rows], outputs[rows])
            h = self._after(h, outputs[rows])
        y = steps.unpack(xp, outputs)
        self.save(x, w_ih, w_hh, first, store(a, like=x), inner, y)
        return y, steps.unsort(xp, h)

    def _gates(self, m: Array, b: Array | None, h_before: Array, a: Array, inner: Array, h: Array) -> None:
        """One step of n rows, in FP32 between reading and storing: a, inner, h <- gates, m_n, output.

        m: (n, 3 H), the products with h, FP32; b: (3 H,), their bias; h_before: (n, H); a: (n, 3 H), the products with
        x, widened.
        """
        xp, H = self.xp, h.shape[1]
        if b is not None:
            m += widen(b)
        m_n = m[:, 2 * H :]
        rz, r, z, n = a[:, : 2 * H], a[:, :H], a[:, H : 2 * H], a[:, 2 * H :]
        inner[...] = store(m_n, like=inner)
        rz += m[:, : 2 * H]
        self._sigmoid(rz)
        n += r * m_n
        xp.tanh(n, out=n)
        y = widen(h_before) - n
        y *= z
        y += n
        h[...] = store(y, like=h)

    def backward(self, dy: Array | None, dh_n: Array | None) -> tuple:
        x, w_ih, w_hh, first, a, inner, y = self.saved
        like_x, like_h, like_ih, like_hh, like_b_ih, like_b_hh = self.targets
        xp, steps = self.xp, self.steps
        before = steps.before(xp, first, steps.pack(xp, y), self.reverse)
        dh = widen(self._state(dh_n, w_hh.shape[1], x))
        past = -xp.zeros_like(dh)  # the part of dh that goes past the products; x + -0 is x, also where x is -0
        dp, dm = xp.empty_like(a), xp.empty_like(a)
        wide_hh, a, inner, seen, dys = self._read(w_hh, a, inner, before, self._grad_rows(dy))
        for rows, n in self.order[::-1]:
            g, z = None if dys is None else dys[rows], dm[rows]
            self._gates_backward(a[rows], inner[rows], seen[rows], dh[:n], g, past[:n], dp[rows], z)
            dh = self._after(dh, self._times(wide_hh.T, z))
        del a, inner, dys  # twice as large as what is stored
        wide_dp, wide_dm = self._read(dp, dm)
        return (
            like_x and steps.unpack(xp, gemm(wide_dp, w_ih, like=dp)),
            like_h and store(steps.unsort(xp, dh + past), like=like_h),
            like_ih and gemm(wide_dp.T, steps.pack(xp, x), like=dp),
            like_hh and gemm(wide_dm.T, seen, like=dm),
            like_b_ih and store(reduce(wide_dp, 0, "sum", like=dp).reshape(-1), like=x),
            like_b_hh and store(reduce(wide_dm, 0, "sum", like=dm).reshape(-1), like=x),
        )

    def _gates_backward(
        self, a: Array, inner: Array, h_before: Array, dh: Array, dy: Array | None, past: Array, dp: Array, dm: Array
    ) -> None:
        """One step of n rows: dp, dm (n, 3 H) <- the gradients of the products with x and with h; past <- dh z.

        a, inner, h_before: as `_read` gives them; dh, past: (n, H), FP32, and dy, or None: the gradients of this step's
        output from the products of the step after, past them, and from outside. dh may be overwritten.
        """
        xp, H = self.xp, inner.shape[1]
        dh += past
        if dy is not None:
            dh += dy
        rz, n = a[:, : 2 * H], a[:, 2 * H :]
        r, z = rz[:, :H], rz[:, H:]
        slope = a * a
        d_rz, d_n = slope[:, : 2 * H], slope[:, 2 * H :]
        d_r, d_z = d_rz[:, :H], d_rz[:, H:]
        xp.subtract(rz, d_rz, out=d_rz)
        xp.subtract(1, d_n, out=d_n)
        d_z *= h_before - n
        d_z *= dh
        d_n *= dh
        d_n *= 1 - z
        d_r *= d_n
        d_r *= inner
        dp[...] = store(slope, like=dp)
        dm[:, : 2 * H] = dp[:, : 2 * H]
        dm[:, 2 * H :] = store(d_n * r, like=dm)
        xp.multiply(dh, z, out=past)


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
    _check("lstm_cell", 4, input, {"hx[0]": h, "hx[1]": c}, w_ih, w_hh, b_ih, b_hh, names=("w", "b"))
    i, f, g, o = chunk(linear(input, w_ih, b_ih) + linear(h, w_hh, b_hh), 4, 1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """One step of a GRU, made of small ops: the definition that `gru_layer` is held to. Returns h.

    With x = input w_ih^T + b_ih and m = hx w_hh^T + b_hh, both in the order r, z, n: r = sigmoid(x_r + m_r),
    z = sigmoid(x_z + m_z), n = tanh(x_n + r m_n), h = (1 - z) n + z hx. input: (B, D), hx: (B, H), w_ih: (3 H, D),
    w_hh: (3 H, H), biases: (3 H,). ValueError if they do not match.
    """
    _check("gru_cell", 3, input, {"hx": hx}, w_ih, w_hh, b_ih, b_hh, names=("w", "b"))
    x_r, x_z, x_n = chunk(linear(input, w_ih, b_ih), 3, 1)
    m_r, m_z, m_n = chunk(linear(hx, w_hh, b_hh), 3, 1)
    r, z = sigmoid(x_r + m_r), sigmoid(x_z + m_z)
    n = tanh(x_n + r * m_n)
    return (1 - z) * n + z * hx


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
    weights = weight_ih, weight_hh, bias_ih, bias_hh
    _check("lstm_layer", 4, input, {"hx[0]": h, "hx[1]": c}, *weights, weight_hr, sequence=True)
    steps = sequence_steps("lstm_layer", input, lengths)
    return LSTM.apply(input, h, c, *weights, weight_hr, steps=steps, reverse=flag("lstm_layer", "reverse", reverse))


def gru_layer(
    input: Tensor,
    hx: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    *,
    lengths: Any = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """All steps of one GRU layer in one direction: `gru_cell` in a loop over input[t], as one op.

    input: (T, B, D); hx: h (B, H) before the first step, or None for zeros; weight_ih: (3 H, D), weight_hh: (3 H, H),
    biases: (3 H,). reverse: from the last step to the first. lengths: see `sequence_steps`.

    Returns the outputs (T, B, H), and h after the last step of each sequence. ValueError if shapes do not match, or for
    empty sequences.
    """
    weights = weight_ih, weight_hh, bias_ih, bias_hh
    _check("gru_layer", 3, input, {"hx": hx}, *weights, sequence=True)
    steps = sequence_steps("gru_layer", input, lengths)
    return GRU.apply(input, hx, *weights, steps=steps, reverse=flag("gru_layer", "reverse", reverse))


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


def _check(
    op: str,
    gates: int,
    input: Tensor,
    states: dict[str, Tensor | None],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None = None,
    *,
    names: tuple[str, str] = ("weight", "bias"),
    sequence: bool = False,
) -> None:
    """ValueError unless input, states, weights and biases fit together; TypeError unless they are floating Tensors."""
    w, b = names
    x: Any
    for name, x, axes in (
        ("input", input, "TBD" if sequence else "BD"),
        (f"{w}_ih", w_ih, "GD"),
        (f"{w}_hh", w_hh, "GH"),
        (f"{w}_hr", w_hr, "PH"),
    ):
        if (x is not None or name != f"{w}_hr") and floating(op, name, x).ndim != len(axes):
            raise ValueError(f"{op}: expected `{name}` to be ({', '.join(axes)}), got shape {x.shape}")
    rows, (B, D) = w_hh.shape[0], input.shape[-2:]
    H = rows // gates
    P = H if w_hr is None else w_hr.shape[0]
    shapes: list[tuple] = [
        (f"{w}_ih", w_ih, (gates * H, D)),
        (f"{w}_hh", w_hh, (gates * H, P)),
        (f"{w}_hr", w_hr, (P, H)),
    ]
    shapes += [(f"{b}_ih", b_ih, (gates * H,)), (f"{b}_hh", b_hh, (gates * H,))]
    shapes += [(name, state, (B, n)) for (name, state), n in zip(states.items(), (P, H))]
    for name, x, shape in shapes:
        if x is not None and floating(op, name, x).shape != shape:
            raise ValueError(
                f"{op}: expected `{name}` to be {shape}, got {x.shape} (input is {input.shape}, {w}_hh {w_hh.shape})"
            )
