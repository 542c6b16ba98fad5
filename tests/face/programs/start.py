"""Data and initial weights of the programs, from NumPy: the same in PyTorch and here."""

import numpy as np

nudge = 0.0  # how far the weights are moved, relatively, by a test that asks how much a program makes of a rounding


def images(n, channels=1, size=16, classes=10):
    """Noise with a bright bar whose place is the class: x (n, channels, size, size) in [-1, 1], y (n,)."""
    r = np.random.RandomState(1)
    y = r.randint(0, classes, n)
    x = r.uniform(-0.3, 0.3, (n, channels, size, size)).astype(np.float32)
    x[np.arange(n), :, y] += 0.7
    return x, y


def weights(module, tensor, seed=0):
    """A state_dict: matrices and kernels normal with variance 1 / fan-in, biases 0, weights of norms 1."""
    r, state = np.random.RandomState(seed), {}
    for name, value in module.state_dict().items():
        w = np.array(value.detach().numpy())
        if w.ndim > 1:
            w = r.randn(*w.shape) / np.sqrt(w[0].size)
            w = (w * (1 + nudge * np.random.RandomState(9).choice([-1, 1], w.shape))).astype(np.float32)
        elif name.endswith("weight") or "bias" in name:
            w = np.full_like(w, name.endswith("weight"))
        state[name] = tensor(w)
    return state
