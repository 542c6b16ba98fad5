"""All parameters as one vector, and back, as in torch.nn.utils."""

from __future__ import annotations

from collections.abc import Iterable

from ... import ops
from ...arguments import listed, name_all, tensor
from ...grad_mode import no_grad
from ...parameter import Parameter
from ...tensor import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Parameter]) -> Tensor:
    """Their working copies one after the other, (sum of their sizes,), in the graph. Masters are not in it."""
    return ops.cat([p.reshape(-1) for p in listed("parameters_to_vector", "parameters", parameters)])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Parameter]) -> None:
    """Write parts of vec into the parameters, in their order: into masters, and rounded into working copies.

    ValueError unless vec has as many elements as all of them.
    """
    name = "vector_to_parameters"
    params, flat = listed(name, "parameters", parameters), tensor(name, "vec", vec)
    total = sum(p.array.size for p in params)
    if flat.shape != (total,):
        raise ValueError(f"{name}: expected `vec` of shape ({total},), got {flat.shape}")
    start = 0
    with no_grad():
        for p in params:
            p.copy_(flat[start : start + p.array.size].reshape(p.shape))
            start += p.array.size


name_all(globals())
