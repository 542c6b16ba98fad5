"""Clipping: against float64 oracles, in FP32, in place as in PyTorch, never on scaled gradients."""

import numpy as np
import pytest

import tinymp as mp
from oracle import device_array, host, randn
from tinymp import nn, optim
from tinymp.parameter import Parameter


def params(*grads):
    made = []
    for g in grads:
        made.append(Parameter(np.zeros(np.shape(g), "float64" if g.dtype == np.float64 else "float32")))
        made[-1].grad = device_array(g)
    return made


@pytest.mark.parametrize("max_norm", [0.5, 1e3, 0.0])
@pytest.mark.parametrize("norm_type", [2.0, 3.0, float("inf")])  # but for 2 they are in optim/more
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_norm(dtype, norm_type, max_norm):
    grads = [np.asarray(randn(*s, seed=7)).astype(dtype) for s in ((4, 3), (5,), (), (0, 3))]
    ps = params(*[g.copy() for g in grads])
    given = [p.grad_array for p in ps]
    norm = optim.clip_grad_norm_(iter(ps), max_norm, norm_type)
    flat = np.concatenate([g.astype("float64").ravel() for g in grads])
    expected = np.abs(flat).max() if norm_type == np.inf else (np.abs(flat) ** norm_type).sum() ** (1 / norm_type)
    work = "float64" if dtype == "float64" else "float32"
    eps = np.finfo(work).eps * (len(flat) + 8)
    assert norm.dtype == work and norm.shape == () and abs(norm.item() - expected) <= eps * expected
    for p, g, old in zip(ps, given, grads, strict=True):
        assert (p.grad_array is g) == (dtype == work) and p.grad.dtype == work
        np.testing.assert_allclose(host(p.grad), old * min(1, max_norm / (expected + 1e-6)), rtol=4 * eps)


def test_value_and_fp16_gradients_whose_squares_overflow_fp16():
    p, q = params(np.array([-3.0, -0.5, 0.25, 9.0, np.inf], "float16"), np.full(4, 4e4, "float16"))
    g = p.grad_array
    optim.clip_grad_value_([p], 0.5)
    assert p.grad.dtype == "float32" and p.grad.tolist() == [-0.5, -0.5, 0.25, 0.5, 0.5] and g[0] == -3
    assert optim.clip_grad_norm_(q, 1.0).item() == 8e4
    np.testing.assert_allclose(host(q.grad), 0.5, rtol=1e-6)
    q.grad = None
    assert optim.clip_grad_norm_([q], 1.0).item() == 0 and q.grad is None


def test_a_gradient_that_the_program_holds_follows():
    """As in PyTorch, which changes it in place: a second backward, unscaling, clipping; not what comes after None."""
    model, scaler = mp.MIXED.cast(nn.Linear(2, 1, bias=False)), optim.StaticLossScaler(8.0)
    p, optimizer = model.weight, optim.SGD(model.parameters(), lr=0.1)

    def backward():
        with mp.use(mp.MIXED):
            scaler.scale(model(mp.MIXED.cast(mp.tensor([[3.0, 4.0]]))).float().sum()).backward()

    backward()
    g = p.grad
    assert g.dtype == "float16"
    for change, expected in (
        (backward, [48, 64]),
        (lambda: scaler.unscale_(optimizer), [6, 8]),
        (lambda: optim.clip_grad_norm_(p, 5.0), [3, 4]),
        (lambda: optim.clip_grad_value_(p, 3.5), [3, 3.5]),
    ):
        change()
        assert g is p.grad and g.grad_scale == p.grad_scale
        np.testing.assert_allclose(host(g)[0], expected, rtol=1e-6)
    optimizer.zero_grad()
    backward()
    np.testing.assert_allclose(host(g)[0], [3, 3.5], rtol=1e-6)
    np.testing.assert_array_equal(host(p.grad)[0], [24, 32])


@pytest.mark.parametrize("clip", [optim.clip_grad_norm_, optim.clip_grad_value_])
def test_scaled_gradients_are_refused(clip):
    (p,) = params(np.ones(2, "float16"))
    p.grad_scale = 1024.0
    with pytest.raises(RuntimeError, match=r"still carry the loss scale 1024: call scaler.unscale_\(optimizer\) first"):
        clip([p], 1.0)
    assert p.grad.tolist() == [1, 1]
