"""Weights that are computed anew before each forward: weight_norm and spectral_norm, by PyTorch's old and new names."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...arguments import axis, count, flag, instance, number
from ...autograd import no_grad
from ...dtypes import float32
from ...parameter import Parameter
from ...tensor import Tensor
from ..layers import ConvTranspose
from ..loading import exact
from ..module import Module

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]

HOOKS = "_computed"  # attribute of a module: name of a weight -> its `Computed`


class Computed:
    """A forward pre-hook: the module's weight `name` is computed from its parts, which are parameters in its place.

    The parts are FP32 also in mixed precision, as a normalisation layer's parameters are (NVG section 5.4.2), and the
    weight is rounded once, to the policy's storage. Between two forwards it is that of the last one.
    """

    how = ""
    old: tuple[str, ...]  # what follows the weight's name in the names of parts and buffers
    new: tuple[str, ...]  # their names in module.parametrizations.<name>

    def __init__(self, module: Module, name: str, parametrized: bool) -> None:
        weight = vars(instance(self.how, "module", module, Module)).get(name)
        if not isinstance(weight, Parameter) or not weight.ndim:
            raise ValueError(f"{self.how}: expected `name` to be a weight of {type(module).__name__}, got {name!r}")
        self.name, self.shape = name, weight.shape
        self.parametrized = flag(self.how, "parametrized", parametrized)

    def begin(self, module: Any, parts: int, *values: Tensor) -> Any:
        """Put values, of which the first are parts and the others buffers, in the weight's place."""
        weight = getattr(module, self.name)
        delattr(module, self.name)
        if self.parametrized:
            if "parametrizations" not in vars(module):
                module.parametrizations = Module()
            module.parametrizations.add_module(self.name, Module())
            if parts < len(values):
                getattr(module.parametrizations, self.name).add_module("0", Module())
        for i, (x, (holder, name)) in enumerate(zip(values, self.places(module))):
            if i < parts:
                p = Parameter(x, weight.requires_grad, normalisation=True)
                holder.register_parameter(name, p.cast_storage(weight.policy))
            else:
                holder.register_buffer(name, x)
        vars(module).setdefault(HOOKS, {})[self.name] = self
        with no_grad():
            self(module, ())  # without a graph, so that the module can be copied
        self.handle = module.register_forward_pre_hook(self)
        return module

    def places(self, module: Any) -> list[tuple[Any, str]]:
        """The module that has it and its name there, for each part and buffer."""
        if not self.parametrized:
            return [(module, f"{self.name}_{name}") for name in self.old]
        around = getattr(module.parametrizations, self.name)
        return [(getattr(around, "0") if name[0] == "_" else around, name) for name in self.new]

    def __call__(self, module: Any, args: tuple) -> None:
        holder, name = self.places(module)[0]
        setattr(module, self.name, self.value(module).to(getattr(holder, name).policy.storage))

    def value(self, module: Any) -> Tensor:
        """The weight in FP32."""
        raise NotImplementedError


class WeightNorm(Computed):
    """w = g v / |v|."""

    how, old, new = "weight_norm", ("g", "v"), ("original0", "original1")

    def __init__(self, module: Any, name: str, dim: int | None, parametrized: bool) -> None:
        super().__init__(module, name, parametrized)
        n = len(self.shape)
        self.dims = [d for d in range(n) if dim in (None, -1) or d != axis(self.how, dim, n)]
        v = Tensor(exact(getattr(module, name)))
        self.begin(module, 2, self.size(v), v)

    def size(self, v: Tensor) -> Tensor:
        """|v| over all axes but `dim`, or as a number over all."""
        return ops.norm(v, 2, self.dims, len(self.dims) < v.ndim) if self.dims else ops.abs(v)

    def value(self, module: Any) -> Tensor:
        g, v = (getattr(*place) for place in self.places(module))
        return ops.mul(v, ops.div(g, self.size(v)))


