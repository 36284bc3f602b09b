"""Traces made shorter: what is the same in every step is computed once, by the one who traces.

In the steps of a small model, operations on a few numbers take as long as they take to be called.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from gcfed.core.torch_internals import is_operation, is_pure

TURN = torch.ops.aten.t.default


def simplify(graph: Graph) -> None:
    """Keep as tensors of the module what no argument enters, and turn no matrix twice."""
    for node in graph.nodes:
        if node.target is TURN and node.args[0].target is TURN:
            node.replace_all_uses_with(node.args[0].args[0])
    known = _constants(graph)
    for node, value in known.items():
        # what the trace gives out is whoever's it is given to, who may write into it
        if any(user not in known and user.op != "output" for user in node.users):
            _keep(graph, node, value)
    graph.eliminate_dead_code()


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


def _keep(graph: Graph, node: Node, value: Tensor) -> None:
    module = graph.owning_module
    assert isinstance(module, GraphModule)
    name = f"fixed_{node.name}"
    module.register_buffer(name, value)
    with graph.inserting_before(node):
        kept = graph.get_attr(name)
    node.replace_all_uses_with(kept, delete_user_cb=lambda user: user.op != "output")
