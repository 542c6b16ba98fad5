"""A translator of LSTM layers with attention, as MPT section 4.4 and figure 4 have it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tinymp import ops
from tinymp.nn import LSTM, Dropout, Embedding, Linear, Module, init
from tinymp.ops.more.attention import weighted
from tinymp.tensor import Tensor

PAD = 0  # the word that stands behind the end of a sentence in a batch


class Sentences(NamedTuple):
    """State of the decoder for B sentences; the rows of all arrays are the sentences, for `beam_search`.

    h, c    (B, layers, H), the states of the decoder's layers
    memory  (B, S, H), input of the attention for each word
    mask    (B, S), True where there is a word
    """

    h: Tensor
    c: Tensor
    memory: Tensor
    mask: Tensor


class LuongAttention(Module):
    """score(q, m) = q^T W m, "general" in Luong et al. (2015, section 3.1), for all steps of a decoder at once.

    proj.weight: W^T, (size, size).
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = Linear(size, size, bias=False)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(context (B, T, H), weights (B, T, S)): softmax(scores) memory, and softmax(scores), computed in FP32.

        query: (B, T, H); memory: (B, S, H); mask: (B, S), bool. Where it is False, the score is -inf, which FP16 has,
        and so the weight 0; where it is False everywhere, context and weights are 0.
        """
        scores = ops.matmul(self.proj(query), memory.transpose(1, 2))
        return weighted("LuongAttention", scores, memory, mask.unsqueeze(1))


class NMT(Module):
    """Sentences (S, B) and the beginnings of their translations (T, B) -> logits (T, B, target_size) of the next word.

    Encoder: an embedding, a bidirectional LSTM layer, and num_layers - 1 that read forward. Decoder: an embedding, a
    first LSTM layer, whose outputs attend to the words of the sentence, and num_layers - 1 layers that read outputs and
    context. The decoder's layers begin with the last states of the encoder's, the first with those of the direction
    that reads backward (Bahdanau et al., 2015, appendix A.2.2).

    What is attended to is the sum of a word's embedding and of what the encoder's last layer says of it; the logits
    come from the sum of context and what the decoder's last layer says (residual connections; Wu et al., 2016, section
    3.1). So a word reaches the logits past the layers, and few sentences are enough to learn what to attend to.

    This is the plan of Wu et al. (2016, figure 1), but the decoder's first layer does not read what was attended to
    before ("input feeding"): with the right beginnings at hand, as in training, each layer runs over all words as one
    op, and the attention is computed for all of them at once.

    hidden_size   cells of a layer, and in each direction of the bidirectional one; also the size of the embeddings
    dropout       of the embeddings, between layers and before the logits, in training

    MPT section 4.4 names layers, cells and vocabularies, and for the rest a tutorial of TensorFlow, whose attention is
    Bahdanau's: its scores need `hidden_size` numbers for each pair of words, Luong's one. All weights start uniform on
    [-0.1, 0.1) (Luong et al., 2015, section 4.1).
    """

    def __init__(
        self, source_size: int, target_size: int, hidden_size: int = 1024, num_layers: int = 3, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if num_layers < 2:
            raise ValueError(f"NMT: expected `num_layers` to be at least 2, got {num_layers}")
        n, between = hidden_size, dropout if num_layers > 2 else 0.0
        self.dropout = Dropout(dropout)
        self.source = Embedding(source_size, n)
        self.first = LSTM(n, n, bidirectional=True)
        self.encoder = LSTM(2 * n, n, num_layers - 1, dropout=between)
        self.target = Embedding(target_size, n)
        self.decoder = LSTM(n, n)
        self.attention = LuongAttention(n)
        self.upper = LSTM(2 * n, n, num_layers - 1, dropout=between)
        self.output = Linear(n, target_size)
        for weight in self.parameters():
            init.uniform_(weight, -0.1, 0.1)

    def encode(self, source: Tensor, lengths: Any = None) -> Sentences:
        """The decoder's first state. source: (S, B) numbers of words; lengths: of the B sentences, in [1, S], by
        default S.
        """
        S, B = source.shape
        lengths = np.full(B, S) if lengths is None else lengths
        x = self.dropout(self.source(source))
        y, (h, c) = self.first(x, lengths=lengths)
        y, (more_h, more_c) = self.encoder(self.dropout(y), lengths=lengths)
        mask = Tensor(np.arange(S) < np.asarray(lengths)[:, None]).to(source.device)
        h, c = (ops.cat([first[1:], more]).transpose(0, 1) for first, more in ((h, more_h), (c, more_c)))
        return Sentences(h, c, (x + y).transpose(0, 1), mask)

    def decode(self, words: Tensor, state: Sentences) -> tuple[Tensor, Sentences, Tensor]:
        """(logits (T, B, target_size), the state after the last word, attention (B, T, S)) of words (T, B)."""
        h, c = state.h.transpose(0, 1), state.c.transpose(0, 1)
        y, (first_h, first_c) = self.decoder(self.dropout(self.target(words)), (h[:1], c[:1]))
        context, weights = self.attention(y.transpose(0, 1), state.memory, state.mask)
        context = context.transpose(0, 1)
        y, (more_h, more_c) = self.upper(self.dropout(ops.cat([y, context], 2)), (h[1:], c[1:]))
        h, c = (ops.cat(pair).transpose(0, 1) for pair in ((first_h, more_h), (first_c, more_c)))
        return self.output(self.dropout(y + context)), state._replace(h=h, c=c), weights

    def forward(self, source: Tensor, lengths: Any, target: Tensor) -> Tensor:
        """The logits (T, B, target_size) of the words that follow target (T, B), of which the first begins a sentence.

        source, lengths: see `encode`.
        """
        return self.decode(target, self.encode(source, lengths))[0]

    def loss(self, source: Tensor, lengths: Any, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """The mean of -ln p(word) over the words of the translations, in FP32.

        target: (T + 1, B), with the token that begins a sentence, and the one that ends it; PAD behind that.
        """
        logits, following = self(source, lengths, target[:-1]).flatten(0, 1), target[1:].flatten()
        return ops.cross_entropy(logits, following, ignore_index=PAD, label_smoothing=label_smoothing)

    def step(self, words: np.ndarray, state: Sentences) -> tuple[np.ndarray, Sentences]:
        """(FP32 log-probabilities (B, target_size) of the next word, state) after words (B,): for `beam_search`."""
        logits, state, _ = self.decode(Tensor(words).to(state.memory.device).unsqueeze(0), state)
        return ops.log_softmax(logits[0].float(), 1).numpy(), state
