"""How far the clients of a round pull apart, and what gradient centralization has to do with it."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcfed.analysis.probe import PROBES, Observation, Probe, Sight
from gcfed.core.centralization import averaged_axes
from gcfed.core.roles import Role, role_by_shape

ROOT = "model"
"""The layer of parameters that belong to no module but the whole."""


@PROBES.register("drift", numerics=2)
@dataclass(frozen=True)
class Drift(Probe):
    r"""How far the updates of a cohort pull apart: all layers together, and layer by layer.

    :math:`\delta_k` is the update of client k.

    - ``norm``: the mean of :math:`\|\delta_k\|`; ``mean_norm``: :math:`\|\bar\delta\|`, of their
      plain mean.
    - ``pair_cosine``: the mean cosine of two clients' updates; ``mean_cosine``: of an update with
      :math:`\bar\delta`.
    - ``variance``: the mean of :math:`\|\delta_k - \bar\delta\|^2`.
    - ``centred``: the share of :math:`\|\bar\delta\|^2` that lies along the means of rows, which
      gradient centralization takes away: :math:`\|\bar\delta - P\bar\delta\|^2 /
      \|\bar\delta\|^2`; ``client_centred``: the mean of this share of each :math:`\delta_k`.
    - ``distance``: :math:`\|w - Pw\|`, how far the global weights w of the end of the round are
      from those whose rows have means of zero.

    A name alone is of all layers together, as in ``norm``; ``head_norm`` is of the layers of the
    head, ``features_norm`` of all others, and ``norm.LAYER`` of one layer, its bias included.

    Updates that are not finite do not count.  A cohort of one has no pair: ``pair_cosine`` is None.
    """

    needs: ClassVar[frozenset[Sight]] = frozenset({"uploads"})

    def measure(self, seen: Observation) -> Mapping[str, float]:
        model, params = seen.setup.model, seen.result.server.params
        uploads = seen.result.uploads
        sent = {} if uploads is None or not seen.rows else uploads.delta
        moved = {n: products(d[seen.rows], model.roles.get(n)) for n, d in sent.items()}
        place = {n: products(w[None], model.roles.get(n)) for n, w in params.items()}
        found: dict[str, float] = {}
        for pattern, names in _parts(moved or place, model.head).items():
            numbers = dict.fromkeys(NUMBERS, math.nan)
            if moved:
                numbers = _numbers([moved[n] for n in names])
            numbers["distance"] = _distance([place[n] for n in names if n in place])
            found |= {pattern.format(name): value for name, value in numbers.items()}
        return found


class Products(NamedTuple):
    """What the numbers of a part of the model are made of; those of two parts are added.

    ``gram`` holds the products of every two clients' tensors.  ``removed`` is the energy of each
    client's that gradient centralization takes away, and ``mean_removed`` that of their mean.
    """

    gram: Tensor
    removed: Tensor
    mean_removed: Tensor


def products(stacked: Tensor, role: Role | None) -> Products:
    """The products of one parameter's tensors, which are stacked, a client each."""
    x, shape = stacked.double(), stacked.shape[1:]
    role = role or role_by_shape(len(shape))
    flat = x.reshape(len(x), -1)
    axes = averaged_axes(shape, "output", 2, role)
    if not axes:
        return Products(flat @ flat.T, flat.new_zeros(len(x)), flat.new_zeros(()))
    grouped = role.grouped(shape)
    means = x.reshape(len(x), *grouped).mean([1 + axis for axis in axes]).reshape(len(x), -1)
    count = math.prod(grouped[axis] for axis in axes)  # so often each mean is taken away
    removed, mean_removed = means.square().sum(1), means.mean(0).square().sum()
    return Products(flat @ flat.T, count * removed, count * mean_removed)


def _parts(params: Collection[str], head: Collection[str]) -> dict[str, list[str]]:
    """Parameters by part of the model: all of them, the head, the others, and every layer.

    A part is keyed by how its numbers are named.
    """
    inside = [name for name in params if name in head]
    others = [name for name in params if name not in head]
    parts = {"{}": list(params), "head_{}": inside, "features_{}": others}
    for name in params:
        layer = name.rpartition(".")[0] or ROOT
        parts.setdefault(f"{{}}.{layer}", []).append(name)
    return {pattern: names for pattern, names in parts.items() if names}


def _numbers(moved: Sequence[Products]) -> dict[str, float]:
    """How the updates of some parameters pull apart."""
    gram, removed, mean_removed = (torch.stack(each).sum(0) for each in zip(*moved, strict=True))
    n, squares, mean_square = len(gram), gram.diagonal(), gram.mean()
    norms = squares.sqrt()
    cosines = gram / (norms[:, None] * norms)
    values = (
        norms.mean(),
        mean_square.sqrt(),
        (cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1)),  # 0 / 0 for one client
        (gram.mean(0) / (norms * mean_square.sqrt())).mean(),
        (squares.mean() - mean_square).clamp_min(0),
        mean_removed / mean_square,
        (removed / squares).mean(),
    )
    return dict(zip(NUMBERS, torch.stack(values).tolist(), strict=True))


NUMBERS = (
    *("norm", "mean_norm", "pair_cosine", "mean_cosine", "variance", "centred"),
    "client_centred",
)


def _distance(place: Sequence[Products]) -> float:
    """How far weights are from those whose rows have means of zero."""
    return math.sqrt(sum(each.removed.sum().item() for each in place))
