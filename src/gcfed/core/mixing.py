"""Whether training looks across a batch, as a batch norm that somebody wrote by hand does."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from gcfed.core import keys, tree
from gcfed.core.lazy import loaded
from gcfed.core.losses import Loss
from gcfed.core.model import Model, shown
from gcfed.core.precision import arithmetic
from gcfed.core.seeding import generators_seeded
from gcfed.core.torch_internals import grad
from gcfed.core.tree import Tree
from gcfed.core.types import Batch, Examples

SHIFT = 0.1
"""How far weights are moved in the second trial, by which a gate that starts at zero opens."""

LARGE = 1e4
"""Outputs from here on are taken for masked ones."""


@arithmetic("float32")  # so that batches of two sizes differ in the rounding of sums alone
def note_mixing(model: Model, examples: Examples, loss: Loss) -> Model:
    """The model, marked if padding a batch would change how it is trained.

    Of three examples, the last of which had best have another label, two are run in training mode,
    alone and then before two strangers that a mask leaves out, with the same random numbers.  Their
    outputs, the mean of their losses and its gradient have to be the same, and so has what the
    model keeps.  This is tried with the model's weights and with others near them.
    """
    if model.cross_batch:
        return model
    x, y = loaded(examples.x), examples.y
    two = Batch(tree.map(lambda v: v[:2], x), y[:2], _mask(y, 2, of=2))
    four = Batch(tree.map(_with_strangers, x), y[[0, 1, 2, 2]], _mask(y, 2, of=4))
    weights = [model.params, tree.map(_shifted, model.params)]
    name = shown("", model.original)
    tests: dict[str, Callable[[Tree, Tensor], bool]] = {
        name: partial(_outputs_differ, model, two, four),
        "the loss": partial(_losses_differ, model, two, four, loss),
        f"the backward pass of {name}": partial(_gradients_differ, model, two, four, loss),
    }
    for who, differ in tests.items():
        with suppress(Exception):  # why the model cannot run is told when it is tried
            if any(differ(w, keys.key(seed).to(y.device)) for seed, w in enumerate(weights)):
                return model.with_mixing(who)
    return model


def _mask(y: Tensor, count: int, *, of: int) -> Tensor:
    return torch.arange(of, device=y.device) < count


def _with_strangers(x: Tensor) -> Tensor:
    """The first two of three examples and two unlike them; of tokens the third and the first."""
    if not x.is_floating_point():
        return x[[0, 1, 2, 0]]
    others = x[[2, 2]]
    return torch.cat([x[:2], 2 * others + _noise(others)])


def _shifted(weight: Tensor) -> Tensor:
    return weight + SHIFT * _noise(weight)


def _noise(like: Tensor) -> Tensor:
    return keys.normal(keys.key(0).to(like.device), like.shape).to(like)


def _outputs_differ(model: Model, two: Batch, four: Batch, weights: Tree, key: Tensor) -> bool:
    """Whether two examples, or what the model keeps, come out differently before two others."""

    def run(batch: Batch) -> list[Tensor]:
        out, buffers = _run(model, weights, batch, key)
        return [out[:2], *buffers.values()]

    with torch.no_grad():
        return not all(map(_alike, run(two), run(four)))


def _losses_differ(
    model: Model, two: Batch, four: Batch, loss: Loss, weights: Tree, key: Tensor
) -> bool:
    """Whether the mean loss of two examples depends on two others, whatever the model does."""
    with torch.no_grad():
        logits, _ = _run(model, weights, four, key)
        alone, before = two.mean(loss(logits[:2], two.y)), four.mean(loss(logits, four.y))
    return not _alike(alone, before)


def _gradients_differ(
    model: Model, two: Batch, four: Batch, loss: Loss, weights: Tree, key: Tensor
) -> bool:
    """Whether the gradient of two examples depends on two others, up to the rounding of sums.

    What is no number says nothing: a loss may be too large for one of the others alone, whose
    gradient is then no number even where it is left out.
    """

    def gradients(batch: Batch) -> list[Tensor]:
        def objective(params: Tree) -> Tensor:
            return batch.mean(loss(_run(model, params, batch, key)[0], batch.y))

        return list(grad(objective)(weights).values())

    alone, before = gradients(two), gradients(four)
    largest = max(map(_size, alone))

    def same(one: Tensor, other: Tensor) -> bool:
        eps = torch.finfo(one.dtype).eps
        within = eps**0.5 * _size(one) + 100 * eps * largest  # where it is 0 but for rounding
        gap = (one - other).abs()
        return not ((gap > within) & gap.isfinite()).any()

    return not all(map(same, alone, before))


def _run(model: Model, weights: Tree, batch: Batch, key: Tensor) -> tuple[Tensor, Tree]:
    with generators_seeded(key):
        out, buffers = model(weights, batch.x, buffers=model.buffers, train=True, key=key)
    return out.logits, buffers


def _size(x: Tensor) -> float:
    return torch.nan_to_num(x.abs(), posinf=0.0).max().item() if x.numel() else 0.0


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
