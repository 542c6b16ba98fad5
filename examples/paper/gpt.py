"""GPT-2 (Radford et al., 2019): a Transformer that predicts the next token of a text, and writes."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tinymp import backend, ops
from tinymp.autograd import no_grad
from tinymp.nn import Dropout, Embedding, LayerNorm, Module, ModuleList, TransformerEncoderLayer, init
from tinymp.tensor import Tensor


class GPT(Module):
    """Tokens (B, L) -> logits (B, L, vocab_size) of the token after each; GPT-2 small by default, 124,439,808 weights.

    Learned positions (at most n_positions), n_layer blocks of causal attention with n_head heads and a feed-forward
    network of 4 n_embd hidden numbers, layer norm before each, dropout after each; the logits' weights are those of the
    embedding `wte` (Press and Wolf, 2017). `wte`, `wpe`, `h` and `ln_f` are GPT-2's names, those within a block are
    PyTorch's: h.0.norm1, self_attn, norm2, linear1, linear2 for its ln_1, attn, ln_2, mlp.c_fc, mlp.c_proj.
    """

    def __init__(
        self,
        vocab_size: int = 50257,
        n_positions: int = 1024,
        n_embd: int = 768,
        n_layer: int = 12,
        n_head: int = 12,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.wte, self.wpe = Embedding(vocab_size, n_embd), Embedding(n_positions, n_embd)
        self.drop = Dropout(dropout)
        gelu = partial(ops.gelu, approximate="tanh")
        block = partial(TransformerEncoderLayer, batch_first=True, norm_first=True)
        self.h = ModuleList([block(n_embd, n_head, 4 * n_embd, dropout, gelu) for _ in range(n_layer)])
        self.ln_f = LayerNorm(n_embd)
        for layer in self.h:
            layer.dropout.p = 0.0  # GPT-2 has none within its feed-forward network
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As GPT-2 starts: weights from N(0, 0.02^2), those of positions from N(0, 0.01^2), biases 0. Weights that end
        a residual branch are divided by sqrt(2 n_layer), so that the sum of all branches has the size of one.
        """
        for name, p in self.named_parameters():
            if p.ndim == 2:
                ends = name.endswith(("out_proj.weight", "linear2.weight"))
                init.normal_(p, 0.0, 0.02 / math.sqrt(2 * len(self.h)) if ends else 0.02)
            else:
                init.zeros_(p) if name.endswith("bias") else init.ones_(p)
        init.normal_(self.wpe.weight, 0.0, 0.01)

    def forward(self, input: Tensor) -> Tensor:
        """The logits, for input (B, L), integers in [0, vocab_size).

        IndexError for a token out of the vocabulary, ValueError for more than n_positions.
        """
        length, most = input.shape[1], self.wpe.num_embeddings
        if length > most:
            raise ValueError(
                f"GPT: expected at most n_positions={most} tokens, got {length}: give the last {most} alone"
            )
        x = self.drop(self.wte(input) + self.wpe.weight[:length])  # B, L, n_embd
        place = backend.of(input.array).xp.arange(length)
        hidden = Tensor(place > place[:, None])  # what comes later
        for block in self.h:
            x = block(x, hidden, is_causal=True)
        return ops.linear(self.ln_f(x), self.wte.weight)

    def generate(self, input: Tensor, count: int, temperature: float = 1.0, seed: int = 0) -> Tensor:
        """input (B, L), and `count` more tokens, each drawn from p^(1 / temperature) of the last n_positions before it.

        temperature 0: the most probable one. The model is in evaluation.
        """
        random = np.random.default_rng(seed)
        with no_grad():
            for _ in range(count):
                logits = self(input[:, -self.wpe.num_embeddings :])[:, -1].float().numpy()
                # the largest of logit / temperature + Gumbel noise is a draw from the softmax
                tokens = np.argmax(logits + temperature * random.gumbel(size=logits.shape), 1)
                input = ops.cat([input, Tensor(tokens[:, None]).to(input.device)], 1)
        return input
