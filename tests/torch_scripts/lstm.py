import math
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size, bptt, ntoken = 8, 6, 500
device = "cuda" if torch.cuda.is_available() else "cpu"


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout=0.2):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        self.nhid, self.nlayers = nhid, nlayers

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output))
        return F.log_softmax(decoded.view(-1, ntoken), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


train_data = batchify(torch.randint(0, ntoken, (20_000,)), batch_size)
model = RNNModel(ntoken, 32, 64, 2).to(device)
criterion = nn.NLLLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.train()
total_loss = 0.0
hidden = model.init_hidden(batch_size)
for i in range(0, train_data.size(0) - bptt, bptt):
    data, targets = train_data[i : i + bptt], train_data[i + 1 : i + 1 + bptt].view(-1)
    optimizer.zero_grad()
    hidden = tuple(h.detach() for h in hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    total_loss += loss.item()
    print(f"ppl {math.exp(total_loss / (i // bptt + 1)):8.2f}")
