"""Parts of a chain for privacy: a bound on what a client sends, and noise on the mean of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gcfed.core import keys, tree
from gcfed.core.algorithm import Algorithm, Need, register
from gcfed.core.tree import State, Tree
from gcfed.core.types import ClientContext, ServerContext
from gcfed.errors import InputError
from gcfed.values import Range

__all__ = ["ClipUpdate", "Noise"]

NOISE = 0x6E6F697365  # keeps these numbers apart from those of other parts of a chain


@register("clip_update")
@dataclass(frozen=True)
class ClipUpdate(Algorithm):
    r"""Clip update: shorten all that a client sends, as one vector, to a norm.

    .. math:: u_k \min\Bigl(1, \frac{C}{\|u_k\|}\Bigr)

    C: ``norm``; :math:`u_k` is the client's delta and, where parts of the chain send messages
    beside it (SCAFFOLD does), these too.  It acts when all parts have made what they send, so its
    place in the chain does not matter.  What a client remembers is not clipped: it does not travel.
    ``clip`` is for gradients instead.

    McMahan et al. (2018), flat clipping, https://arxiv.org/abs/1710.06963
    Departures: none; messages beside the delta are ours.
    """

    claims: ClassVar[frozenset[str]] = frozenset({"norm of what is sent"})
    ranges: ClassVar[Mapping[str, Range]] = {"norm": "positive"}
    norm: float = 1.0

    @property
    def upload_norm(self) -> float:
        return self.norm

    def send(self, delta: Tree, message: State, ctx: ClientContext) -> tuple[Tree, State]:
        sent = dict(tree.leaves((delta, message)))
        if whole := [path for path, x in sent.items() if not x.is_floating_point()]:
            raise InputError(
                f"clip_update cannot shorten {whole[0].removeprefix('/1/')}, which a part of the "
                "chain sends as whole numbers: leave out that part, or clip_update"
            )
        factor = (self.norm / tree.norm(sent)).clamp_max(1.0)  # infinity / 0, hence 1, for zeros
        return tree.map(lambda x: (factor * x).to(x), (delta, message))


@register("noise")
@dataclass(frozen=True)
class Noise(Algorithm):
    r"""Noise: Gaussian noise on the sum of what the clients send, as the server takes their mean.

    .. math:: \frac1S \Bigl(\sum_k u_k + \mathcal N(0, \sigma^2 C^2 I)\Bigr)

    :math:`\sigma`: ``multiplier``; C is the norm of ``clip_update``, which must stand in the chain
    too; S counts the clients whose work entered the round.  The noise is added before any part of
    the chain steps, so all that the server keeps and broadcasts is made of noised means, and the
    place of ``noise`` in the chain does not matter.  ``gcfed privacy`` says what it is worth.  An
    algorithm that looks at the uploads one by one (FedVARP does) is refused, and so are weights by
    examples and averaged buffers: the bound C would not hold for them.

    McMahan et al. (2018), Algorithm 1, https://arxiv.org/abs/1710.06963
    Departures: S is counted, where the paper divides by its expectation.  Numbers come from the
    run's seed: who knows it can subtract them.
    """

    claims: ClassVar[frozenset[str]] = frozenset({"noise on the mean"})
    needs: ClassVar[frozenset[Need]] = frozenset(
        {"uniform weights", "the plain mean of uploads", "buffers that stay local"}
    )
    ranges: ClassVar[Mapping[str, Range]] = {"multiplier": "positive"}
    multiplier: float = 1.0

    def release(self, delta: Tree, message: State, ctx: ServerContext) -> tuple[Tree, State]:
        scale = self.multiplier * ctx.need_upload_norm() / ctx.cohort_size
        key = keys.fold(ctx.key, NOISE)
        noisy = [
            x + (scale * keys.normal(keys.fold(key, i), x.shape)).to(x)
            for i, (_, x) in enumerate(tree.leaves((delta, message)))
        ]
        return tree.unflatten((delta, message), noisy)
