"""A multi-layer perceptron."""

import math
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from gcfed.capacity import check_fits
from gcfed.core.model import MODELS
from gcfed.errors import InputError
from gcfed.models.layers import he_normal


class MLP(nn.Module):
    """Linear layers fc1, fc2, ... with ReLU between them; the last one is the head."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        for i, (width, next_width) in enumerate(pairwise(widths), start=1):
            self.add_module(f"fc{i}", nn.Linear(width, next_width))
        self.head = self.feature_reader = f"fc{len(widths) - 1}"
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for name, layer in self.named_children():
            x = layer(x) if name == self.head else functional.relu(layer(x))
        return x


@MODELS.register("mlp")
def mlp(
    shape: tuple[int, ...], num_classes: int, *, hidden: tuple[int, ...] = (512, 256)
) -> nn.Module:
    """Multi-layer perceptron fc1, fc2, ...; 784-512-256-62 is the paper's for EMNIST.

    Kaiming-normal weights (fan-in) and biases of zero, as in the paper's experiments.
    """
    widths = (math.prod(shape), *hidden, num_classes)
    if min(widths) < 1:
        raise InputError(f"mlp has layers of at least 1 unit; not {widths}")
    check_fits(f"mlp of widths {widths}", 4 * sum(a * b for a, b in pairwise(widths)))
    return MLP(widths)
