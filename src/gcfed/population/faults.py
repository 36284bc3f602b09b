"""What goes wrong with clients: they never answer, are late, or send what they did not learn."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gcfed.core import keys, tree
from gcfed.core.types import Upload
from gcfed.errors import InputError
from gcfed.registry import Registry

Corruption = Literal["nan", "flip", "noise"]


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong, each with a probability of its own for every client and round.

    - ``dropout``: it receives the model and never answers.
    - ``straggling``: it gets through a ``share`` of its steps only.
    - ``corruption``: the update that it sends is not what it learnt: not a number, its opposite
      (``how="flip"``), or noise of the same length.  What an algorithm sends beside it, as SCAFFOLD
      does, arrives as it is.
    """

    dropout: float = 0.0
    straggling: float = 0.0
    share: float = 0.5
    corruption: float = 0.0
    how: Corruption = "nan"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "how" and not 0 <= value <= 1:
                raise InputError(f"{field.name} is between 0 and 1; not {value}")

    @property
    def happen(self) -> bool:
        """Whether anything can go wrong at all."""
        return bool(self.dropout or self.straggling or self.corruption)

    def of(self, seed: int, t: int, client: int) -> "Fate":
        """What befalls a client in round ``t``, whoever else takes part."""
        if not self.happen:
            return Fate(False, False, False)
        draws = keys.generator("faults", seed, t, client).random(3)
        return Fate(*(draws < (self.dropout, self.straggling, self.corruption)).tolist())

    def steps(self, planned: int) -> int:
        """How far a straggler gets."""
        return max(1, round(self.share * planned))

    def corrupt(self, upload: Upload, key: Tensor) -> Upload:
        """What arrives of one client's delta in place of what was sent."""
        if self.how == "nan":
            return upload._replace(
                delta=tree.map(lambda d: torch.full_like(d, torch.nan), upload.delta)
            )
        if self.how == "flip":
            return upload._replace(delta=tree.map(torch.neg, upload.delta))
        names = dict(enumerate(upload.delta))
        noise = {
            name: keys.normal(keys.fold(key, i), upload.delta[name].shape).to(upload.delta[name])
            for i, name in names.items()
        }
        scale = tree.norm(upload.delta) / tree.norm(noise)
        return upload._replace(delta=tree.map(lambda n: scale * n, noise))


class Fate(NamedTuple):
    """What befell a client in a round."""

    absent: bool
    late: bool
    corrupted: bool


NO_FAULTS = Faults()

FAULTS: Registry[Callable[..., Faults]] = Registry("faults")
"""What goes wrong with clients, by name."""


@FAULTS.register("none")
def none() -> Faults:
    """Every client answers in time with what it learnt."""
    return NO_FAULTS


FAULTS.register("random")(Faults)
