"""Products of float32 matrices by oneDNN, on CPUs where torch's own are half as fast.

Torch multiplies matrices by Intel's MKL, which keeps to AVX2 on the CPUs of AMD.  oneDNN, by which
torch does convolutions, uses AVX-512 on them too and is about twice as fast.
"""

from functools import cache

import torch
from torch import Tensor
from torch.fx import Graph, Node

from gcfed.core.torch_internals import onednn_linear
from gcfed.cpu import cpu_vendor

TURN = torch.ops.aten.t.default
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

FEWEST, SHORTEST = 2**21, 4
"""Multiplications of a product, and the shortest of its three sides, below which MKL is as fast.

To call oneDNN takes 10 us, and matrices that are nearly vectors suit it less.
"""


@cache
def is_faster() -> bool:
    """Whether oneDNN is the faster one: decided by the kind of CPU, for what is timed varies."""
    return (
        onednn_linear() is not None
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and cpu_vendor() == "AuthenticAMD"
    )


def pays(rows: int, inner: int, columns: int, dtype: torch.dtype) -> bool:
    """Whether oneDNN is to do a product of these sides."""
    sides = (rows, inner, columns)
    large = rows * inner * columns >= FEWEST and min(sides) >= SHORTEST
    return dtype == torch.float32 and large and is_faster()


def multiply_by_onednn(graph: Graph) -> None:
    """Have oneDNN do the large products of a traced step."""
    for node in graph.nodes:
        if node.target in PRODUCTS and not node.kwargs:
            *bias, x, w = node.args
            if _fits(node, x, *bias):
                _replace(graph, node, x, w, *bias)


def _fits(product: Node, x: Node, bias: Node | None = None) -> bool:
    """Whether oneDNN is to do a product, whose bias, if any, lies in memory as it takes it to."""
    terms = (x,) if bias is None else (x, bias)
    if any("val" not in term.meta for term in terms):  # of parameters that are not trained
        return False
    y, inner = product.meta["val"], x.meta["val"].shape[1]
    lies_well = bias is None or _is_row(bias.meta["val"], y.shape[1])
    return lies_well and pays(len(y), inner, y.shape[1], y.dtype)


def _is_row(bias: Tensor, size: int) -> bool:
    return bias.shape == (size,) and bias.is_contiguous()


def _replace(graph: Graph, product: Node, x: Node, w: Node, bias: Node | None = None) -> None:
    with graph.inserting_before(product):
        turned = graph.call_function(TURN, (w,))
        new = graph.call_function(onednn_linear(), (x, turned, bias, "none", [], ""))
    new.meta = product.meta
    product.replace_all_uses_with(new)
    graph.erase_node(product)
