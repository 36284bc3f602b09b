"""Convolutions as products: the same numbers, forward and backward, mapped and not."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from gcfed import Model
from gcfed.kernels.products import ProductConv2d, as_products

KINDS = [
    {"padding": 2},
    {"stride": 2, "padding": 1},
    {"stride": (2, 3), "padding": (0, 1), "bias": False},
    {"dilation": 2, "padding": 2},
    {"stride": 2, "dilation": (1, 2)},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [(9, 8), (11, 13)])
def test_a_product_is_the_convolution(kind, size):
    conv = nn.Conv2d(3, 4, (3, 2) if "dilation" in kind else 3, **kind)
    product = ProductConv2d(conv)
    x = torch.randn(5, 3, *size)
    torch.testing.assert_close(product(x), conv(x))

    def loss(module, params, x):
        return functional_call(module, params, (x,)).square().sum()

    params = {n: torch.stack([p.detach(), 2 * p.detach()]) for n, p in conv.named_parameters()}
    xs = torch.stack([x, x + 1])
    for argument in (0, 1):
        one, other = (
            vmap(grad(lambda p, x, m=m: loss(m, p, x), argnums=argument))(params, xs)
            for m in (conv, product)
        )
        torch.testing.assert_close(one, other)


def test_a_model_keeps_its_parameters_and_what_is_not_plain():
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 1, padding="same"),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    model, x = Model(module), torch.randn(2, 2, 6, 6)
    twin = as_products(model)
    assert (model.replaced, twin.replaced) == ([], ["0"]) and twin.params is model.params
    outs = [m(m.params, x, buffers={}, train=True)[0].logits for m in (model, twin)]
    torch.testing.assert_close(*outs)
