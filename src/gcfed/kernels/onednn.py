"""Products of float32 matrices by oneDNN, on CPUs where torch's own use half of a core.

Torch multiplies matrices by Intel's MKL, which keeps to AVX2 on the CPUs of AMD.  oneDNN, by which
torch does convolutions, uses AVX-512 on them too and is about twice as fast.
"""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.nn import functional

from gcfed.core.client import ClientTask
from gcfed.core.passes import replace_modules
from gcfed.core.torch_internals import has_hooks, onednn_linear
from gcfed.processes import cpu_vendor

TURN = torch.ops.aten.t.default
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

FEWEST, SHORTEST = 2**21, 4
"""Multiplications of a product, and the shortest of its three sides, below which MKL is as fast.

To call oneDNN takes 10 us, and matrices that are nearly vectors suit it less.
"""


@cache
def is_faster() -> bool:
    """Whether oneDNN is the faster one on this machine: by what it is, so as not to be timed."""
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


class OneDnnLinear(nn.Module):
    """A plain `nn.Linear` of which no gradient is taken, by oneDNN where it has enough to do."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        outputs, inputs = self.weight.shape
        if not pays(x.shape[:-1].numel(), inputs, outputs, x.dtype):
            return functional.linear(x, self.weight, self.bias)
        bias = None if self.bias is None else self.bias.contiguous()
        y: Tensor = onednn_linear()(x, self.weight, bias, "none", [], "")
        return y


def with_onednn(task: ClientTask) -> ClientTask:
    """The task with linear layers for evaluation by oneDNN, where that is faster; else as it is."""
    on_cpu = all(w.device.type == "cpu" for w in task.model.params.values())
    if not (on_cpu and is_faster()):
        return task
    return replace(task, model=task.model.rewritten(_exchange_linears))


def _exchange_linears(module: nn.Module) -> tuple[nn.Module, list[str]]:
    return replace_modules(module, _exchanged)


def _exchanged(name: str, layer: nn.Module) -> nn.Module | None:
    plain = type(layer) is nn.Linear and not has_hooks(layer)  # they would be lost
    return OneDnnLinear(layer) if plain else None  # type: ignore[arg-type]
