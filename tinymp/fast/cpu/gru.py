"""GRU on a CPU, in the way of the LSTM (recurrent.py)."""

from __future__ import annotations

from typing import Any

from ...autograd import Array
from ...fast_path import fast_path
from ...ops.more.gru import GRU, Steps
from ...precision import gemm, reduce, store, widen
from .recurrent import after, gradients, products, sigmoid, times


@fast_path(GRU.forward)
def gru_forward(op: GRU, x: Array, *given: Array, steps: Steps) -> tuple:
    h0, w_ih, w_hh, b_ih, b_hh = given
    xp, H = op.xp, w_hh.shape[1]
    a = products(x, w_ih, b_ih, steps)  # rows, 3 H: products now, gates after each step
    h = op.state(h0, H, x)
    first = h.copy()
    inner, outputs = xp.empty((len(a), H), x.dtype), xp.empty((len(a), H), x.dtype)
    wide_hh = widen(w_hh)
    for rows, n in steps.rows:
        gru_gates(xp, times(wide_hh, h[:n]), b_hh, h[:n], a[rows], inner[rows], outputs[rows])
        h = after(h, outputs[rows], steps)
    y = steps.unpack(outputs)
    op.save(x, w_ih, w_hh, first, store(a, like=x), inner, y)
    return y, steps.unsort(h)


def gru_gates(xp: Any, m: Array, b: Array | None, h_before: Array, a: Array, inner: Array, h: Array) -> None:
    """One step of n rows, in FP32 between reading and storing: a, inner, h <- gates, m_n, output.

    m: (n, 3 H), the products with h, FP32; b: (3 H,), their bias; h_before: (n, H); a: (n, 3 H), the products with
    x, widened.
    """
    H = h.shape[1]
    if b is not None:
        m += widen(b)
    m_n = m[:, 2 * H :]
    rz, r, z, n = a[:, : 2 * H], a[:, :H], a[:, H : 2 * H], a[:, 2 * H :]
    inner[...] = store(m_n, like=inner)
    rz += m[:, : 2 * H]
    sigmoid(xp, rz)
    n += r * m_n
    xp.tanh(n, out=n)
    y = widen(h_before) - n
    y *= z
    y += n
    h[...] = store(y, like=h)


@fast_path(GRU.backward)
def gru_backward(op: GRU, dy: Array | None, dh_n: Array | None) -> tuple:
    x, w_ih, w_hh, first, a, inner, y = op.saved
    like_x, like_h, like_ih, like_hh, like_b_ih, like_b_hh = op.targets
    xp, steps = op.xp, op.steps
    before = steps.before(first, steps.pack(y))
    dh = widen(op.state(dh_n, w_hh.shape[1], x))
    past = -xp.zeros_like(dh)  # the part of dh that goes past the products; x + -0 is x, also where x is -0
    dp, dm = xp.empty_like(a), xp.empty_like(a)
    wide_hh, dys = widen(w_hh), gradients(xp, dy, steps)
    a, inner, seen = widen(a), widen(inner), widen(before)
    for rows, n in steps.rows[::-1]:
        g, z = None if dys is None else dys[rows], dm[rows]
        gru_slopes(xp, a[rows], inner[rows], seen[rows], dh[:n], g, past[:n], dp[rows], z)
        dh = after(dh, times(wide_hh.T, z), steps)
    del a, inner, dys  # twice as large as what is stored
    wide_dp, wide_dm = widen(dp), widen(dm)
    return (
        like_x and steps.unpack(store(gemm(wide_dp, w_ih), like=dp)),
        like_h and store(steps.unsort(dh + past), like=like_h),
        like_ih and store(gemm(wide_dp.T, steps.pack(x)), like=dp),
        like_hh and store(gemm(wide_dm.T, seen), like=dm),
        like_b_ih and store(reduce(wide_dp, 0, "sum", like=dp).reshape(-1), like=x),
        like_b_hh and store(reduce(wide_dm, 0, "sum", like=dm).reshape(-1), like=x),
    )


def gru_slopes(
    xp: Any, a: Array, inner: Array, h_before: Array, dh: Array, dy: Array | None, past: Array, dp: Array, dm: Array
) -> None:
    """One step of n rows: dp, dm (n, 3 H) <- the gradients of the products with x and with h; past <- dh z.

    a, inner, h_before: widened; dh, past: (n, H), FP32, and dy, or None: the gradients of this step's
    output from the products of the step after, past them, and from outside. dh may be overwritten.
    """
    H = inner.shape[1]
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
    xp.multiply(dh, z, out=past)  # rounds: never, FP32 in an FP32 buffer
