"""Convolutions as matrix products, for many clients of few examples each.

Mapped over clients, a convolution becomes one with a group for each client, which cuDNN runs as a
kernel a client; a product becomes one batched product.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from gcfed.core.model import Model
from gcfed.core.passes import replace_modules
from gcfed.core.torch_internals import has_hooks

FEW = 16
"""Up to so many examples in a client's batch, its own kernel has too little to do."""


class ProductConv2d(nn.Module):
    """A plain `nn.Conv2d` as the product of its weights with the patches they look at."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.kernel_size, self.stride = convolution.kernel_size, convolution.stride
        self.padding, self.dilation = convolution.padding, convolution.dilation

    def forward(self, x: Tensor) -> Tensor:
        height, width = (int(side) for side in self.padding)
        x = functional.pad(x, (width, width, height, height)).transpose(0, 1)
        rows, columns = (self._positions(x.shape[axis + 2], axis) for axis in (0, 1))
        patches = [x[:, :, top, left] for top in rows for left in columns]
        n, shape = x.shape[1], patches[0].shape[1:]
        flat = torch.stack(patches, 1).reshape(-1, shape.numel())
        out = self.weight.reshape(len(self.weight), -1) @ flat
        if self.bias is not None:
            out = out + self.bias[:, None]
        return out.reshape(-1, n, *shape[1:]).transpose(0, 1)

    def _positions(self, size: int, axis: int) -> list[slice]:
        """Where along an axis each entry of the kernel looks, for all outputs."""
        gap, stride = self.dilation[axis], self.stride[axis]
        reach = gap * (self.kernel_size[axis] - 1)
        count = (size - reach - 1) // stride + 1
        starts = range(0, reach + 1, gap)
        return [slice(start, start + (count - 1) * stride + 1, stride) for start in starts]


def as_products(model: Model) -> Model:
    """A copy of ``model`` whose plain convolutions are products; its parameters are the same."""
    return model.rewritten(multiply_patches)


def multiply_patches(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """A pass that replaces plain convolutions by products."""
    return replace_modules(module, _product)


def _product(name: str, module: nn.Module) -> nn.Module | None:
    plain = (
        type(module) is nn.Conv2d
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and not has_hooks(module)  # they would be lost
    )
    return ProductConv2d(module) if plain else None  # type: ignore[arg-type]
