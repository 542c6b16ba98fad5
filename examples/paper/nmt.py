"""A translator of LSTM layers with attention, as MPT section 4.4 and figure 4 have it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tinymp import ops
from tinymp.arguments import choice, instance, integers, named_by_class, number, tensor
from tinymp.nn import LSTM, BahdanauAttention, Dropout, Embedding, Linear, LuongAttention, Module, init
from tinymp.nn.more.alignment import length_mask
from tinymp.tensor import Tensor

PAD = 0  # the word that stands behind the end of a sentence in a batch


class Sentences(NamedTuple):
    """What the decoder reads and remembers of B sentences; the rows of all are the sentences, for `beam_search`.

    h, c    (B, layers, H), the states of the decoder's layers
    memory  (B, S, H), what the attention reads of each word, and keys, what it makes of that for its scores
    mask    (B, S), True where there is a word
    """

    h: Tensor
    c: Tensor
    memory: Tensor
    keys: Tensor
    mask: Tensor


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
    attention     "bahdanau" or "luong" (its score is "general")

    MPT section 4.4 names layers, cells and vocabularies, and for the rest a tutorial of TensorFlow, whose attention is
    Bahdanau's. All weights start uniform on [-0.1, 0.1) (Luong et al., 2015, section 4.1).
    """

    def __init__(
        self,
        source_size: int,
        target_size: int,
        hidden_size: int = 1024,
        num_layers: int = 3,
        dropout: float = 0.0,
        attention: str = "bahdanau",
    ) -> None:
        super().__init__()
        source_size, target_size = (
            integers("NMT", name, size, 1, 1)[0]
            for name, size in (("source_size", source_size), ("target_size", target_size))
        )
        (n,) = integers("NMT", "hidden_size", hidden_size, 1, 1)
        (layers,) = integers("NMT", "num_layers", num_layers, 1, 2)
        kind = choice("NMT", "attention", attention, ("bahdanau", "luong"))
        p = number("NMT", "dropout", dropout, 0, 1)
        between = p if layers > 2 else 0.0
        self.dropout = Dropout(p)
        self.source = Embedding(source_size, n)
        self.first = LSTM(n, n, bidirectional=True)
        self.encoder = LSTM(2 * n, n, layers - 1, dropout=between)
        self.target = Embedding(target_size, n)
        self.decoder = LSTM(n, n)
        self.attention = BahdanauAttention(n, n, n) if kind == "bahdanau" else LuongAttention(n, n)
        self.upper = LSTM(2 * n, n, layers - 1, dropout=between)
        self.output = Linear(n, target_size)
        for weight in self.parameters():
            init.uniform_(weight, -0.1, 0.1)

    @named_by_class
    def encode(self, source: Tensor, lengths: Any = None) -> Sentences:
        """What the decoder begins with. source: (S, B) numbers of words; lengths: of the B sentences, in [1, S]; by
        default all have S words.
        """
        if tensor("NMT", "source", source).ndim != 2:
            raise ValueError(f"NMT: expected `source` to be (S, B), got shape {source.shape}")
        S, B = source.shape
        lengths = np.full(B, S) if lengths is None else lengths
        x = self.dropout(self.source(source))
        y, (h, c) = self.first(x, lengths=lengths)
        y, (more_h, more_c) = self.encoder(self.dropout(y), lengths=lengths)
        memory, mask = (x + y).transpose(0, 1), length_mask("NMT", lengths, S, B, source.device)
        h, c = (ops.cat([x[1:], more]).transpose(0, 1) for x, more in ((h, more_h), (c, more_c)))
        return Sentences(h, c, memory, self.attention.keys(memory), mask)

    @named_by_class
    def decode(self, words: Tensor, state: Sentences) -> tuple[Tensor, Sentences, Tensor]:
        """(logits (T, B, target_size), the state after the last word, attention (B, T, S)) of words (T, B)."""
        instance("NMT", "state", state, Sentences)
        h, c = state.h.transpose(0, 1), state.c.transpose(0, 1)
        y, (first_h, first_c) = self.decoder(self.dropout(self.target(words)), (h[:1], c[:1]))
        context, weights = self.attention(y.transpose(0, 1), state.memory, mask=state.mask, keys=state.keys)
        context = context.transpose(0, 1)
        y, (more_h, more_c) = self.upper(self.dropout(ops.cat([y, context], 2)), (h[1:], c[1:]))
        h, c = (ops.cat(pair).transpose(0, 1) for pair in ((first_h, more_h), (first_c, more_c)))
        return self.output(self.dropout(y + context)), state._replace(h=h, c=c), weights

    def forward(self, source: Tensor, lengths: Any, target: Tensor, teacher_forcing: float = 1.0) -> Tensor:
        """The logits (T, B, target_size) of the words that follow target (T, B), of which the first begins a sentence.

        source, lengths: see `encode`. teacher_forcing: the probability with which a step reads the word of `target`,
        and not the most probable word of the step before (Bengio et al., 2015); below 1, the steps run one by one.
        """
        _require_words(target)
        state, p = self.encode(source, lengths), number("NMT", "teacher_forcing", teacher_forcing, 0, 1)
        if p == 1:
            return self.decode(target, state)[0]
        words, found = target[:1], []
        for t in range(target.shape[0]):
            logits, state, _ = self.decode(words, state)
            found.append(logits)
            right = ops.lt(ops.rand(target.shape[1], device=target.device), p)
            words = ops.where(right, target[t + 1 : t + 2], ops.argmax(logits, 2)) if t + 1 < target.shape[0] else words
        return ops.cat(found)

    @named_by_class
    def loss(
        self,
        source: Tensor,
        lengths: Any,
        target: Tensor,
        label_smoothing: float = 0.0,
        teacher_forcing: float = 1.0,
    ) -> Tensor:
        """The mean of -ln p(word) over the words of the translations, in FP32.

        target: (T + 1, B), with the token that begins a sentence, and the one that ends it; PAD behind that. The other
        arguments: see `forward` and `ops.cross_entropy`.
        """
        _require_words(target)
        logits = self(source, lengths, target[:-1], teacher_forcing)
        return ops.cross_entropy(
            logits.reshape(-1, logits.shape[2]),
            target[1:].reshape(-1),
            ignore_index=PAD,
            label_smoothing=label_smoothing,
        )

    @named_by_class
    def step(self, words: Any, state: Sentences) -> tuple[Tensor, Sentences]:
        """(FP32 log-probabilities (B, target_size) of the next word, state) after words (B,): for `beam_search`."""
        instance("NMT", "state", state, Sentences)
        logits, state, _ = self.decode(Tensor(words).to(state.memory.device).unsqueeze(0), state)
        return ops.log_softmax(logits[0].float(), 1), state


def _require_words(target: Any) -> None:
    if tensor("NMT", "target", target).ndim != 2 or not target.shape[0]:
        raise ValueError(f"NMT: expected `target` to be (T, B) with at least one word, got shape {target.shape}")
