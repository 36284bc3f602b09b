"""The pass that puts the operators in the place of a module's layers."""

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from gcfed.core.passes import Replacement, replace_modules
from gcfed.core.torch_internals import has_hooks
from gcfed.kernels.fitting import fits
from gcfed.kernels.fused import FusedConv2d, FusedGroupNorm, FusedLinear
from gcfed.kernels.symbolic import symbolic_trace


def fuse_layers(module: nn.Module, watched: Sequence[str] = ()) -> tuple[nn.Module, list[str]]:
    """Replace plain convolutions, linear layers and group norms by operators.

    The ReLU and the 2x2 max-pool after a layer, and what is added to a group norm, become part of
    it where a symbolic trace shows all that the module does; else layers are replaced one by one.
    Modules that are ``watched`` stay, since their inputs are read as features.
    """
    followed = _followed(module, watched)
    if followed is None:
        return replace_modules(module, _operators({}))
    graph, after, spared = followed
    module, changed = replace_modules(module, _operators(after, spared))
    return fx.GraphModule(module, graph), changed


def _owners_of_weights_read(graph: fx.Graph) -> set[str]:
    """The layers whose weights the module also reads directly, and expects in the model's dtype."""
    return {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}


def _operators(after: dict[str, list[str]], spared: Collection[str] = ()) -> Replacement:
    """What takes the place of a layer that is not spared, which does what follows it too."""

    def replacement(name: str, layer: nn.Module) -> nn.Module | None:
        if name in spared or not fits(layer):
            return None
        following = after.get(name, [])
        if isinstance(layer, nn.Conv2d):
            return FusedConv2d(layer, relu="relu" in following, pool="pool" in following)
        if isinstance(layer, nn.GroupNorm):
            return FusedGroupNorm(layer, relu="relu" in following)
        return FusedLinear(layer)  # type: ignore[arg-type]

    return replacement


def _followed(
    module: nn.Module, watched: Sequence[str]
) -> tuple[fx.Graph, dict[str, list[str]], set[str]] | None:
    """The calls that layers do not take over, what each layer takes over, and the layers to spare.

    None if a trace does not show all that the module does.
    """
    graph = symbolic_trace(module)
    if graph is None:
        return None
    calls = [node for node in graph.nodes if node.op == "call_module"]
    targets = [node.target for node in calls]
    met = _names(fx.GraphModule(module, graph)) == _names(module)
    if not met or not set(watched) <= set(targets):
        return None
    spared = _owners_of_weights_read(graph)
    layers = {n: m for n, m in module.named_modules() if n not in {*watched, *spared}}
    after: dict[str, list[str]] = {}
    for node in calls:
        layer = layers.get(node.target)
        if layer is not None and fits(layer) and targets.count(node.target) == 1:
            call = _with_residual(graph, node, layers) if type(layer) is nn.GroupNorm else node
            after[node.target] = _absorb(graph, call, layers, FOLLOWERS.get(type(layer), ()))
    graph.lint()
    return graph, after, spared


def _names(module: nn.Module) -> set[str]:
    """What a module holds."""
    return {name for name, _ in (*module.named_parameters(), *module.named_buffers())}


def _with_residual(graph: fx.Graph, norm: fx.Node, layers: dict[str, nn.Module]) -> fx.Node:
    """The call of a group norm; what is added to its result becomes its second input."""
    users = list(norm.users)
    if len(users) != 1 or len(norm.args) != 1:
        return norm
    (total,) = users
    residual = _added_to(norm, total)
    if residual is None or not _only_layers_between(norm, total, layers):
        return norm
    with graph.inserting_before(total):
        both = graph.call_module(str(norm.target), (*norm.args, residual))
    total.replace_all_uses_with(both)
    graph.erase_node(total)
    graph.erase_node(norm)
    return both


def _only_layers_between(norm: fx.Node, total: fx.Node, layers: dict[str, nn.Module]) -> bool:
    """Whether a norm may run as late as its sum: no call between writes into what it reads."""
    node = norm.next
    while node is not total:
        layer = layers.get(str(node.target)) if node.op == "call_module" else None
        if not type(layer).__module__.startswith("torch.nn.") or getattr(layer, "inplace", False):
            return False
        node = node.next
    return True


def _added_to(norm: fx.Node, total: fx.Node) -> fx.Node | None:
    """The other term, if ``total`` adds two and may be moved into the norm; else None."""
    if total.target not in (operator.add, operator.iadd, torch.add) or total.kwargs:
        return None
    others = [x for x in total.args if x is not norm]
    changed_in_place = total.target is operator.iadd and total.args[0] is not norm
    if len(others) != 1 or not isinstance(others[0], fx.Node) or changed_in_place:
        return None
    return others[0]


def _absorb(
    graph: fx.Graph, node: fx.Node, layers: dict[str, nn.Module], wanted: Sequence[str]
) -> list[str]:
    """Remove from the graph what follows a layer and will be done by it; return the names."""
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
        relu = layers.get(str(node.target))
        return type(relu) is nn.ReLU and not has_hooks(relu)
    return node.target in (functional.relu, torch.relu, torch.relu_, "relu", "relu_")


def _is_pool(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    """Whether a call is a max-pool of 2x2 pixels, next to each other, all of which are there."""
    if node.op == "call_module":
        pool = layers.get(str(node.target))
        if type(pool) is not nn.MaxPool2d or pool.return_indices or has_hooks(pool):
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
