"""Attention as translators with recurrent layers use it: Bahdanau's (additive) and Luong's (multiplicative).

Both are for one step of a decoder, and for all of them at once: where the decoder's states do not depend on what was
attended to, training needs no loop in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..arguments import choice, floating, integers, tensor
from ..ops.attention import weighted
from ..ops.recurrent import sequence_lengths
from ..tensor import Tensor
from . import init
from .init import parameter
from .layers import Linear
from .module import Module


class Alignment(Module):
    """What BahdanauAttention and LuongAttention share: masks, softmax and the sum over the memory."""

    query_size: int
    memory_size: int

    def keys(self, memory: Tensor) -> Tensor:
        """What the scores read of the memory: compute it once for all steps of a generation, and pass it as `keys`."""
        return memory

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, T, S) of query (B, T, query_size) and keys (B, S, ...)."""
        raise NotImplementedError

    def forward(
        self, query: Tensor, memory: Tensor, lengths: Any = None, mask: Tensor | None = None, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(context, weights): softmax(scores) memory, and softmax(scores), which is computed in FP32.

        query: (B, T, query_size) for T steps, or (B, query_size) for one; memory: (B, S, memory_size). context: like
        query, with memory_size on the last axis, weights: with S there. lengths: how many of the S each sequence has,
        B integers in [1, S]; or mask: (B, S), bool, True where a place may be attended to. Other places get the score
        -inf, which FP16 has, and so the weight 0. Where the mask hides all places, context and weights are 0. keys:
        `self.keys(memory)`, if it is known already.

        TypeError or ValueError for other shapes and dtypes, and for both lengths and mask.
        """
        name = type(self).__name__
        q, shape = floating(name, "query", query), floating(name, "memory", memory).shape
        last = self.query_size, self.memory_size
        if q.ndim not in (2, 3) or len(shape) != 3 or q.shape[0] != shape[0] or (q.shape[-1], shape[2]) != last:
            raise ValueError(
                f"{name}: expected query (B, T, {last[0]}) or (B, {last[0]}) and memory (B, S, {last[1]}), got "
                f"{q.shape} and {shape}"
            )
        if lengths is not None and mask is not None:
            raise ValueError(f"{name}: expected lengths or mask, got both")
        if lengths is not None:
            mask = length_mask(name, lengths, shape[1], shape[0], memory.device)
        elif mask is not None and (tensor(name, "mask", mask).shape != shape[:2] or mask.dtype != bool):
            raise ValueError(f"{name}: expected `mask` to be bool {shape[:2]}, got {mask.dtype} {mask.shape}")
        keys = self.keys(memory) if keys is None else floating(name, "keys", keys)
        if keys.ndim != 3 or keys.shape[:2] != shape[:2]:
            raise ValueError(f"{name}: expected `keys` to be self.keys(memory), for {shape[:2]}, got {keys.shape}")
        scores = self.scores(q if q.ndim == 3 else q.unsqueeze(1), keys)
        context, weights = weighted(name, scores, memory, None if mask is None else mask.unsqueeze(1))
        return (context, weights) if q.ndim == 3 else (context.squeeze(1), weights.squeeze(1))


class BahdanauAttention(Alignment):
    """score(q, m) = v^T tanh(W q + U m) (Bahdanau et al., 2015, section 3.1 and appendix A.1.2).

    query_proj.weight: W, (hidden_size, query_size); memory_proj.weight: U, (hidden_size, memory_size); weight: v,
    (hidden_size,). All start as in a Linear.

    For T steps at once the tanh is an array of B * T * S * hidden_size numbers, which backward needs: at 1,024 cells,
    64 sentences and 25 x 25 words that is 78 MiB in FP16. LuongAttention has no such array.
    """

    def __init__(self, query_size: int, memory_size: int, hidden_size: int) -> None:
        super().__init__()
        (self.query_size,) = integers("BahdanauAttention", "query_size", query_size, 1, 1)
        (self.memory_size,) = integers("BahdanauAttention", "memory_size", memory_size, 1, 1)
        (self.hidden_size,) = integers("BahdanauAttention", "hidden_size", hidden_size, 1, 1)
        self.query_proj = Linear(self.query_size, self.hidden_size, bias=False)
        self.memory_proj = Linear(self.memory_size, self.hidden_size, bias=False)
        self.weight = parameter(self.hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw v anew, uniform on [-r, r), r = 1 / sqrt(hidden_size)."""
        init.uniform_(self.weight, -(self.hidden_size**-0.5), self.hidden_size**-0.5)

    def keys(self, memory: Tensor) -> Tensor:
        return self.memory_proj(memory)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return ops.matmul(ops.tanh(self.query_proj(query).unsqueeze(2) + keys.unsqueeze(1)), self.weight)

    def extra_repr(self) -> str:
        return f"{self.query_size}, {self.memory_size}, {self.hidden_size}"


class LuongAttention(Alignment):
    """score(q, m) = q^T m ("dot"), or q^T W m ("general") (Luong et al., 2015, section 3.1).

    proj.weight, with "general": W^T, (memory_size, query_size); it starts as in a Linear. ValueError for "dot" with a
    query_size that is not memory_size.
    """

    def __init__(self, query_size: int, memory_size: int, score: str = "general") -> None:
        super().__init__()
        (self.query_size,) = integers("LuongAttention", "query_size", query_size, 1, 1)
        (self.memory_size,) = integers("LuongAttention", "memory_size", memory_size, 1, 1)
        self.score = choice("LuongAttention", "score", score, ("general", "dot"))
        if score == "dot" and query_size != memory_size:
            raise ValueError(
                f"LuongAttention: expected query_size == memory_size for score='dot', got {query_size} and "
                f"{memory_size}"
            )
        self.proj = Linear(self.query_size, self.memory_size, bias=False) if score == "general" else None

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return ops.matmul(query if self.proj is None else self.proj(query), keys.transpose(1, 2))

    def extra_repr(self) -> str:
        return f"{self.query_size}, {self.memory_size}, score={self.score!r}"


def length_mask(op: str, lengths: Any, length: int, batch: int, device: str) -> Tensor:
    """(batch, length), bool, True in the first lengths[b] places of row b; errors as of `sequence_lengths`."""
    known = sequence_lengths(op, lengths, length, batch)
    return Tensor(np.arange(length) < known[:, None]).to(device)
