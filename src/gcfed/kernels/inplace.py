"""Traced operations done in place, where what they read is needed no more.

A step written with pure functions makes a new tensor of every result.  Of large ones the memory
costs more than the arithmetic.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from gcfed.core.torch_internals import gives_view, is_operation

aten = torch.ops.aten

IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.relu.default: aten.relu_.default,
    aten.bitwise_xor.Tensor: aten.bitwise_xor_.Tensor,
    aten.bitwise_and.Scalar: aten.bitwise_and_.Scalar,
}


def reuse_memory(graph: Graph) -> None:
    """Let an operation overwrite its first operand, if nobody reads that memory later."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    owner: dict[Node, Node] = {}  # whose memory a value lies in
    last: dict[Node, float] = {}  # when the memory is read for the last time
    for node in graph.nodes:
        owner[node] = owner[node.args[0]] if is_view(node) else node
    for node in graph.nodes:
        for user in node.users:
            when = place[user] if _is_known(user) else float("inf")
            last[owner[node]] = max(last.get(owner[node], 0), when)
    for node in graph.nodes:
        if node.target in IN_PLACE and _is_free(node, owner, last, place):
            node.target = IN_PLACE[node.target]
            mine, theirs = node, owner[node.args[0]]
            last[theirs] = max(last[theirs], last.get(mine, 0))
            owner |= {other: theirs for other, found in owner.items() if found is mine}


def _is_free(
    node: Node, owner: dict[Node, Node], last: dict[Node, float], place: dict[Node, int]
) -> bool:
    first, *rest = node.args
    if not isinstance(first, Node) or first.op != "call_function":
        return False
    memory = owner[first]
    return (
        memory.op == "call_function"
        and _is_known(memory)
        and last[memory] <= place[node]
        and all(owner[x] is not memory for x in rest if isinstance(x, Node))
        and _layout(first) is not None
        and _layout(first) == _layout(node)
    )


def _layout(node: Node) -> Any:
    """Shape and dtype of a value that fills memory of its own, without repeats."""
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    if value is None or not hasattr(value, "shape"):
        return None
    strides = value.stride() if isinstance(value, torch.Tensor) else value.stride
    repeats = any(s == 0 and n > 1 for s, n in zip(strides, value.shape, strict=True))
    return None if repeats else (tuple(value.shape), value.dtype)


def is_view(node: Node) -> bool:
    """Whether a value lies in the memory of the node's first argument."""
    if node.target is operator.getitem:  # a piece of what split or unbind gives
        return isinstance(node.args[0], Node) and is_view(node.args[0])
    return is_operation(node.target) and gives_view(node.target)


def _is_known(node: Node) -> bool:
    """Whether a node is an operation whose sharing of memory is known; others may keep inputs."""
    return is_operation(node.target) or node.target is operator.getitem
