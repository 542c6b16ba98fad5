"""A model of the paper that is larger than the memory of most machines."""

from tinymp import nn, ops


class BigLSTM(nn.Module):
    """LSTM-8192-1024 (MPT section 4.5; Jozefowicz et al., 2016), with a full softmax: 1,776,948,095 parameters."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(793_471, 1024, sparse=True)
        self.lstm = nn.LSTM(1024, 8192, num_layers=2, proj_size=1024)
        self.output = nn.Linear(1024, 793_471)

    def forward(self, words):
        return ops.cross_entropy(self.output(self.lstm(self.embedding(words))[0]).flatten(0, 1), words.flatten())
