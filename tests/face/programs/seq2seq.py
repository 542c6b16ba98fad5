"""A GRU reads digits, another writes them backwards; the true digit is fed at each step."""

import numpy as np
import torch
import torch.nn as nn
from start import weights
from torch import optim

SOS, VOCAB, HID = 0, 10, 16
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HID)
        self.rnn = nn.GRU(HID, HID)

    def forward(self, src):
        outputs, hidden = self.rnn(self.embedding(src))
        return hidden


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HID)
        self.rnn = nn.GRU(HID * 2, HID)
        self.fc_out = nn.Linear(HID * 3, VOCAB)

    def forward(self, token, hidden, context):
        embedded = self.embedding(token.unsqueeze(0))
        output, hidden = self.rnn(torch.cat((embedded, context), dim=2), hidden)
        output = torch.cat((embedded.squeeze(0), hidden.squeeze(0), context.squeeze(0)), dim=1)
        return self.fc_out(output), hidden


class Seq2Seq(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, src, trg):
        outputs = [torch.zeros(trg.shape[1], VOCAB).to(device)]
        hidden = context = self.encoder(src)
        for t in range(1, trg.shape[0]):
            output, hidden = self.decoder(trg[t - 1], hidden, context)
            outputs.append(output)
        return torch.stack(outputs)


model = Seq2Seq(Encoder(), Decoder()).to(device)
model.load_state_dict(weights(model, torch.from_numpy))
optimizer = optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss(ignore_index=SOS)
r, losses = np.random.RandomState(4), []
model.train()
for i in range(20):
    src = torch.tensor(r.randint(1, VOCAB, (5, 8)), dtype=torch.long).to(device)
    trg = torch.cat([torch.full((1, 8), SOS, dtype=torch.long), src.flip(0)])
    optimizer.zero_grad()
    output = model(src, trg)
    loss = criterion(output[1:].view(-1, VOCAB), trg[1:].view(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1)
    optimizer.step()
    losses.append(loss.item())
