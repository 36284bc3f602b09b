"""The pass that puts the operators in the place of a module's layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from gcfed.core.passes import Replacement, replace_modules
from gcfed.kernels.fitting import fits
from gcfed.kernels.fused import FusedConv2d, FusedGroupNorm, FusedLinear


def fuse_layers(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """Replace plain convolutions, linear layers and group norms by operators.

    The ReLU and the 2x2 max-pool after a layer become part of it where the module can be
    traced symbolically and all of its parameters are met on the way; else layers are replaced one
    by one.
    """
    followed = _followed(module)
    if followed is None:
        return replace_modules(module, _operators({}))
    graph, after = followed
    module, changed = replace_modules(module, _operators(after))
    return fx.GraphModule(module, graph), changed


def _operators(after: dict[str, list[str]]) -> Replacement:
    """What takes the place of a layer, which does what follows it too."""

    def replacement(name: str, layer: nn.Module) -> nn.Module | None:
        if not fits(layer):
            return None
        following = after.get(name, [])
        if isinstance(layer, nn.Conv2d):
            return FusedConv2d(layer, relu="relu" in following, pool="pool" in following)
        if isinstance(layer, nn.GroupNorm):
            return FusedGroupNorm(layer, relu="relu" in following)
        return FusedLinear(layer)  # type: ignore[arg-type]

    return replacement


class _ByLayers(fx.Tracer):
    """Looks into modules that have modules of their own, and into no others."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(m.children())


def _followed(module: nn.Module) -> tuple[fx.Graph, dict[str, list[str]]] | None:
    """The module's calls without what convolutions will do, and that; None if untraceable."""
    try:
        graph = _ByLayers().trace(module)
    except Exception:  # a module may do anything in its forward pass
        return None
    met = {name for name, _ in fx.GraphModule(module, graph).named_parameters()}
    if met != {name for name, _ in module.named_parameters()}:
        return None
    layers = dict(module.named_modules())
    calls = [node for node in graph.nodes if node.op == "call_module"]
    targets = [node.target for node in calls]
    after: dict[str, list[str]] = {}
    for node in calls:
        layer = layers[node.target]
        if fits(layer) and targets.count(node.target) == 1:
            after[node.target] = _absorb(graph, node, layers, FOLLOWERS.get(type(layer), ()))
    graph.lint()
    return graph, after


def _absorb(
    graph: fx.Graph, node: fx.Node, layers: dict[str, nn.Module], wanted: Sequence[str]
) -> list[str]:
    """Take out of the graph what follows a layer that will do it too."""
    found = []
    for name in wanted:
        users = list(node.users)
        if len(users) != 1 or not KINDS[name](users[0], layers):
            break
        users[0].replace_all_uses_with(node)
        graph.erase_node(users[0])
        found.append(name)
    return found


def _is_relu(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(layers[str(node.target)]) is nn.ReLU
    return node.target in (functional.relu, torch.relu, torch.relu_, "relu", "relu_")


def _is_pool(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    """Whether a call is a max-pool of 2x2 pixels, next to each other, all of which are there."""
    if node.op == "call_module":
        pool = layers[str(node.target)]
        if type(pool) is not nn.MaxPool2d or pool.return_indices:
            return False
        settings: tuple[Any, ...] = (
            pool.kernel_size,
            pool.stride,
            pool.padding,
            pool.dilation,
            pool.ceil_mode,
        )
    elif node.target in (functional.max_pool2d, torch.max_pool2d):
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
        given = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
        if given.get("return_indices") or "kernel_size" not in given:
            return False
        defaults = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
        settings = tuple((defaults | given)[name] for name in names[:5])
    else:
        return False
    size, stride, padding, dilation, ceil_mode = settings
    two = (2, (2, 2), [2, 2])
    return (
        size in two
        and (stride is None or stride in two)
        and padding in (0, (0, 0))
        and dilation in (1, (1, 1))
        and not ceil_mode
    )


KINDS = {"relu": _is_relu, "pool": _is_pool}
FOLLOWERS = {nn.Conv2d: ("relu", "pool"), nn.GroupNorm: ("relu",)}
"""What operators can do after a layer, in this order."""
