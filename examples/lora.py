"""LoRA under FedAvg and GC-Fed: a trained network learns upside-down images by small matrices."""

import copy
import sys

import torch
from torch import Tensor, nn

from gcfed import DATASETS, MODELS, Model, fit


class LoRA(nn.Module):
    """A linear layer that stays fixed, plus the product of two small ones that are trained."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Linear(layer.in_features, rank, bias=False)
        self.b = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.b(self.a(x))
        return y


seeds, rounds = (int(word) for word in (*sys.argv[1:], 1, 10)[:2])
torch.manual_seed(0)
images = DATASETS["fashion10k"](None)
network = MODELS["mlp"]((1, 28, 28), 10, hidden=(128,))
base = fit(network, images, algorithm="fedavg", partition="iid", clients=10, rounds=10).module
flipped = [(part.x.flip(2), part.y) for part in (images.train, images.test)]

for rank in (1, 4):
    module = copy.deepcopy(base)
    module.fc1 = LoRA(module.fc1, rank)  # fc2, the head, is trained whole
    print(Model(module).describe())
    for name in ("fedavg", "gcfed"):
        for seed in range(seeds):
            settings = {"alpha": 0.1, "rounds": rounds, "seed": seed}
            history = fit(module, *flipped, algorithm=name, **settings)
            last = history["test_accuracy"][-5:]
            print(f"rank {rank}, {name}, seed {seed}: {100 * sum(last) / len(last):.1f} %")
