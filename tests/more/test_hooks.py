"""Hooks: when they are called, with what, what they may change, and how they end."""

import copy

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import nn

X = randn(3, 4).astype("float32")


def linear():
    mp.manual_seed(0)
    return nn.Linear(4, 2)


def leaf(x=X):
    return mp.tensor(x, requires_grad=True)


def test_forward_hooks_see_and_replace():
    m, seen = linear(), []
    plain = m(mp.tensor(X)).numpy()
    with m.register_forward_pre_hook(lambda mod, args: seen.append((mod, args))):
        assert np.array_equal(m(mp.tensor(X)).numpy(), plain)
    assert seen[0][0] is m and len(seen[0][1]) == 1
    first = m.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))
    second = m.register_forward_pre_hook(lambda mod, args: args[0] + 1)
    np.testing.assert_allclose(m(mp.tensor(X)).numpy(), m.forward(mp.tensor(2 * X + 1)).numpy())
    first.remove()
    second.remove()
    second.remove()
    with m.register_forward_hook(lambda mod, args, output: output * 3):
        np.testing.assert_allclose(m(mp.tensor(X)).numpy(), plain * 3, rtol=1e-6)
    assert np.array_equal(m(mp.tensor(X)).numpy(), plain)


def test_backward_hook_sees_both_gradients():
    policy, seen = mp.MIXED, []
    m = policy.cast(linear())
    x = policy.cast(mp.tensor(X)).requires_grad_()
    dy = randn(3, 2).astype(policy.storage)
    m(x).backward(dy)
    expected, weight = host(x.grad), host(m.weight.grad)
    x.zero_grad()
    m.zero_grad()
    with m.register_full_backward_hook(lambda *call: seen.append(call)):
        m(x).backward(dy)
    ((module, grad_input, grad_output),) = seen
    assert module is m and len(grad_input) == len(grad_output) == 1
    np.testing.assert_array_equal(grad_input[0].numpy(), expected, strict=True)
    np.testing.assert_array_equal(grad_output[0].numpy(), dy, strict=True)
    np.testing.assert_array_equal(host(x.grad), expected)  # nothing has changed
    np.testing.assert_array_equal(host(m.weight.grad), weight)


def test_backward_hook_replaces_the_gradient_of_the_input_alone():
    m, x = linear(), leaf()
    m(x).sum().backward()
    expected, weight = host(x.grad).copy(), host(m.weight.grad).copy()
    x.zero_grad()
    m.zero_grad()
    m.register_full_backward_hook(lambda mod, grad_input, grad_output: (grad_input[0] * 2,))
    m.register_full_backward_hook(lambda mod, grad_input, grad_output: grad_input[0] + 1)
    m(x).sum().backward()
    np.testing.assert_allclose(host(x.grad), 2 * expected + 1, rtol=1e-6)
    np.testing.assert_array_equal(host(m.weight.grad), weight)


def test_backward_hook_of_several_inputs_and_outputs():
    class Both(nn.Module):
        def forward(self, x, y, n):
            return x * y, y * n, "text"

    m, seen = Both(), []
    m.register_full_backward_hook(lambda mod, i, o: seen.append((i, o)))
    x, y = leaf(np.array([2.0], "float32")), leaf(np.array([3.0], "float32"))
    a, _, text = m(x, y, 5)
    assert text == "text"
    (a * 7).sum().backward()  # the other one is not used
    ((grad_input, grad_output),) = seen
    assert [g if g is None else g.tolist() for g in grad_input] == [[21], [14], None]
    assert [g if g is None else g.tolist() for g in grad_output] == [[7], [0], None]
    assert x.grad.tolist() == [21] and y.grad.tolist() == [14]


def test_a_wrong_gradient_is_refused():
    m = linear()
    m.register_full_backward_hook(lambda mod, i, o: i[0].half())
    with pytest.raises(ValueError, match=r"Linear: expected a full_backward_hook .* got float16 \(3, 4\)"):
        m(leaf()).sum().backward()


def test_a_copy_has_the_same_hooks_and_its_own_handles():
    m, calls = linear(), []
    handle = m.register_forward_hook(lambda mod, args, output: calls.append(mod))
    other = copy.deepcopy(m)
    handle.remove()
    m(mp.tensor(X))
    other(mp.tensor(X))
    assert calls == [other] and "_hooks" not in m.state_dict()
