"""The vocabulary of a round: what a model gives, what a client trains on, what a hook may read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.ignored import example_means
from gcfed.core.lazy import Inputs as Inputs, LazyInputs, Stored as Stored
from gcfed.core.roles import Role
from gcfed.core.tree import State, Tree
from gcfed.errors import InputError


class Examples(NamedTuple):
    """``x`` and ``y`` by example; images are uint8 ``[n, channels, rows, columns]``."""

    x: Stored
    y: Tensor

    def take(self, index: Tensor) -> "Examples":
        return tree.map(lambda v: v[index.to(v.device)], self)

    def to(self, device: torch.device) -> "Examples":
        return tree.map(lambda v: v.to(device), self)

    @property
    def lazy(self) -> LazyInputs | None:
        """The inputs, if they are still to be read."""
        return self.x if isinstance(self.x, LazyInputs) else None

    def in_memory(self) -> "Examples":
        """The tensors alone, for another process; `with_lazy` puts back inputs still to be read."""
        return self if self.lazy is None else Examples(self.y[:0], self.y)

    def with_lazy(self, x: LazyInputs | None) -> "Examples":
        return self if x is None else self._replace(x=x)


Objective = Callable[[Tree], Tensor]


class Output(NamedTuple):
    """What a model says of a batch; ``features`` are what its head read, if that is known."""

    logits: Tensor
    features: Tensor | None = None

    def need_features(self) -> Tensor:
        if self.features is None:
            raise InputError(
                "this algorithm reads features and the model gives none: "
                "return Output(logits, features), or end the model in an nn.Linear"
            )
        return self.features


class Forward(Protocol):
    """The model as a client received it: evaluation mode unless ``train`` is asked for."""

    def __call__(self, params: Tree, x: Inputs, *, train: bool = False) -> Output: ...


Transform = Callable[[Inputs, Tensor | None], Inputs]
"""What a model reads of a batch's x, by a key in training (augmentation), by None in evaluation."""


class Batch(NamedTuple):
    """``mask`` is true for an example and false for padding."""

    x: Inputs
    y: Tensor
    mask: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Average over the examples that are not padding.

        An example of several values (one per token, say) first becomes the mean of those whose
        labels count, and is left out if none does: see `gcfed.core.ignored`.
        """
        means, counted = example_means(values, self.y)
        mask = self.mask if counted is None else self.mask & counted
        return torch.where(mask, means, 0.0).sum() / mask.sum().clamp_min(1)


class Upload(NamedTuple):
    """What a client ends with: ``delta`` and ``message`` travel, ``memory`` stays."""

    delta: Tree
    message: State
    memory: State


@dataclass(frozen=True)
class ClientContext:
    """What a client may read when it begins, while it trains and when it uploads.

    ``step`` counts the steps it has taken this round.  ``key`` is this client's at this step.  Fold
    a constant of your own into it before drawing, so that the parts of a chain do not share
    numbers.  ``label_counts`` are of the client's own examples; ``filled_counts`` count those that
    are repeated to fill its batches as often as an epoch shows them.  ``lr`` is the round's
    learning rate, ``initial_lr`` the one that the schedule started from.  ``momentum`` is SGD's,
    and None under another optimiser.  ``roles`` says what each parameter is; one that it lacks goes
    by its number of axes.
    """

    forward: Forward
    anchor: Tree
    message: State
    memory: State
    label_counts: Tensor
    filled_counts: Tensor
    num_examples: Tensor
    num_steps: Tensor
    lr: Tensor
    initial_lr: float
    momentum: float | None
    round: Tensor
    step: Tensor
    key: Tensor
    head: frozenset[str]
    roles: Mapping[str, Role] = field(default_factory=dict)

    def need_momentum(self) -> float:
        if self.momentum is None:
            raise InputError(
                "this algorithm reckons with SGD's momentum, and another optimiser has none: "
                "train the clients by SGD"
            )
        return self.momentum


@dataclass(frozen=True)
class ServerContext:
    """What the server may read when it receives, aggregates and updates.

    ``cohort_size`` counts the clients drawn, in ``release`` and ``update`` those whose work entered
    the round.  ``message`` is the clients' aggregated one, and empty before there is one.  ``key``
    is the round's, but in ``receive`` that of the client: fold a constant of your own into it.
    ``roles`` says what each parameter is.  ``upload_norm`` is the norm that all a client sends
    together never exceeds, where the algorithm has such a bound.
    """

    params: Tree
    state: State
    message: State
    round: int
    key: Tensor
    cohort_size: int
    num_clients: int
    roles: Mapping[str, Role] = field(default_factory=dict)
    upload_norm: float | None = None

    @property
    def participation(self) -> float:
        return self.cohort_size / self.num_clients

    def need_upload_norm(self) -> float:
        if self.upload_norm is None:
            raise InputError(
                "noise is measured by the norm of what a client sends, and nothing bounds that: "
                "add clip_update(norm=...) to the chain"
            )
        return self.upload_norm
