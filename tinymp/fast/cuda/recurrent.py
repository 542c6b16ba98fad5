"""LSTM: a step is one product by cuBLAS and one kernel (recurrent.cu), which reads the FP32 accumulators."""

from __future__ import annotations

from ...autograd import Array
from ...ops.recurrent import LSTM, Steps
from ...precision import gemm, reduce, store, widen
from . import kernel
from .kernels import Kernels
from .layout import blocks

KERNELS = Kernels(__file__)
BLOCK = 128  # threads: few, so that the little work of a step is spread over many multiprocessors


@kernel(LSTM.forward)
def lstm_forward(op: LSTM, x: Array, *given: Array, steps: Steps, reverse: bool) -> tuple:
    h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = given
    xp, H, P = op.xp, w_hh.shape[0] // 4, w_hh.shape[1]
    bias = b_hh if b_ih is None else b_ih if b_hh is None else widen(b_ih) + widen(b_hh)
    a = gemm(steps.pack(xp, x), w_ih.T, bias)  # rows, 4 H: products now, gates after each step
    h, c = op.state(h0, P, x), op.state(c0, H, x)
    first = h.copy(), c.copy()
    cells, hidden = xp.empty((len(a), H), x.dtype), xp.empty((len(a), H), x.dtype)
    outputs = hidden if w_hr is None else xp.empty((len(a), P), x.dtype)
    for rows, n in op.order:
        m = gemm(h[:n], w_hh.T, wide=True)
        launch("lstm_forward", hidden[rows], m, c[:n], a[rows], cells[rows], hidden[rows])
        if w_hr is not None:
            outputs[rows] = store(gemm(hidden[rows], w_hr.T, wide=True), like=x)
        h, c = after(h, outputs[rows], steps), after(c, cells[rows], steps)
    y = steps.unpack(xp, outputs)
    op.save(x, w_ih, w_hh, w_hr, *first, a, cells, y, None if w_hr is None else hidden)
    return y, steps.unsort(xp, h), steps.unsort(xp, c)


@kernel(LSTM.backward)
def lstm_backward(op: LSTM, dy: Array | None, dh_n: Array | None, dc_n: Array | None) -> tuple:
    x, w_ih, w_hh, w_hr, h_first, c_first, a, cells, y, hidden = op.saved
    like_x, like_h, like_c, like_ih, like_hh, like_b_ih, like_b_hh, like_hr = op.targets
    xp, steps = op.xp, op.steps
    h_before = steps.before(xp, h_first, steps.pack(xp, y), op.reverse)
    c_before = steps.before(xp, c_first, cells, op.reverse)
    dh, dc = widen(op.state(dh_n, w_hh.shape[1], x)), widen(op.state(dc_n, cells.shape[1], x))
    dz, dp = xp.empty_like(a), xp.empty_like(h_before)  # dp: of the outputs, with W_hr
    dys = None if dy is None else xp.ascontiguousarray(steps.pack(xp, dy))  # in the order of the steps
    for rows, n in op.order[::-1]:
        d, g = dh[:n], None if dys is None else dys[rows]
        if w_hr is not None:
            if g is not None:
                d += g
            dp[rows] = store(d, like=x)
            d, g = gemm(dp[rows], w_hr, wide=True), None
        launch("lstm_backward", cells[rows], a[rows], c_before[rows], cells[rows], d, g, dc[:n], dz[rows])
        dh = after(dh, gemm(dz[rows], w_hh, wide=True), steps)
    db = (like_b_ih or like_b_hh) and store(reduce(dz, 0, "sum").reshape(-1), like=x)
    return (
        like_x and steps.unpack(xp, gemm(dz, w_ih)),
        like_h and store(steps.unsort(xp, dh), like=like_h),
        like_c and store(steps.unsort(xp, dc), like=like_c),
        like_ih and gemm(dz.T, steps.pack(xp, x)),
        like_hh and gemm(dz.T, h_before),
        like_b_ih and db,
        like_b_hh and db,
        like_hr and gemm(dp.T, hidden),
    )


def launch(kernel: str, units: Array, *arrays: Array | None) -> None:
    """One launch for a step of n rows: units is any of its arrays (n, H), the kernel takes `arrays`, n and H."""
    n, H = units.shape
    KERNELS.launch(kernel, units.dtype, (blocks(H, 2 * BLOCK), blocks(n, 1, 65535)), BLOCK, *arrays, n, H)


def after(running: Array, rows: Array, steps: Steps) -> Array:
    """The running state after a step that computed its first rows: the rows themselves, if they are all of it."""
    if not steps.padded:
        return rows
    running[: len(rows)] = rows  # the other sequences have ended
    return running
