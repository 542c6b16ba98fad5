"""The Transformer's layers (Vaswani et al., 2017), with PyTorch's arguments, masks and state_dict."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from .. import ops
from ..arguments import choice, flag, floating, integers, number
from ..grad_mode import no_grad
from ..tensor import Tensor
from .attention import MultiheadAttention
from .containers import ModuleList
from .functions import Dropout
from .init import parameter
from .layers import Linear
from .module import Module, refuse_placement
from .norm import LayerNorm
from .recurrent import MOST_LAYERS

Cache = dict[str, Tensor]


def _check_sequence(name: str, label: str, x: Any, d_model: int) -> None:
    if floating(name, label, x).ndim not in (2, 3) or x.shape[-1] != d_model:
        raise ValueError(
            f"{name}: expected {label} with 3 axes, or 2 without a batch, the last of d_model={d_model}, got {x.shape}"
        )


class _Layer(Module):
    """Attentions, then a feed-forward network, each with a residual connection and a layer norm; what the layers below
    share.
    """

    attentions: ClassVar[tuple[str, ...]] = ("self_attn",)
    self_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    dropout1: Dropout
    dropout2: Dropout

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = ops.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: None = None,
        dtype: None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        refuse_placement(name, device, dtype)
        (self.d_model,) = integers(name, "d_model", d_model, 1, 1)
        (nhead,) = integers(name, "nhead", nhead, 1, 1)
        if self.d_model % nhead:
            raise ValueError(f"{name}: expected d_model to be a multiple of nhead, got {d_model} and {nhead}")
        (dim_feedforward,) = integers(name, "dim_feedforward", dim_feedforward, 1, 1)
        dropout, eps = number(name, "dropout", dropout, 0, 1), number(name, "layer_norm_eps", layer_norm_eps, 0)
        self.batch_first, bias = flag(name, "batch_first", batch_first), flag(name, "bias", bias)
        self.norm_first = flag(name, "norm_first", norm_first)
        if not callable(activation):
            activation = getattr(ops, choice(name, "activation", activation, ("relu", "gelu")))
        self.activation: Any = activation
        for attention in self.attentions:
            setattr(self, attention, MultiheadAttention(d_model, nhead, dropout, bias, batch_first=self.batch_first))
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        parts = range(1, len(self.attentions) + 2)
        for i in parts:
            setattr(self, f"norm{i}", LayerNorm(d_model, eps, bias=bias))
        for i in parts:
            setattr(self, f"dropout{i}", Dropout(dropout))

    def _add(self, x: Tensor, norm: LayerNorm, f: Callable[[Tensor], Tensor]) -> Tensor:
        """The residual connection around f."""
        return x + f(norm(x)) if self.norm_first else norm(x + f(x))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each with a residual connection and a layer norm.

    d_model: numbers per position; nhead: heads; dim_feedforward: hidden numbers of the network; dropout: of the
    attention's weights, after the activation, and before each addition; activation: "relu", "gelu" or a function of a
    Tensor; batch_first: inputs are (B, L, d_model), not (L, B, d_model); norm_first: x + f(norm(x)), which trains
    without a warm-up (Xiong et al., 2020), not norm(x + f(x)); bias: whether linear layers and norms have one.
    """

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Like src, (L, B, d_model). For the masks and the cache see `MultiheadAttention.forward`."""
        _check_sequence("TransformerEncoderLayer", "src", src, self.d_model)

        def attend(x: Tensor) -> Tensor:
            masks = {"key_padding_mask": src_key_padding_mask, "attn_mask": src_mask, "is_causal": is_causal}
            return self.dropout1(self.self_attn(x, x, x, need_weights=False, cache=cache, **masks)[0])

        x = self._add(src, self.norm1, attend)
        return self._add(x, self.norm2, lambda x: self.dropout2(self._feed_forward(x)))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to what an encoder made (`memory`), and a feed-forward network; see
    `TransformerEncoderLayer` for the arguments.
    """

    attentions = ("self_attn", "multihead_attn")
    multihead_attn: MultiheadAttention
    norm3: LayerNorm
    dropout3: Dropout

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Like tgt, (L, B, d_model), for a memory (S, B, d_model). cache: of the self-attention; for it and the masks
        see `MultiheadAttention.forward`.
        """
        for label, x in (("tgt", tgt), ("memory", memory)):
            _check_sequence("TransformerDecoderLayer", label, x, self.d_model)

        def attend(x: Tensor) -> Tensor:
            masks = {"key_padding_mask": tgt_key_padding_mask, "attn_mask": tgt_mask, "is_causal": tgt_is_causal}
            return self.dropout1(self.self_attn(x, x, x, need_weights=False, cache=cache, **masks)[0])

        def look(x: Tensor) -> Tensor:
            masks = {"key_padding_mask": memory_key_padding_mask, "attn_mask": memory_mask}
            y, _ = self.multihead_attn(x, memory, memory, need_weights=False, is_causal=memory_is_causal, **masks)
            return self.dropout2(y)

        x = self._add(tgt, self.norm1, attend)
        x = self._add(x, self.norm2, look)
        return self._add(x, self.norm3, lambda x: self.dropout3(self._feed_forward(x)))


class _Stack(Module):
    """num_layers copies of a layer, which begin with the same weights, and perhaps a norm after the last."""

    def __init__(self, layer: Any, kind: type, label: str, num_layers: int, norm: Module | None) -> None:
        super().__init__()
        name = type(self).__name__
        for what, x, expected in ((label, layer, kind), ("norm", norm, (Module, type(None)))):
            if not isinstance(x, expected):
                raise TypeError(f"{name}: expected a {getattr(expected, '__name__', 'Module')} for `{what}`, got {x!r}")
        (self.num_layers,) = integers(name, "num_layers", num_layers, 1, 1)
        if self.num_layers > MOST_LAYERS:
            raise ValueError(f"{name}: expected `num_layers` to be at most {MOST_LAYERS}, got {num_layers}")
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(self.num_layers)])
        self.norm = norm

    def _run(self, x: Tensor, caches: list[Cache] | None, *inputs: Any, **masks: Any) -> Tensor:
        if caches is not None and (not isinstance(caches, (list, tuple)) or len(caches) != self.num_layers):
            name = type(self).__name__
            raise ValueError(f"{name}: expected `caches` to be {self.num_layers} dicts, one per layer, got {caches!r}")
        for layer, cache in zip(self.layers, repeat(None) if caches is None else caches):
            x = layer(x, *inputs, **masks, cache=cache)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """num_layers copies of an encoder layer one after the other, and then `norm`, where there is one.

    enable_nested_tensor and mask_check, of PyTorch's faster ways, change nothing here.
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__(encoder_layer, TransformerEncoderLayer, "encoder_layer", num_layers, norm)
        flag("TransformerEncoder", "enable_nested_tensor", enable_nested_tensor)
        flag("TransformerEncoder", "mask_check", mask_check)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
        caches: list[Cache] | None = None,
    ) -> Tensor:
        """Like src. caches: a dict per layer; for them and the masks see `MultiheadAttention.forward`."""
        masks = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask, "is_causal": bool(is_causal)}
        return self._run(src, caches, **masks)


