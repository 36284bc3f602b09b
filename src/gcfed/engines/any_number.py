"""A step traced once for any number of clients.

``vmap`` cannot be traced while the number of clients is a symbol, because many of its rules ask
for it.  So a step is traced, on tensors without memory, for a number that occurs nowhere else: a
large prime.  Every multiple of it in the trace is then a multiple of the number of clients.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from gcfed.core import tree
from gcfed.core.compiled_code import ALIGNED
from gcfed.core.torch_compiler import make_core_fx, unknown_number
from gcfed.core.torch_internals import tree_leaves, without_loops, without_memory
from gcfed.engines.tracing import Compiler, keep_hashes
from gcfed.kernels.simplifying import read_sources, skip_views

PRIME = 1_000_003
USUAL = 8
"""Every step is compiled as if for this many clients, so that all cohorts share its bits."""

MOST_NUMBERS = 2**31 // 16 * 15
"""So many numbers may a tensor in a step have.  Code is compiled for the usual number of clients,
and counts in 32 bits where their tensors have fewer than 2^31.  A compiler may make rows a little
longer, for which a sixteenth is left."""

CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


@dataclass(frozen=True)
class InParts:
    """A step for any number of clients, done for the ``most`` that it can count at a time."""

    step: Callable[..., Any]
    mapped: Sequence[bool]
    most: int

    def __call__(self, *tensors: Tensor) -> None:
        for first in range(0, len(tensors[self.mapped.index(True)]), self.most):
            part = slice(first, first + self.most)
            flat = zip(tensors, self.mapped, strict=True)
            self.step(*(x[part] if own else x for x, own in flat))


class AnyNumber:
    """``fn``, which writes into its arguments, for any number of clients.

    ``mapped`` says of each tensor inside the arguments, in the order of `tree.leaves`, whether its
    first axis is the clients'.
    """

    def __init__(
        self, fn: Callable[..., object], arguments: tuple[Any, ...], mapped: Sequence[bool]
    ) -> None:
        self._mapped = list(mapped)
        self._leaves = tree.tensors(arguments)
        if any(n % PRIME == 0 for x in self._leaves for n in x.shape if n):
            raise ValueError(f"a tensor has a multiple of {PRIME} rows")

        def on_leaves(*flat: Tensor) -> list[Tensor]:
            fn(*tree.unflatten(arguments, flat))
            return []

        with without_memory(), without_loops():  # a loop would take a million turns
            self._trace = make_core_fx(on_leaves)(*self._examples(PRIME))
        self._most = self._most_at_once()
        read_sources(self._trace.graph)
        skip_views(self._trace.graph)
        self._trace.graph.eliminate_dead_code()
        keep_hashes(self._trace.graph)
        _make_symbolic(self._trace, self._mapped.index(True))

    def compiled(self, compiler: Compiler | None) -> InParts:
        """What runs the step on the tensors inside its arguments, as many clients as come."""
        return InParts(self._compiled(compiler), self._mapped, self._most)

    def _most_at_once(self) -> int:
        """How many clients can be counted at once, so that each part of them begins aligned."""
        values = tree_leaves([node.meta.get("val") for node in self._trace.graph.nodes])
        largest = max(x.numel() // PRIME for x in values if isinstance(x, Tensor))
        rows = [x[0] for x, own in zip(self._leaves, self._mapped, strict=True) if own]
        sizes = [math.gcd(ALIGNED, x.numel() * x.element_size()) for x in rows]
        step = max(ALIGNED // size for size in sizes)
        most = MOST_NUMBERS // max(largest, 1) // step * step
        if not most:
            raise ValueError("a client has a tensor of too many numbers")
        return most

    def _compiled(self, compiler: Compiler | None) -> Callable[..., Any]:
        if compiler is None:
            return self._trace
        if any(map(_is_grouped, self._trace.graph.nodes)):
            raise RuntimeError("torch compiles a convolution for one number of channels alone")
        with unknown_number(USUAL) as clients:
            examples = self._examples(clients)
        return compiler(self._trace, examples)

    def _examples(self, clients: int) -> list[Tensor]:
        return [
            torch.empty((clients, *x.shape[1:]) if own else x.shape, dtype=x.dtype, device=x.device)
            for x, own in zip(self._leaves, self._mapped, strict=True)
        ]


def _is_grouped(node: Node) -> bool:
    """Whether a node is a convolution, or the gradient of one, with a group for each client."""
    return node.target in CONVOLUTIONS and any(isinstance(arg, Node) for arg in node.args[8:])


def _make_symbolic(trace: GraphModule, mapped: int) -> None:
    """Replace each multiple of the prime by that multiple of the length of a mapped input."""
    graph = trace.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(placeholders[-1]):
        clients = graph.call_function(torch.ops.aten.sym_size.int, (placeholders[mapped], 0))
    multiples: dict[int, Node] = {1: clients}

    def replaced(value: Any) -> Any:
        if not isinstance(value, int) or not value or value % PRIME:
            return value
        times = value // PRIME
        if times not in multiples:
            with graph.inserting_after(clients):
                multiples[times] = graph.call_function(operator.mul, (clients, times))
        return multiples[times]

    for node in list(graph.nodes):
        if node.op == "call_function" and node is not clients:
            node.args = map_aggregate(node.args, replaced)
            node.kwargs = map_aggregate(node.kwargs, replaced)
    graph.lint()
    trace.recompile()
