"""One's own `nn.Module` and data, trained by federated learning, and a curve to look at."""

import torch
from torch import nn

from gcfed import fit


class Net(nn.Module):
    """Nothing in here knows of gcfed; the last `nn.Linear` counts as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.Flatten())
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(8 * 32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.body(x)))


def waves(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy sines of three frequencies, one a class."""
    y = torch.arange(count) % 3
    t = torch.linspace(0, 1, 32)
    phase = 6.28 * torch.rand(count, 1)
    signal = torch.sin(6.28 * (2 + 2 * y[:, None]) * t + phase)
    return (signal + 0.3 * torch.randn(count, 32))[:, None], y


torch.manual_seed(0)
history = fit(
    Net(),
    waves(1500),
    waves(300),
    algorithm="fedlc(tau=0.1) + gcfed",
    clients=30,
    cohort=5,
    alpha=0.1,
    rounds=8,
    on_round=lambda line: print(f"round {line['round'] + 1}: {100 * line['test_accuracy']:.1f} %"),
)
history.plot().savefig("own_model.png")
print("trained:", type(history.module).__name__, "- curve: own_model.png")
