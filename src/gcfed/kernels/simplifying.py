"""Traces made shorter: what is the same in every step is computed once, by the one who traces.

In the steps of a small model, operations on a few numbers take as long as they take to be called.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from gcfed.core.torch_internals import is_operation, is_pure, writes
from gcfed.kernels.inplace import is_view

TURN = torch.ops.aten.t.default
COPY = torch.ops.aten.copy_.default


def simplify(graph: Graph) -> None:
    """Store what depends on no argument as tensors of the module; drop double transposes."""
    for node in graph.nodes:
        if node.target is TURN and node.args[0].target is TURN:
            node.replace_all_uses_with(node.args[0].args[0])
    known, given = _constants(graph), _given_out(graph)
    for node, value in known.items():
        if node not in given and any(user not in known for user in node.users):
            _keep(graph, node, value)
    graph.eliminate_dead_code()


def read_sources(graph: Graph) -> None:
    """Where a trace copies one of its own values over another, read the source instead.

    Torch makes such copies in cosine similarity; a trace that writes into arguments alone compiles
    faster.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    copies = _writes(graph)
    if any(node.target is not COPY or is_view(node.args[0]) for node in copies):
        return  # something may be written by another name
    written = {node.args[0] for node in copies}
    for node in copies:
        to, source, *_ = node.args
        others = to.users.keys() - {node}
        if (
            to.op == source.op == "call_function"
            and source not in written
            and not any(map(is_view, (source, *others)))
            and all(place[user] < place[node] for user in others)
            and _layout(to) == _layout(source)
        ):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def skip_views(graph: Graph) -> None:
    """Where a view of a view is the original tensor again, read the original instead.

    A layer that is mapped over clients gives its operator a client axis, and vmap takes it away.
    """
    if any(node.target is not COPY for node in _writes(graph)):
        return  # it may change how a tensor lies in its memory
    for node in graph.nodes:
        above = node
        while is_view(above):
            above = above.args[0]
            if _layout(above) == _layout(node):
                node.replace_all_uses_with(above)


def _writes(graph: Graph) -> list[Any]:
    return [node for node in graph.nodes if is_operation(node.target) and writes(node.target)]


def _layout(node: Node) -> object:
    """How a node's tensor lies in its memory; of what is none, the node itself."""
    x = node.meta.get("val")
    if not isinstance(x, Tensor):
        return node
    read_as = x.dtype, x.is_conj(), x.is_neg()
    return x.shape, x.stride(), x.storage_offset(), x.device, read_as


def _constants(graph: Graph) -> dict[Node, Tensor]:
    """The nodes that are tensors of the same numbers every time, with these."""
    known: dict[Node, Tensor] = {}

    def value(arguments: Any) -> Any:
        return map_arg(arguments, lambda node: known[node])

    operations = [node for node in graph.nodes if is_operation(node.target)]
    if not all(is_pure(node.target) for node in operations):
        return {}  # what is written into is not the same every time
    for node in operations:
        if all(x in known for x in node.all_input_nodes):
            found = node.target(*value(node.args), **value(node.kwargs))
            if isinstance(found, Tensor):
                known[node] = found
    return known


def _given_out(graph: Graph) -> set[Node]:
    """The outputs of a trace, and what they are views of: the caller may write into them."""
    found: set[Node] = set()
    for node in next(node for node in graph.nodes if node.op == "output").all_input_nodes:
        found.add(node)
        while is_view(node):
            node = node.args[0]
            found.add(node)
    return found


def _keep(graph: Graph, node: Node, value: Tensor) -> None:
    module = graph.owning_module
    assert isinstance(module, GraphModule)
    name = f"fixed_{node.name}"
    module.register_buffer(name, value)
    with graph.inserting_before(node):
        kept = graph.get_attr(name)
    node.replace_all_uses_with(kept)
