"""Whether a model looks across a batch, as a batch norm that somebody wrote by hand does."""

import torch
from torch import Tensor

from gcfed.core import keys, tree
from gcfed.core.model import Model
from gcfed.core.seeding import generators_seeded
from gcfed.core.types import Inputs

RTOL, ATOL = 1e-4, 1e-6  # sums may be taken in another order, and no more


def note_mixing(model: Model, x: Inputs) -> Model:
    """The model, marked if one of its outputs depends on the other examples of a batch.

    ``x`` are three examples that differ: the first is shown beside the second and then beside the
    third, in training mode and with the same random numbers.
    """
    if model.cross_batch:
        return model
    device = next(iter(model.params.values())).device
    key = keys.key(0).to(device)

    def first_beside(other: int) -> Tensor:
        pair = tree.map(lambda v: v[[0, other]], x)
        with torch.no_grad(), generators_seeded(key):
            out, _ = model(model.params, pair, buffers=model.buffers, train=True, key=key)
        return out.logits[0]

    try:
        alike = torch.allclose(first_beside(1), first_beside(2), rtol=RTOL, atol=ATOL)
    except Exception:  # why the model cannot run is told when it is tried
        return model
    return model if alike else model.with_mixing()
