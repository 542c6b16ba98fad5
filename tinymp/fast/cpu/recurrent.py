"""LSTM on a CPU: the inputs of the steps are widened before the loop, and a step computes in place."""

from __future__ import annotations

from typing import Any

from ...autograd import Array
from ...fast_path import fast_path
from ...ops.recurrent import LSTM, Steps
from ...precision import gemm, reduce, store, widen


@fast_path(LSTM.forward)
def lstm_forward(op: LSTM, x: Array, *given: Array, steps: Steps) -> tuple:
    h0, c0, w_ih, w_hh, b_ih, b_hh = given
    xp, H = op.xp, w_hh.shape[1]
    bias = b_hh if b_ih is None else b_ih if b_hh is None else widen(b_ih) + widen(b_hh)
    a = products(x, w_ih, bias, steps)  # rows, 4 H: products now, gates after each step
    h, c = op.state(h0, H, x), op.state(c0, H, x)
    first = h.copy(), c.copy()
    cells, outputs = xp.empty((len(a), H), x.dtype), xp.empty((len(a), H), x.dtype)
    wide_hh = widen(w_hh)
    for rows, n in steps.rows:
        lstm_gates(xp, times(wide_hh, h[:n]), c[:n], a[rows], cells[rows], outputs[rows])
        h, c = after(h, outputs[rows], steps), after(c, cells[rows], steps)
    y = steps.unpack(outputs)
    op.save(x, w_ih, w_hh, *first, store(a, like=x), cells, y)
    return y, steps.unsort(h), steps.unsort(c)


def lstm_gates(xp: Any, m: Array, c: Array, a: Array, cell: Array, h: Array) -> None:
    """One step of n rows, in FP32 between reading and storing: a, cell, h <- gates, state, output.

    m: (n, 4 H), the products with h, FP32; c: (n, H), the state before; a: (n, 4 H), the products with x, widened.
    """
    a += m
    gates = a.reshape(len(a), 4, c.shape[1])
    i, f, g, o = gates[:, 0], gates[:, 1], gates[:, 2], gates[:, 3]
    t = xp.tanh(g)
    sigmoid(xp, a)  # g included: one pass over contiguous memory is faster than two around it
    g[...] = t  # rounds: never, FP32 in an FP32 buffer
    wide = f * widen(c)
    wide += i * g
    cell[...] = store(wide, like=cell)
    xp.tanh(wide, out=wide)
    wide *= o
    h[...] = store(wide, like=h)


@fast_path(LSTM.backward)
def lstm_backward(op: LSTM, dy: Array | None, dh_n: Array | None, dc_n: Array | None) -> tuple:
    x, w_ih, w_hh, h_first, c_first, a, cells, y = op.saved
    like_x, like_h, like_c, like_ih, like_hh, like_b_ih, like_b_hh = op.targets
    xp, steps = op.xp, op.steps
    h_before = steps.before(h_first, steps.pack(y))
    c_before = steps.before(c_first, cells)
    dh, dc = widen(op.state(dh_n, w_hh.shape[1], x)), widen(op.state(dc_n, cells.shape[1], x))
    dz, wide_hh, dys = xp.empty_like(a), widen(w_hh), gradients(xp, dy, steps)
    a, cells, c_before = widen(a), widen(cells), widen(c_before)
    for rows, n in steps.rows[::-1]:
        g, z = None if dys is None else dys[rows], dz[rows]
        lstm_slopes(xp, a[rows], c_before[rows], cells[rows], dh[:n], g, dc[:n], z)
        dh = after(dh, times(wide_hh.T, z), steps)
    del a, cells, c_before, dys  # twice as large as the stored arrays
    wide = widen(dz)
    # Under FP8 this also sums stored values: the dz of the gates, which no format has rounded
    db = (like_b_ih or like_b_hh) and store(reduce(wide, 0, "sum", like=dz).reshape(-1), like=x)
    return (
        like_x and steps.unpack(store(gemm(wide, w_ih), like=dz)),
        like_h and store(steps.unsort(dh), like=like_h),
        like_c and store(steps.unsort(dc), like=like_c),
        like_ih and store(gemm(wide.T, steps.pack(x)), like=dz),
        like_hh and store(gemm(wide.T, h_before), like=dz),
        like_b_ih and db,
        like_b_hh and db,
    )


def lstm_slopes(
    xp: Any, a: Array, c_before: Array, cell: Array, dh: Array, dy: Array | None, dc: Array, dz: Array
) -> None:
    """One step of n rows: dz (n, 4 H) <- the gradient at the gates, dc <- the gradient of the state before.

    a, c_before, cell: widened; dh, dc: (n, H), FP32, the gradients of this step's output and state;
    dy: (n, H), or None: the output's gradient from outside, not yet in dh. dh may be overwritten.
    """
    if dy is not None:
        dh += dy
    gates = a.reshape(len(a), 4, cell.shape[1])
    i, f, g, o = gates[:, 0], gates[:, 1], gates[:, 2], gates[:, 3]
    squares = gates * gates
    slope = gates - squares
    xp.subtract(1, squares[:, 2], out=slope[:, 2])  # rounds: never, FP32 in an FP32 buffer
    t = xp.tanh(cell)
    wide = xp.empty_like(gates)
    xp.multiply(dh, t, out=wide[:, 3])  # rounds: never, FP32 in an FP32 buffer
    t *= t
    xp.subtract(1, t, out=t)
    t *= o
    t *= dh
    dc += t
    xp.multiply(dc, g, out=wide[:, 0])  # rounds: never, FP32 in an FP32 buffer
    xp.multiply(dc, c_before, out=wide[:, 1])  # rounds: never, FP32 in an FP32 buffer
    xp.multiply(dc, i, out=wide[:, 2])  # rounds: never, FP32 in an FP32 buffer
    dc *= f
    wide *= slope
    dz[...] = store(wide.reshape(a.shape), like=dz)


def products(x: Array, w_ih: Array, bias: Array | None, steps: Steps) -> Array:
    return widen(store(gemm(steps.pack(x), w_ih.T, bias), like=x))


def times(w: Array, rows: Array) -> Array:
    return gemm(w, widen(rows).T).T


def after(state: Array, rows: Array, steps: Steps) -> Array:
    """The running state after a step that computed its first rows: the rows themselves, if they are all of it."""
    if not steps.padded and rows.flags.c_contiguous:
        return rows
    state[: len(rows)] = rows  # the other sequences have ended, or the rows are transposed (products by BLAS)
    return state


def gradients(xp: Any, dy: Array | None, steps: Steps) -> Array | None:
    return None if dy is None else widen(xp.ascontiguousarray(steps.pack(dy)))


def sigmoid(xp: Any, z: Array) -> None:
    """z <- 1 / (1 + e^-z). e^-z may overflow to inf, and 1 / inf is the right 0."""
    xp.negative(z, out=z)
    xp.exp(z, out=z)
    z += 1
    xp.divide(1, z, out=z)
