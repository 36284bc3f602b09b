"""How far the clients of a round pull apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcfed.analysis.probe import PROBES, Observation, Probe, Sight
from gcfed.core import tree
from gcfed.core.centralization import centralize_update
from gcfed.core.tree import Tree


@PROBES.register("drift")
@dataclass(frozen=True)
class Drift(Probe):
    r"""How far the updates of a cohort, :math:`\delta_k`, pull apart; over all layers together.

    - ``norm``: the mean of :math:`\|\delta_k\|`; ``mean_norm``: :math:`\|\bar\delta\|`, of their
      plain mean.
    - ``pair_cosine``: the mean cosine of two clients' updates; ``mean_cosine``: of an update with
      :math:`\bar\delta`.
    - ``variance``: the mean of :math:`\|\delta_k - \bar\delta\|^2`.
    - ``centred``: the share of :math:`\|\bar\delta\|^2` that lies along the means of rows, which
      gradient centralization takes away.

    Updates that are not finite do not count.  A cohort of one has no pair: ``pair_cosine`` is None.
    """

    needs: ClassVar[frozenset[Sight]] = frozenset({"uploads"})

    def measure(self, seen: Observation) -> Mapping[str, float]:
        result = seen.result
        rows = [k for k, i in enumerate(result.ids) if i not in result.dropped]
        if result.uploads is None or not rows:
            return dict.fromkeys(NUMBERS, torch.nan)
        deltas = tree.map(lambda d: d[rows].double(), result.uploads.delta)
        flat = _flat(deltas)
        mean, norms = flat.mean(0), flat.norm(dim=1)
        units = flat / norms[:, None]
        n, total = len(rows), units.sum(0).square().sum()
        one = tree.map(lambda d: d.mean(0), deltas)
        removed = tree.sub(one, centralize_update(one, roles=seen.setup.model.roles))
        return {
            "norm": norms.mean().item(),
            "mean_norm": mean.norm().item(),
            "pair_cosine": ((total - n) / (n * (n - 1))).item() if n > 1 else torch.nan,
            "mean_cosine": (units @ (mean / mean.norm())).mean().item(),
            "variance": (flat - mean).square().sum(1).mean().item(),
            "centred": (tree.dot(removed, removed) / tree.dot(one, one)).item(),
        }


NUMBERS = ("norm", "mean_norm", "pair_cosine", "mean_cosine", "variance", "centred")


def _flat(deltas: Tree) -> Tensor:
    """A row for each client."""
    return torch.cat([d.reshape(len(d), -1) for d in deltas.values()], 1)
