"""An LSTM that guesses the next character of a rhyme; h0 is made anew for each piece."""

import torch
import torch.nn as nn
from start import weights

text = "the rain that falls on the hill runs down the lane and fills the mill; the mill turns grinds the grain. " * 8
chars = sorted(set(text))
char_to_ix = {ch: i for i, ch in enumerate(chars)}
data = torch.LongTensor([char_to_ix[ch] for ch in text])
seq_length, batch, hidden_size = 16, 2, 24


class RNN(nn.Module):
    def __init__(self, vocab, hidden, layers=1):
        super(RNN, self).__init__()
        self.hidden, self.layers = hidden, layers
        self.encoder = nn.Embedding(vocab, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.decoder = nn.Linear(hidden, vocab)

    def forward(self, x, hidden):
        output, hidden = self.lstm(self.encoder(x), hidden)
        return self.decoder(output.contiguous().view(-1, self.hidden)), hidden

    def init_hidden(self, n):
        weight = next(self.parameters()).data
        return weight.new(self.layers, n, self.hidden).zero_(), weight.new_zeros(self.layers, n, self.hidden)


torch.manual_seed(0)
model = RNN(len(chars), hidden_size)
model.load_state_dict(weights(model, torch.from_numpy))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
losses = []
for step in range(20):
    start = step * seq_length * batch
    x = data[start : start + seq_length * batch].view(batch, -1)
    y = data[start + 1 : start + 1 + seq_length * batch].view(batch, -1)
    hidden = model.init_hidden(batch)
    model.zero_grad()
    output, hidden = model(x, hidden)
    loss = criterion(output, y.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    losses.append(loss.item())
