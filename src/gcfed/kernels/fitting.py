"""Which layers the operators can stand for, and where; asked before Triton is needed."""

from importlib.util import find_spec

import torch
from torch import nn

from gcfed.core.model import Model
from gcfed.core.torch_internals import has_hooks


def fits(layer: nn.Module) -> bool:
    """Whether a layer is one that an operator can do."""
    if has_hooks(layer):  # they would be lost
        return False
    if type(layer) is nn.Linear:
        return True
    if type(layer) is nn.GroupNorm:
        size = layer.num_channels // layer.num_groups
        return layer.affine and size & (size - 1) == 0  # kernels are made of powers of two
    return type(layer) is nn.Conv2d and _is_plain(layer)


def _is_plain(layer: nn.Conv2d) -> bool:
    sides = (layer.kernel_size, layer.stride, layer.padding)
    return (
        not isinstance(layer.padding, str)
        and all(len(set(pair)) == 1 for pair in sides)
        and layer.kernel_size[0] in (1, 3, 5)
        and layer.stride[0] in (1, 2)
        and int(layer.padding[0]) < layer.kernel_size[0]
        and layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
    )


def can_fuse(model: Model, *, rounds: bool) -> bool:
    """Whether operators may do a model's layers.

    They need Triton, a GPU and weights in float32, and they round what they multiply, to TF32 or
    to bfloat16.
    """
    weights = list(model.params.values())
    return (
        rounds
        and weights[0].device.type == "cuda"
        and all(w.dtype == torch.float32 for w in weights)
        and find_spec("triton") is not None
    )
