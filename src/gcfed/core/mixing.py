"""Whether a model looks across a batch, as a batch norm that somebody wrote by hand does."""

import torch
from torch import Tensor

from gcfed.core import keys, tree
from gcfed.core.model import Model
from gcfed.core.seeding import generators_seeded
from gcfed.core.tree import Tree
from gcfed.core.types import Inputs

SHIFT = 0.1
"""How far weights are moved in the second trial, by which a gate that starts at zero opens."""

LARGE = 1e4
"""Outputs from here on are taken for masked ones."""


def note_mixing(model: Model, x: Inputs) -> Model:
    """The model, marked if padding a batch would change what it gives or what it keeps.

    ``x`` are three examples.  Two of them are run in training mode, alone and then before two
    strangers, with the same random numbers.  The outputs for the two have to be the same, and so
    have the buffers.  This is tried with the model's weights and with others near them.
    """
    if model.cross_batch:
        return model
    device = next(iter(model.params.values())).device
    two = tree.map(lambda v: v[:2].to(device), x)
    four = tree.map(lambda v: torch.cat([v[:2].to(device), _strangers(v.to(device))]), x)
    weights = [model.params, tree.map(_shifted, model.params)]
    try:
        mixes = any(_differ(model, w, two, four, seed) for seed, w in enumerate(weights))
    except Exception:  # why the model cannot run is told when it is tried
        return model
    return model.with_mixing() if mixes else model


def _strangers(x: Tensor) -> Tensor:
    """Two examples unlike those of ``x``, or of tokens the third twice."""
    others = x[[2, 2]]
    return 2 * others + _noise(others) if x.is_floating_point() else others


def _shifted(weight: Tensor) -> Tensor:
    return weight + SHIFT * _noise(weight)


def _noise(like: Tensor) -> Tensor:
    return keys.normal(keys.key(0).to(like.device), like.shape).to(like)


def _differ(model: Model, weights: Tree, two: Inputs, four: Inputs, seed: int) -> bool:
    """Whether two examples, or what the model keeps, come out differently before two others."""
    key = keys.key(seed).to(model.evaluation_key.device)

    def run(x: Inputs) -> list[Tensor]:
        with torch.no_grad(), generators_seeded(key):
            out, buffers = model(weights, x, buffers=model.buffers, train=True, key=key)
        return [out.logits[:2], *buffers.values()]

    return not all(map(_alike, run(two), run(four)))


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two are the same but for the order in which sums are taken.

    A number that stands for minus infinity, as of a masked class, says nothing of the others.
    """
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    sizes = one.abs()
    usual, within = sizes[sizes < LARGE], torch.finfo(one.dtype).eps ** 0.5
    floor = within * usual.median().item() if len(usual) else 0.0
    return torch.allclose(one, other, rtol=within, atol=floor, equal_nan=True)
