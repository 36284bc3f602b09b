"""A transformer, centralized in a plain PyTorch loop by any optimizer; then undone."""

import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from gcfed import centralize_gradients


class Classifier(nn.Module):
    """Says which of two tokens a sequence holds more of."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 16)
        layer = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


torch.manual_seed(0)
model = Classifier()
optimizer = optim.AdamW(model.parameters(), lr=3e-3)
handle = centralize_gradients(optimizer, model.encoder)  # any torch.optim optimizer

tokens = torch.randint(8, (2000, 12))
labels = ((tokens == 1).sum(1) > (tokens == 2).sum(1)).long()
for epoch in range(3):
    for rows in torch.randperm(len(tokens)).split(50):
        optimizer.zero_grad()
        cross_entropy(model(tokens[rows]), labels[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(tokens).argmax(1) == labels).double().mean().item()
    model.train()
    print(f"epoch {epoch}: {100 * accuracy:.1f} % of the training sequences")

weight = model.encoder.layers[0].linear1.weight
print(f"largest mean of a row of the last gradient: {weight.grad.mean(1).abs().max():.0e}")
handle.remove()  # from here on the optimizer is as it was
