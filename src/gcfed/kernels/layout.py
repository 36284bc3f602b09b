"""Where in memory the channels of images and of convolutions lie."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.types import Inputs, Transform


@dataclass(frozen=True)
class ChannelsLast:
    """A transform after which images lie in memory as convolutions like them."""

    before: Transform | None

    def __call__(self, x: Inputs, key: Tensor | None) -> Inputs:
        x = x if self.before is None else self.before(x, key)
        return tree.map(channels_last, x)


def channels_last(x: Tensor) -> Tensor:
    """Images and kernels with their channels innermost; anything else as it is."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def lay_out_pooling(graph: torch.fx.Graph) -> None:
    """Give the gradients of pooling, in a traced step, the layout of what was pooled.

    They come from a flattened layer, and pooling would turn its input around instead, which is
    larger.
    """
    for node in graph.nodes:
        if node.target is torch.ops.aten.max_pool2d_with_indices_backward.default:
            gradient, *rest = node.args
            with graph.inserting_before(node):
                turned = graph.call_function(channels_last, (gradient,))
            node.args = (turned, *rest)
