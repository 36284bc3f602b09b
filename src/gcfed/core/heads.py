"""The head of a model, found by tracing where its logits come from."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.model import Model
from gcfed.core.roles import WEIGHTS
from gcfed.core.seeding import generators_seeded
from gcfed.core.types import Inputs


def trace_head(model: Model, x: Inputs) -> Model:
    """The model with the head that ``x`` shows: the last layers with weights before the logits.

    A matrix that is no layer's counts too, if logits are products with it.

    Where several end in the logits, as the two of a distilled vision transformer do, all of them
    are the head.  A head that is declared stays, and so does any whose logits cannot be traced.
    """
    if model.declares_head:
        return model
    try:
        layers = list(dict.fromkeys(_last_layers(model, x)))
    except Exception:  # why the model cannot run is told when it is tried
        return model
    return model.with_head(layers) if layers else model


def _last_layers(model: Model, x: Inputs) -> Iterator[str]:
    """The layers that autograd meets first on its way back from the logits."""
    params = {n: w.detach().requires_grad_() for n, w in model.params.items()}
    device = next(iter(params.values())).device
    x = tree.map(lambda v: v.to(device), x)
    outputs = model.outputs({name: name for name in _innermost(model)})
    with torch.enable_grad(), outputs as found, generators_seeded(model.evaluation_key):
        out, _ = model(params, x, buffers=model.buffers, train=False)
    ends = {_node(output): name for name, output in found.items() if output.grad_fn is not None}
    weights = {w: n for n, w in params.items() if model.roles[n].kind in (*WEIGHTS, "embedding")}
    matrices = {
        w: n
        for n, w in params.items()
        if model.roles[n].kind == "other" and _has_classes(w, out.logits.shape[-1])
    }
    seen, todo = set(), [out.logits.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in ends:
            yield ends[node]
            continue
        before: list[Any] = [other for other, _ in node.next_functions]
        if used := [name for other in before if (name := _weight(other, weights))]:
            yield from (_owner(name, model.layers) for name in used)
        elif own := _own_matrix(node, ends.keys(), matrices):
            yield from own
        else:
            todo += before


def _innermost(model: Model) -> list[str]:
    """The layers that have no others inside, by whose outputs they are known."""
    outer = {path for name in model.layers for path in _above(name)}
    return [name for name in model.layers if name not in outer]


def _above(name: str) -> list[str]:
    """The paths of the modules around a module."""
    parts = name.split(".") if name else []
    return [".".join(parts[:depth]) for depth in range(len(parts))]


def _node(output: Tensor) -> Any:
    """What made an output, of which a clone is kept."""
    assert output.grad_fn is not None
    return output.grad_fn.next_functions[0][0]


def _weight(node: Any, weights: Mapping[Tensor, str]) -> str | None:
    """The weight that comes in here, by itself or transposed, reshaped or cast."""
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return weights.get(getattr(node, "variable", None))  # type: ignore[arg-type]


def _has_classes(weight: Tensor, num_classes: int) -> bool:
    """Whether a matrix makes classes of features: one axis alone is that of classes."""
    return weight.ndim > 1 and sum(size == num_classes for size in weight.shape) == 1


def _own_matrix(product: Any, ends: Collection[Any], matrices: Mapping[Tensor, str]) -> list[str]:
    """The matrices outside of layers with which a product multiplies the outputs of layers.

    They may be changed before the product: a cosine classifier normalises its matrix.
    """
    if "mm" not in product.name().lower():
        return []
    branches = [_made_of(node, ends, matrices) for node, _ in product.next_functions]
    return [] if None not in branches else [name for found in branches for name in found or ()]


def _made_of(node: Any, ends: Collection[Any], matrices: Mapping[Tensor, str]) -> list[str] | None:
    """The matrices that a branch comes from; None if the output of a layer enters it."""
    seen, todo = set(), [node]
    while todo:
        node = todo.pop()
        if node in ends:
            return None
        if node is not None and node not in seen:
            seen.add(node)
            todo += [other for other, _ in node.next_functions]
    leaves = [matrices.get(getattr(node, "variable", None)) for node in seen]  # type: ignore[arg-type]
    return [name for name in leaves if name is not None]


def _owner(name: str, layers: list[str]) -> str:
    """The layer of a weight; the weight alone where that would be the whole model."""
    path = name.rpartition(".")[0]
    return path if path and path in layers else name
