"""How a client steps along its gradient: pure functions of an explicit state, new every round."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.torch_internals import sgd
from gcfed.core.tree import State, Tree
from gcfed.errors import InputError
from gcfed.values import Range, check_range, checked

InPlace = Callable[[list[Tensor]], None]


class Optimizer(Protocol):
    """``lr`` is where a run's learning rate starts; `step` is given the round's own."""

    @property
    def lr(self) -> float: ...

    @property
    def momentum(self) -> float | None:
        """The momentum of SGD; None of an optimiser that weighs past gradients otherwise."""

    def init(self, params: Tree) -> State: ...

    def step(self, grads: Tree, state: State, params: Tree, lr: Tensor) -> tuple[Tree, State]: ...

    def in_place(self, params: list[Tensor], lr: float) -> InPlace:
        """A function that does `step` by torch's own optimiser, and changes ``params`` in place."""


RATES: Mapping[str, Range] = {"lr": "positive", "weight_decay": "at least 0"}


def _check_rates(optimizer: Optimizer, ranges: Mapping[str, Range]) -> None:
    """Refuse what is no number, or one that no step can be taken with."""
    for name, wanted in ranges.items():
        where = f"{type(optimizer).__name__}({name}=...)"
        check_range(where, checked(where, getattr(optimizer, name), float), wanted)


@dataclass(frozen=True)
class SGD:
    """`torch.optim.SGD`, without dampening."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rates(self, {**RATES, "momentum": "at least 0 and less than 1"})

    def init(self, params: Tree) -> State:
        return {"velocity": tree.zeros(params)} if self.momentum else {}

    def step(self, grads: Tree, state: State, params: Tree, lr: Tensor) -> tuple[Tree, State]:
        if self.weight_decay:
            grads = tree.add(grads, params, alpha=self.weight_decay)
        if self.momentum:
            grads = tree.add(grads, state["velocity"], alpha=self.momentum)
            state = {"velocity": grads}
        return tree.add(params, grads, alpha=-lr), state

    def in_place(self, params: list[Tensor], lr: float) -> InPlace:
        velocities: list[Tensor | None] = [None] * len(params)

        def step(grads: list[Tensor]) -> None:
            sgd(
                params,
                grads,
                velocities,
                lr=lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                fused=_may_be_fused(params),
            )

        return step


@dataclass(frozen=True)
class AdamW:
    """`torch.optim.AdamW`."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    momentum: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_rates(self, RATES)
        if not all(0 < beta < 1 for beta in self.betas):
            raise InputError(f"the betas of AdamW lie between 0 and 1; got {self.betas}")

    def init(self, params: Tree) -> State:
        count = tree.map(lambda w: w.new_zeros((), dtype=_real(w)), params)
        return {"m": tree.zeros(params), "v": tree.zeros(params), "count": count}

    def step(self, grads: Tree, state: State, params: Tree, lr: Tensor) -> tuple[Tree, State]:
        beta1, beta2 = self.betas
        count = tree.map(lambda n: n + 1, state["count"])
        m = tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["m"], grads)
        v = tree.map(lambda v, g: beta2 * v + (1 - beta2) * g.square(), state["v"], grads)

        def move(w: Tensor, m: Tensor, v: Tensor, n: Tensor) -> Tensor:
            spread = (v / _correction(beta2, n)).sqrt() + self.eps
            direction = m / _correction(beta1, n) / spread + self.weight_decay * w
            return (w - lr * direction).to(w)

        return tree.map(move, params, m, v, count), {"m": m, "v": v, "count": count}

    def in_place(self, params: list[Tensor], lr: float) -> InPlace:
        fused, decay = _may_be_fused(params), self.weight_decay
        optimizer = torch.optim.AdamW(params, lr, self.betas, self.eps, decay, fused=fused)

        def step(grads: list[Tensor]) -> None:
            for p, g in zip(params, grads, strict=True):
                p.grad = g
            optimizer.step()
            optimizer.zero_grad()  # the memory serves the next gradients

        return step


def _may_be_fused(params: list[Tensor]) -> bool:
    """Torch's fused SGD on a CPU leaves 16 and more numbers of half precision as they are."""
    return all(p.dtype in (torch.float32, torch.float64) for p in params)


def _correction(beta: float, count: Tensor) -> Tensor:
    """Return ``1 - beta^count``, to full precision in float32 too."""
    return -torch.expm1(count * math.log(beta))


def _real(w: Tensor) -> torch.dtype:
    return torch.promote_types(w.dtype, torch.float32)
