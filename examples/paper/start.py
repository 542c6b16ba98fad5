"""How the networks of the paper start: a network without batch norm learns nothing from PyTorch's default weights."""

from __future__ import annotations

from tinymp.nn import Conv2d, Linear, Module, init


def start(model: Module, *last: Conv2d | Linear) -> None:
    """Draw the weights anew from N(0, 2 / fan_in), which keeps the size of what ReLUs let pass (He et al., 2015); those
    of the `last` layers, which give logits, from N(0, 0.01^2). Biases are 0.
    """
    for layer in model.modules():
        if isinstance(layer, (Conv2d, Linear)):
            init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                init.zeros_(layer.bias)
    for layer in last:
        init.normal_(layer.weight, 0.0, 0.01)
