"""GRU in CUDA, in the way of the LSTM (recurrent.py), with kernels of recurrent.cu."""

from __future__ import annotations

from ...autograd import Array
from ...ops.more.gru import GRU, Steps
from ...precision import gemm, reduce, store, widen
from . import kernel
from .recurrent import after, launch, products


@kernel(GRU.forward)
def gru_forward(op: GRU, x: Array, *given: Array, steps: Steps, reverse: bool) -> tuple:
    h0, w_ih, w_hh, b_ih, b_hh = given
    xp, H = op.xp, w_hh.shape[1]
    a = products(xp, x, w_ih, b_ih, steps)  # rows, 3 H: products now, gates after each step
    h = op.state(h0, H, x)
    first = h.copy()
    inner, outputs = xp.empty((len(a), H), x.dtype), xp.empty((len(a), H), x.dtype)
    b_hh = b_hh if b_hh is None else xp.ascontiguousarray(b_hh)
    for rows, n in op.order:
        m = gemm(h[:n], w_hh.T, wide=True)
        launch("gru_forward", outputs[rows], m, b_hh, h[:n], a[rows], inner[rows], outputs[rows])
        h = after(h, outputs[rows], steps)
    y = steps.unpack(xp, outputs)
    op.save(x, w_ih, w_hh, first, a, inner, y)
    return y, steps.unsort(xp, h)


@kernel(GRU.backward)
def gru_backward(op: GRU, dy: Array | None, dh_n: Array | None) -> tuple:
    x, w_ih, w_hh, first, a, inner, y = op.saved
    like_x, like_h, like_ih, like_hh, like_b_ih, like_b_hh = op.targets
    xp, steps = op.xp, op.steps
    before = steps.before(xp, first, steps.pack(xp, y), op.reverse)
    dh = widen(op.state(dh_n, w_hh.shape[1], x))
    past = -xp.zeros_like(dh)  # the part of dh that goes past the products; x + -0 is x, also where x is -0
    dp, dm = xp.empty_like(a), xp.empty_like(a)
    dys = None if dy is None else xp.ascontiguousarray(steps.pack(xp, dy))
    for rows, n in op.order[::-1]:
        g, read = None if dys is None else dys[rows], (a[rows], inner[rows], before[rows], dh[:n])
        launch("gru_backward", inner[rows], *read, g, past[:n], dp[rows], dm[rows])
        dh = after(dh, gemm(dm[rows], w_hh, wide=True), steps)
    return (
        like_x and steps.unpack(xp, gemm(dp, w_ih)),
        like_h and store(steps.unsort(xp, dh + past), like=like_h),
        like_ih and gemm(dp.T, steps.pack(xp, x)),
        like_hh and gemm(dm.T, before),
        like_b_ih and store(reduce(dp, 0, "sum").reshape(-1), like=x),
        like_b_hh and store(reduce(dm, 0, "sum").reshape(-1), like=x),
    )