class TransformerDecoder(_Stack):
    """num_layers copies of a decoder layer one after the other, and then `norm`, where there is one."""

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, TransformerDecoderLayer, "decoder_layer", num_layers, norm)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        caches: list[Cache] | None = None,
    ) -> Tensor:
        """Like tgt. caches: a dict per layer; for them and the masks see `MultiheadAttention.forward`."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return self._run(tgt, caches, memory, *masks, bool(tgt_is_causal), memory_is_causal)


class PositionalEncoding(Module):
    """x + PE, sines and cosines of the position whose wavelengths rise from 2 pi to 10000 2 pi (Vaswani et al., 2017,
    section 3.5), then dropout:

        PE(p, 2i) = sin(p / 10000^(2i / d_model)),  PE(p, 2i + 1) = cos(p / 10000^(2i / d_model))

    d_model: numbers per position; max_len: positions that the table `pe`, (max_len, d_model), has. It is no part of
    the state_dict. batch_first: inputs are (B, L, d_model), not (L, B, d_model); without a batch (L, d_model).
    """

    pe: Tensor

    def __init__(self, d_model: int, max_len: int = 5000, dropout: float = 0.0, batch_first: bool = False) -> None:
        super().__init__()
        name = type(self).__name__
        (d_model,) = integers(name, "d_model", d_model, 1, 1)
        (self.max_len,) = integers(name, "max_len", max_len, 1, 1)
        self.batch_first = flag(name, "batch_first", batch_first)
        self.dropout = Dropout(number(name, "dropout", dropout, 0, 1))
        pe = Tensor(parameter(self.max_len, d_model).data)  # a MemoryError for more than any memory holds
        self.register_buffer("pe", pe, persistent=False)
        angles = np.arange(self.max_len)[:, None] * np.exp(np.arange(0, d_model, 2) * (-math.log(10000) / d_model))
        with no_grad():
            pe.copy_(np.stack([np.sin(angles), np.cos(angles)], 2).reshape(self.max_len, -1)[:, :d_model])

    def forward(self, input: Tensor, start: int = 0) -> Tensor:
        """Like input, whose first position is the one numbered `start`. ValueError beyond max_len."""
        name = type(self).__name__
        (start,) = integers(name, "start", start, 1, 0)
        _check_sequence(name, "input", input, self.pe.shape[1])
        length = input.shape[1 if self.batch_first and input.ndim == 3 else 0]
        if start + length > self.max_len:
            raise ValueError(
                f"{name}: expected at most max_len={self.max_len} positions, got {start + length}: give a larger one"
            )
        pe = self.pe[start : start + length]
        return self.dropout(input + (pe.unsqueeze(1) if input.ndim == 3 and not self.batch_first else pe))

    def extra_repr(self) -> str:
        return f"{self.pe.shape[1]}, max_len={self.max_len}"
