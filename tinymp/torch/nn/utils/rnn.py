"""torch.nn.utils.rnn: padded and packed sequences."""

from ...space import fill, names

_TABLE = names("nn", "PackedSequence pack_padded_sequence pack_sequence pad_packed_sequence")
fill(globals(), "torch.nn.utils.rnn", {**_TABLE, "pad_sequence": "data.pad_sequence"})
