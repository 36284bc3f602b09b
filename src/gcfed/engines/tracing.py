"""A step as a flat list of tensor operations: hooks, gradients and maps are run once, by tracing.

What is traced is what the step does for any client of its shapes: keys, counters and rates are
tensors, so nothing of one client is frozen in.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from gcfed.core import tree
from gcfed.core.torch_compiler import compile_for_any_number, compile_for_one_number
from gcfed.core.torch_internals import make_fx

T = TypeVar("T")

XOR = torch.ops.aten.bitwise_xor.Tensor
MOST_WRITTEN = 16
"""So many operations on integers are written down before one is kept."""

Compiler = Callable[[GraphModule, Sequence[Tensor] | None], Callable[..., Any]]
"""Makes faster code of a trace.  Given tensors of an unknown size, the code serves any size."""


def inductor(trace: GraphModule, examples: Sequence[Tensor] | None = None) -> Callable[..., Any]:
    """Torch's compiler."""
    if examples is not None:
        return compile_for_any_number(trace, examples)
    return compile_for_one_number(trace)


def keep_hashes(graph: Graph) -> None:
    """Have torch's compiler keep intermediate results of the hashes that make random keys.

    It writes an operand down anew for each use and looks for repetitions later: twenty times
    ``x ^ (x >> 16)``, one after the other, become up to a million operations.  It keeps a tensor of
    which a view is taken by strides, so such views, which change nothing else, are put in between.
    """
    written: dict[Node, int] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, Tensor) or value.is_floating_point():
            continue
        written[node] = 1 + sum(written.get(x, 0) for x in node.all_input_nodes)
        if node.target is XOR and written[node] > MOST_WRITTEN and value.is_contiguous():
            with graph.inserting_after(node):
                strides = (list(value.shape), list(value.stride()))
                kept = graph.call_function(torch.ops.aten.as_strided.default, (node, *strides))
            kept.meta["val"] = value
            node.replace_all_uses_with(kept, lambda user, view=kept: user is not view)
            written[node] = 0


class Traced(Generic[T]):
    """``fn`` as it acts on arguments shaped as ``arguments``; faster by a compiler.

    What ``fn`` writes into its arguments, the trace writes too.  ``change`` may rewrite the trace.
    """

    def __init__(
        self,
        fn: Callable[..., T],
        *arguments: Any,
        compiler: Compiler | None = None,
        change: Callable[[Graph], None] | None = None,
    ) -> None:
        shape: list[T] = []
        arguments = tree.map(torch.clone, arguments)  # two that are one tensor would become one

        def on_leaves(*flat: Tensor) -> list[Tensor]:
            shape.append(fn(*tree.unflatten(arguments, flat)))
            return tree.tensors(shape[-1])

        module = make_fx(on_leaves)(*tree.tensors(arguments))
        module.graph.eliminate_dead_code()
        _refuse_varying_shapes(module.graph)
        if change is not None:
            change(module.graph)
        if compiler is not None:
            keep_hashes(module.graph)
        module.recompile()
        self._shape = tree.map(lambda _: _PLACE, shape[-1])
        # torch.compile on ``fn`` itself would compile nothing, and not say so
        self._run = module if compiler is None else compiler(module, None)

    def __call__(self, *arguments: Any) -> T:
        return self.on_leaves(tree.tensors(arguments))

    def on_leaves(self, flat: Sequence[Tensor]) -> T:
        """The same on the tensors inside the arguments, in the order of `tree.leaves`."""
        with torch.no_grad():
            return tree.unflatten(self._shape, self._run(*flat))


_PLACE = torch.empty(0)


def _refuse_varying_shapes(graph: Graph) -> None:
    """Refuse a trace in which the shape of a tensor depends on the data.

    A trace may keep sizes of the one batch that it saw: in the gradient of ``x[mask]``, say.
    """
    for node in graph.nodes:
        if torch.Tag.dynamic_output_shape not in getattr(node.target, "tags", ()):
            continue
        by_numbers = node.target is torch.ops.aten.index.Tensor and not any(
            index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8)
            for index in node.args[1]
        )
        if not by_numbers:
            raise RuntimeError(f"the shape of a tensor depends on the data ({node.target})")
