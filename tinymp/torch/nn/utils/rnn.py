"""torch.nn.utils.rnn: padded and packed sequences."""

from ...space import fill, names

fill(
    globals(),
    "torch.nn.utils.rnn",
    names("data", "pad_sequence")
    | names("nn", "PackedSequence pack_padded_sequence pack_sequence pad_packed_sequence"),
)
