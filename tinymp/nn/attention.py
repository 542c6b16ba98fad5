"""MultiheadAttention, with PyTorch's arguments, masks and state_dict."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..arguments import flag, floating, integers, number, tensor
from ..ops.attention import attend
from ..tensor import Tensor
from . import init
from .init import parameter
from .layers import Linear
from .module import Module, refuse_placement


class MultiheadAttention(Module):
    """Attention of num_heads parts of projections of query, key and value (Vaswani et al., 2017).

    in_proj_weight: (3 embed_dim, embed_dim), the rows of query, key and value one after another; where kdim or vdim
    differ from embed_dim, q_proj_weight (embed_dim, embed_dim), k_proj_weight (embed_dim, kdim) and v_proj_weight
    (embed_dim, vdim) instead. in_proj_bias: (3 embed_dim,). out_proj: a Linear. add_bias_kv: every sequence gets one
    further key and value, bias_k and bias_v (1, 1, embed_dim); add_zero_attn: one of zeros. dropout: of the weights, in
    training. See `ops.scaled_dot_product_attention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: None = None,
        dtype: None = None,
    ) -> None:
        super().__init__()
        name = "MultiheadAttention"
        refuse_placement(name, device, dtype)
        (embed_dim,) = integers(name, "embed_dim", embed_dim, 1, 1)
        (num_heads,) = integers(name, "num_heads", num_heads, 1, 1)
        if embed_dim % num_heads:
            raise ValueError(
                f"{name}: expected embed_dim to be a multiple of num_heads, got {embed_dim} and {num_heads}"
            )
        self.dropout = number(name, "dropout", dropout, 0, 1)
        self.batch_first = flag(name, "batch_first", batch_first)
        self.add_zero_attn = flag(name, "add_zero_attn", add_zero_attn)
        bias, add_bias_kv = flag(name, "bias", bias), flag(name, "add_bias_kv", add_bias_kv)
        (self.kdim,) = integers(name, "kdim", embed_dim if kdim is None else kdim, 1, 1)
        (self.vdim,) = integers(name, "vdim", embed_dim if vdim is None else vdim, 1, 1)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        one = self.kdim == self.vdim == embed_dim
        self.in_proj_weight = parameter(3 * embed_dim, embed_dim) if one else None
        self.q_proj_weight = None if one else parameter(embed_dim, embed_dim)
        self.k_proj_weight = None if one else parameter(embed_dim, self.kdim)
        self.v_proj_weight = None if one else parameter(embed_dim, self.vdim)
        self.in_proj_bias = parameter(3 * embed_dim) if bias else None
        self.bias_k = parameter(1, 1, embed_dim) if add_bias_kv else None
        self.bias_v = parameter(1, 1, embed_dim) if add_bias_kv else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Projections by xavier_uniform_, out_proj as a Linear with bias 0, bias_k and bias_v by xavier_normal_."""
        for w in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if w is not None:
                init.xavier_uniform_(w)
        for b in (self.in_proj_bias, self.out_proj.bias):
            if b is not None:
                init.zeros_(b)
        for b in (self.bias_k, self.bias_v):
            if b is not None:
                init.xavier_normal_(b)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        cache: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, weights): output like query; weights (B, L, S), not averaged (B, heads, L, S), not needed None.

        query: (L, B, E), key: (S, B, kdim), value: (S, B, vdim); with batch_first the first two axes change places, and
        without a batch there is no B. key_padding_mask: (B, S), attn_mask: (L, S) or (B heads, L, S): bool, True where
        a key must not be attended to (the opposite of `ops.scaled_dot_product_attention`), or floating, to be added.
        is_causal: a hint, as in PyTorch: attn_mask must be given all the same, and where it is all that masks and no
        weights are needed, row i attends to columns 0 to i without a look at it.

        cache: a dict, empty at first, that keeps the projected keys and values, (B, S, E) each. Those of this call are
        put after those of the calls before, and S is the length of all: generating text, only what is new is computed.
        """
        name = "MultiheadAttention"
        is_causal, need_weights = flag(name, "is_causal", is_causal), flag(name, "need_weights", need_weights)
        inputs = {"query": query, "key": key, "value": value}
        axes = {floating(name, label, x).ndim for label, x in inputs.items()}
        if axes not in ({2}, {3}):
            shapes = ", ".join(str(x.shape) for x in inputs.values())
            raise ValueError(f"{name}: expected query, key and value with 3 axes, or 2 without a batch, got {shapes}")
        batched = axes == {3}
        if is_causal and attn_mask is None:
            raise ValueError(f"{name}: expected `attn_mask` together with is_causal=True")
        first = {id(t): t if batched else t.unsqueeze(0) for t in inputs.values()}
        if batched and not self.batch_first:
            first = {i: t.transpose(0, 1) for i, t in first.items()}
        x = [first[id(t)] for t in inputs.values()]  # B, L, E; one where they are one
        q, k, v = self._projected(x)
        if cache is not None:
            if not isinstance(cache, dict):
                raise TypeError(f"{name}: expected `cache` to be a dict, empty at first, got {type(cache).__name__}")
            k, v = (ops.cat([cache[at], t], 1) if at in cache else t for at, t in (("key", k), ("value", v)))
            cache.update(key=k, value=v)
        batch, length = q.shape[:2]
        extra = 0
        for more_k, more_v in self._more(k, batch):
            k, v, extra = ops.cat([k, more_k], 1), ops.cat([v, more_v], 1), extra + 1
        q, k, v = (t.reshape(batch, t.shape[1], self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        alone = attn_mask is not None and attn_mask.shape == (length, length) and key_padding_mask is None and not extra
        causal = is_causal and alone and not need_weights and k.shape[2] == length
        mask = None if causal else self._mask(q, k, attn_mask, key_padding_mask, extra)
        p = self.dropout if self.training else 0.0
        y, weights = attend(name, q, k, v, mask, p, None, causal, need_weights)
        y = self.out_proj(y.transpose(1, 2).reshape(batch, length, self.embed_dim))
        y = y.squeeze(0) if not batched else y if self.batch_first else y.transpose(0, 1)
        if weights is None or not need_weights:
            return y, None
        weights = ops.mean(weights, 1) if average_attn_weights else weights
        return y, weights if batched else weights.squeeze(0)

    def _projected(self, x: list[Tensor]) -> list[Tensor]:
        """query, key and value (B, L, embed_dim), projected."""
        ws: tuple[Any, ...] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None and x[0] is x[1] is x[2]:  # self-attention: one product, not three
            return list(ops.chunk(ops.linear(x[0], self.in_proj_weight, self.in_proj_bias), 3, -1))
        if self.in_proj_weight is not None:
            ws = ops.chunk(self.in_proj_weight, 3)
        bs: tuple[Any, ...] = (None,) * 3 if self.in_proj_bias is None else ops.chunk(self.in_proj_bias, 3)
        return [ops.linear(t, w, b) for t, w, b in zip(x, ws, bs)]

    def _more(self, k: Tensor, batch: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values (B, 1, embed_dim) beside those of the input."""
        shape, found = (batch, 1, self.embed_dim), []
        if self.bias_k is not None and self.bias_v is not None:
            found.append((self.bias_k.expand(shape), self.bias_v.expand(shape)))
        if self.add_zero_attn:
            zeros = ops.zeros(shape, dtype=k.dtype, device=k.device)
            found.append((zeros, zeros))
        return found

    def _mask(self, q: Tensor, k: Tensor, attn: Any, padding: Any, extra: int) -> Tensor | None:
        """Both masks as one that broadcasts to (B, heads, L, S): bool, True where a key may be seen, or to be added."""
        batch, length, own = q.shape[0], q.shape[2], k.shape[2] - extra
        found = []
        if attn is not None:
            expected = ((length, own), (batch * self.num_heads, length, own))
            if tensor("MultiheadAttention", "attn_mask", attn).shape not in expected:
                either = f"{expected[0]} or {expected[1]}"
                raise ValueError(f"MultiheadAttention: expected attn_mask.shape to be {either}, got {attn.shape}")
            found.append(attn if attn.ndim == 2 else attn.reshape(batch, self.num_heads, length, own))
        if padding is not None:
            shape = tensor("MultiheadAttention", "key_padding_mask", padding).shape
            if shape != (batch, own) and (batch, *shape) != (1, own):
                raise ValueError(f"MultiheadAttention: expected key_padding_mask.shape == {(batch, own)}, got {shape}")
            found.append(padding.reshape(batch, 1, 1, own))
        if not found:
            return None
        if extra:
            found = [ops.pad(m, (0, extra)) for m in found]
        if all(m.dtype == bool for m in found):
            hidden = found[0] if len(found) == 1 else ops.logical_or(*found)
            return ops.logical_not(hidden)
        added = [self._added(m, q) for m in found]
        return added[0] if len(added) == 1 else added[0] + added[1]

    def _added(self, mask: Tensor, q: Tensor) -> Tensor:
        """A mask to be added: -inf where a bool one is True; FP32 ones stay as they are."""
        if mask.dtype == bool:
            return ops.masked_fill(ops.zeros(mask.shape, dtype=q.dtype, device=q.device), mask, -float("inf"))
        return mask

    def extra_repr(self) -> str:
        default = {"dropout": 0.0, "kdim": self.embed_dim, "vdim": self.embed_dim, "batch_first": False}
        changed = [f"{k}={getattr(self, k)}" for k, v in default.items() if getattr(self, k) != v]
        return ", ".join([f"{self.embed_dim}, {self.num_heads}", *changed])
