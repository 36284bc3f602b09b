"""Methods that bound the length of a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gcfed.core import tree
from gcfed.core.algorithm import Algorithm, register
from gcfed.core.tree import Tree
from gcfed.core.types import ClientContext
from gcfed.values import Range

__all__ = ["Clip"]


@register("clip")
@dataclass(frozen=True)
class Clip(Algorithm):
    r"""Clip: shorten every client gradient that is longer than a norm.

    .. math:: g \min\Bigl(1, \frac{c}{\|g\| + 10^{-6}}\Bigr)

    c: ``norm``; :math:`\|g\|` is over all parameters at once.  g is the gradient of loss and
    penalties, after the parts of a chain to the left, before weight decay and momentum.

    Pascanu et al. (2013), gradient norm clipping, https://arxiv.org/abs/1211.5063
    Departures: the :math:`10^{-6}` is that of ``torch.nn.utils.clip_grad_norm_``, which the GC-Fed
    code clips FedDyn's gradients with, at a norm of 10.
    """

    ranges: ClassVar[Mapping[str, Range]] = {"norm": "positive"}
    norm: float = 1.0

    def gradient(self, grads: Tree, params: Tree, ctx: ClientContext) -> Tree:
        factor = (self.norm / (tree.norm(grads) + 1e-6)).clamp_max(1.0)
        return tree.map(lambda g: (factor * g).to(g), grads)
