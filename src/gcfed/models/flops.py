"""What a model costs: its parameters, and the arithmetic of one example."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call


class ModelCost(NamedTuple):
    """``flops``: of a forward pass of one example, two for each multiply-add.

    Only matrix products and convolutions count; biases, norms and activations do not.
    """

    parameters: int
    tensors: int
    flops: int


def count(module: nn.Module, shape: tuple[int, ...]) -> ModelCost:
    """Count without computing: on the meta device, where tensors have shapes and no values."""
    from torch.utils.flop_counter import FlopCounterMode  # it imports Triton, where there is one

    named = chain(module.named_parameters(), module.named_buffers())
    hollow = {name: torch.empty_like(value, device="meta") for name, value in named}
    sizes = [p.numel() for p in module.parameters()]
    dtype = next((p.dtype for p in module.parameters()), None)
    x = torch.empty(1, *shape, dtype=dtype, device="meta")
    with _evaluating(module), FlopCounterMode(display=False) as counter:
        functional_call(module, hollow, (x,))
    return ModelCost(sum(sizes), len(sizes), counter.get_total_flops())


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, in which no module draws or looks across a batch; then as it was."""
    training = [m for m in module.modules() if m.training]
    module.eval()
    try:
        yield
    finally:
        for m in training:
            m.training = True
