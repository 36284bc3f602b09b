"""Modules that draw random numbers in a way that no key can answer.

They draw by functions of torch that `core.draws` does not know, by Python's ``random`` or by numpy.
For these, global generators are seeded from the key whenever the model runs.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from gcfed.core import keys
from gcfed.core.model import Model
from gcfed.core.seeding import generators_seeded


def own_draws(model: Model, run: Callable[[], object]) -> tuple[str, ...]:
    """The modules that draw so while ``run`` runs the model; asked once of a model.

    Where the run fails there are none: the first step will tell what is wrong.
    """
    if model not in _FOUND:
        key = keys.key(0).to(next(iter(model.params.values())).device)
        noting, seeded = _noting_draws(model.submodules()), generators_seeded(key)
        with noting as found, seeded, suppress(Exception), torch.no_grad():
            run()
        _FOUND[model] = tuple(dict.fromkeys(found))
    return _FOUND[model]


_FOUND: "WeakKeyDictionary[Model, tuple[str, ...]]" = WeakKeyDictionary()


@contextmanager
def _noting_draws(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[list[str]]:
    """Inside, a list of the modules in whose runs global generators moved, the innermost alone."""
    found: list[str] = []
    entered: list[tuple[list[bytes], int]] = []

    def enter(*_: Any) -> None:
        entered.append((_states(), len(found)))

    def leave(name: str, module: nn.Module, *_: Any) -> None:
        before, known = entered.pop()
        if len(found) == known and before != _states():
            found.append(f"{name or 'the model'} ({type(module).__name__})")

    with ExitStack() as hooks:
        for name, module in modules:
            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(partial(leave, name)).remove)
        yield found


def _states() -> list[bytes]:
    """The states of all global generators."""
    _, numbers, place, *_ = np.random.get_state()
    ours = [repr((random.getstate(), place)).encode(), np.asarray(numbers).tobytes()]
    return [*(state.numpy().tobytes() for state in keys.global_states()), *ours]
