"""A trial of how a model draws random numbers, before its first round.

Most models draw by functions of torch that a key can answer (see `core.draws`).  Some of their
modules may draw otherwise: by rarer functions of torch, by Python's ``random`` or by numpy.  For
these, global generators are seeded from the key whenever the model runs.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gcfed.core.model import Model, shown
from gcfed.core.seeding import drawn_since, generators_seeded, states

RunModel = Callable[[bool, Tensor | None], Tensor]
"""The logits of a model, in training or not; what it draws comes from a key if there is one."""

RTOL, ATOL = 1e-3, 1e-5  # a GPU may take sums in another order


class ModelDraws(NamedTuple):
    """How a model draws.

    - ``own``: the modules that draw by functions which no key can answer.
    - ``in_evaluation``: whether it draws in evaluation mode too.
    - ``repeats``: whether it gives the same again with the same numbers; else it draws from a
      generator that nobody can seed, or changes itself.
    """

    own: tuple[str, ...] = ()
    in_evaluation: bool = False
    repeats: bool = True


def draws_of(model: Model, run: RunModel) -> ModelDraws:
    """How a model draws, tried once; ``run`` runs it on some examples.

    Where that fails nothing is found: the first step will tell what is wrong.
    """
    if model not in _FOUND:
        try:
            _FOUND[model] = _tried(model, run)
        except Exception:
            return ModelDraws()
    return _FOUND[model]


_FOUND: "WeakKeyDictionary[Model, ModelDraws]" = WeakKeyDictionary()


def _tried(model: Model, run: RunModel) -> ModelDraws:
    key = model.evaluation_key

    def both() -> list[Tensor]:
        with generators_seeded(key):
            return [run(train, key) for train in (True, False)]

    with torch.no_grad():
        with _noting_draws(model.submodules()) as found:
            first = both()
        alike = partial(torch.allclose, rtol=RTOL, atol=ATOL, equal_nan=True)
        repeats = all(map(alike, first, both()))
        with generators_seeded(key):
            before = states()
            run(False, None)
            return ModelDraws(tuple(dict.fromkeys(found)), drawn_since(before), repeats)


@contextmanager
def _noting_draws(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[list[str]]:
    """Inside, a list of the modules in whose runs global generators moved, the innermost alone."""
    found: list[str] = []
    entered: list[tuple[list[Any], int]] = []

    def enter(*_: Any) -> None:
        entered.append((states(), len(found)))

    def leave(name: str, module: nn.Module, *_: Any) -> None:
        before, known = entered.pop()
        if len(found) == known and drawn_since(before):
            found.append(shown(name, module))

    with ExitStack() as hooks:
        for name, module in modules:
            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(partial(leave, name)).remove)
        yield found
