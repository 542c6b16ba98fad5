"""GRU (Cho et al., 2014): `gru_cell`, one step made of small ops, is the definition; `gru_layer` runs all steps as one
op. What is rounded, and what is not, is as in an LSTM (ops/recurrent.py).
"""

from __future__ import annotations

from typing import Any

from ...arguments import flag
from ...autograd import Array
from ...precision import gemm, reduce, store, widen
from ...tensor import Tensor
from ..dot import linear
from ..recurrent import Recurrent, Steps, blocks, check, sequence_steps, times
from ..unary import sigmoid, sigmoid_of, tanh
from .views import chunk


class GRU(Recurrent):
    """r, z = sigma of x_t W_ih^T + b_ih + m with m = h W_hh^T + b_hh, n = tanh(x_t W_in^T + b_in + r m_n);
    h = (1 - z) n + z h, for t = 1 ... T, each step with the h of the one before. Rows of the weights: r, z, n.

    Backward through time: dn = dh (1 - z) (1 - n^2), dz = dh (h' - n) z (1 - z), dr = dn m_n r (1 - r); on to the step
    before goes dh z + dm W_hh with dm = dr, dz, dn r. Over all steps at once, with dp = dr, dz, dn:
    dx = dp W_ih, dW_ih = dp^T x, db_ih = sum dp, dW_hh = dm^T h', db_hh = sum dm, h' the state that a step read.
    x: (T, B, D), h: (B, H), W_ih: (3 H, D), W_hh: (3 H, H).
    """

    name = "gru"
    arguments = ("input", "h_0", "weight_ih", "weight_hh", "bias_ih", "bias_hh")

    def forward(self, x: Array, *given: Array, steps: Steps) -> tuple:
        h0, w_ih, w_hh, b_ih, b_hh = given
        xp, H = self.xp, w_hh.shape[1]
        gates = store(gemm(steps.pack(x), w_ih.T, b_ih, wide=True), like=x)  # rows, 3 H: products now, gates later
        h = self.state(h0, H, x)
        first, inner, outputs = h.copy(), xp.empty((len(gates), H), x.dtype), xp.empty((len(gates), H), x.dtype)

        def step(h: Array, x_r: Array, x_z: Array, x_n: Array, *mb: Array) -> tuple:
            m_r, m_z, m_n = mb if len(mb) == 3 else (m + widen(b) for m, b in zip(mb[:3], mb[3:]))
            r, z = sigmoid_of(self, widen(x_r) + m_r), sigmoid_of(self, widen(x_z) + m_z)
            n = self.xp.tanh(widen(x_n) + r * m_n)
            return *[store(y, like=h) for y in (r, z, n, m_n)], store((widen(h) - n) * z + n, like=h)

        biases = [] if b_hh is None else xp.split(b_hh, 3)
        for rows, count in steps.rows:
            parts, m = blocks(gates[rows], 3), blocks(times(w_hh, h[:count]), 3)
            self.device.map_into((*parts, inner[rows], outputs[rows]), step, h[:count], *parts, *m, *biases)
            h = steps.after(h, outputs[rows])
        y = steps.unpack(outputs)
        self.save(x, w_ih, w_hh, first, gates, inner, y)
        return y, steps.unsort(h)

    def backward(self, dy: Array | None, dh_n: Array | None) -> tuple:
        x, w_ih, w_hh, first, gates, inner, y = self.saved
        like_x, like_h, like_ih, like_hh, like_b_ih, like_b_hh = self.targets
        xp, steps = self.xp, self.steps
        before = steps.before(first, steps.pack(y))
        dh, dys = widen(self.state(dh_n, w_hh.shape[1], x)), None if dy is None else steps.pack(dy)
        dp, dm, past = xp.empty_like(gates), xp.empty_like(gates), xp.empty_like(dh)  # past: goes past the products

        def step(d: Array, dy: Any, before: Array, m_n: Array, r: Array, z: Array, n: Array) -> tuple:
            d, (r, z, n) = d if dy is None else d + widen(dy), (widen(y) for y in (r, z, n))
            dn = (1 - n * n) * d * (1 - z)
            dr, dz = (r - r * r) * dn * widen(m_n), (z - z * z) * (widen(before) - n) * d
            return *[store(y, like=before) for y in (dr, dz, dn, dr, dz, dn * r)], d * z

        for rows, count in steps.rows[::-1]:
            targets = *blocks(dp[rows], 3), *blocks(dm[rows], 3), past[:count]
            g = None if dys is None else dys[rows]
            parts = before[rows], inner[rows], *blocks(gates[rows], 3)
            self.device.map_into(targets, step, dh[:count], g, *parts)
            self.device.map_into((dh[:count],), lambda d, past: (d + past,), times(w_hh.T, dm[rows]), past[:count])
        return (
            steps.unpack(gemm(dp, w_ih)) if like_x else None,
            store(steps.unsort(dh), like=like_h) if like_h else None,
            gemm(dp.T, steps.pack(x)) if like_ih else None,
            gemm(dm.T, before) if like_hh else None,
            store(reduce(dp, 0, "sum").reshape(-1), like=x) if like_b_ih else None,
            store(reduce(dm, 0, "sum").reshape(-1), like=x) if like_b_hh else None,
        )


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a GRU, made of small ops: the definition that `gru_layer` is held to. Returns h.

    With x = input w_ih^T + b_ih and m = hx w_hh^T + b_hh: r = sigmoid(x_r + m_r), z = sigmoid(x_z + m_z),
    n = tanh(x_n + r m_n), h = (1 - z) n + z hx. Shapes: see `gru_layer`. ValueError if they do not match.
    """
    check("gru_cell", 3, input, {"hx": hx}, {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}, 2)
    x_r, x_z, x_n = chunk(linear(input, w_ih, b_ih), 3, 1)
    m_r, m_z, m_n = chunk(linear(hx, w_hh, b_hh), 3, 1)
    r, z = sigmoid(x_r + m_r), sigmoid(x_z + m_z)
    n = tanh(x_n + r * m_n)
    return (1 - z) * n + z * hx


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

    input: (T, B, D); hx: (B, H), None for zeros; weight_ih: (3 H, D), weight_hh: (3 H, H), biases: (3 H,). reverse:
    from the last step to the first. lengths: see `sequence_steps`. Returns the outputs (T, B, H), and h after the last
    step of each sequence. ValueError for other shapes, and empty sequences.
    """
    steps = sequence_steps("gru_layer", input, lengths, flag("gru_layer", "reverse", reverse))
    weights = {"weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias_ih, "bias_hh": bias_hh}
    check("gru_layer", 3, input, {"hx": hx}, weights)
    return GRU.apply(input, hx, *weights.values(), steps=steps)