class SpectralNorm(Computed):
    """w = W / (u^T W v), u and v the singular vectors of W's largest singular value, by power iteration."""

    how, old, new = "spectral_norm", ("orig", "u", "v"), ("original", "_u", "_v")

    def __init__(self, module: Any, name: str, times: int, eps: float, dim: int | None, parametrized: bool) -> None:
        super().__init__(module, name, parametrized)
        self.times = count(self.how, "n_power_iterations", times)
        self.eps = number(self.how, "eps", eps, 0)
        usual = int(isinstance(module, ConvTranspose))
        self.dim = axis(self.how, usual if dim is None else dim, len(self.shape))
        w = Tensor(exact(getattr(module, name)))
        u, v = (ops.normalize(ops.randn(n, device=w.device), dim=0, eps=self.eps) for n in self.matrix(w).shape)
        self.begin(module, 1, w, *(self.iterated(w, u, v, 15) if parametrized else (u, v)))

    def matrix(self, w: Tensor) -> Tensor:
        """W as (length of `dim`, all others)."""
        others = [d for d in range(w.ndim) if d != self.dim]
        return w.permute(self.dim, *others).reshape(w.shape[self.dim], -1)

    def iterated(self, w: Tensor, u: Tensor, v: Tensor, times: int) -> tuple[Tensor, Tensor]:
        """u and v after so many power iterations; the new spelling begins with u."""
        with no_grad():
            m = self.matrix(w.detach())
            for step in (0, 1) * times:
                if step == int(self.parametrized):
                    v = ops.normalize(ops.mv(m.T, u), dim=0, eps=self.eps)
                else:
                    u = ops.normalize(ops.mv(m, v), dim=0, eps=self.eps)
        return u, v

    def value(self, module: Any) -> Tensor:
        places = self.places(module)
        w, u, v = (getattr(*place).to(float32) for place in places)
        if module.training:
            u, v = self.iterated(w, u, v, self.times)
            for (holder, name), x in zip(places[1:], (u, v)):
                setattr(holder, name, x)  # new tensors: a graph may hold those of an earlier forward
        return ops.div(w, ops.dot(u, ops.mv(self.matrix(w), v)))


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0, *, parametrized: bool = False) -> Any:
    """module, whose weight is g v / |v|, for its direction v and its size g, one for each place along dim (None or -1:
    one in all), both parameters (Salimans & Kingma, 2016): name_g and name_v, or with parametrized
    parametrizations.name.original0 and original1. ValueError where the module has no such Parameter.
    """
    WeightNorm(module, name, dim, parametrized)
    return module


def spectral_norm(
    module: Any,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
    *,
    parametrized: bool = False,
) -> Any:
    """module, whose weight is divided by its largest singular value as a matrix (length of dim, by default that of the
    outputs, all others), by power iterations in training (Miyato et al., 2018). The parameter is name_orig, the buffers
    name_u and name_v; with parametrized parametrizations.name.original, and 0._u and 0._v beside it. ValueError as
    above.
    """
    SpectralNorm(module, name, n_power_iterations, eps, dim, parametrized)
    return module


def _removed(how: str, kind: type[Computed], module: Any, name: str) -> Any:
    hooks = vars(instance(how, "module", module, Module)).get(HOOKS, {})
    hook = hooks.get(name)
    if type(hook) is not kind or hook.parametrized:
        raise ValueError(f"{how}: expected a module with a {kind.how} of {name!r} by that function")
    places = hook.places(module)
    first = getattr(*places[0])
    with no_grad():
        made = Parameter(hook.value(module), first.requires_grad).cast_storage(first.policy)
    hooks.pop(name).handle.remove()
    for _, part in [*places, (module, name)]:
        delattr(module, part)
    module.register_parameter(name, made)
    return module


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """module with the weight that it has now as its Parameter again. ValueError without a `weight_norm` of it."""
    return _removed("remove_weight_norm", WeightNorm, module, name)


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """module with the weight that it has now as its Parameter again. ValueError without a `spectral_norm` of it."""
    return _removed("remove_spectral_norm", SpectralNorm, module, name)
