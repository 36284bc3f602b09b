"""What a model may do beside giving outputs, and must not: found by trying it before a run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType

import torch
from torch import Tensor, nn

from gcfed.core import tree
from gcfed.core.model import Model
from gcfed.core.server import Server
from gcfed.core.types import Inputs
from gcfed.errors import InputError
from gcfed.simulation.setup import Setup

FAR = 100.0
"""What weights are multiplied by, so that a module that bounds them has something to do."""

GiveLogits = Callable[[Setup, Server, Inputs], Tensor]
"""Gives the logits of examples, by one way of running a model."""


def refuse_writes(setup: Setup, server: Server, x: Inputs, run: GiveLogits) -> None:
    """Refuse a model that writes into what it is given: examples, weights, or buffers to judge by.

    They are there for other clients and rounds, so that results would depend on who trains where,
    and on how often the model is judged.
    """
    given, buffers = tree.map(torch.clone, (x, server.buffers))
    weights = tree.map(lambda w: FAR * w, server.params)
    with suppress(Exception):  # whether it runs is tried with its own weights
        run(setup, server._replace(params=weights, buffers=buffers), given)
    for name, buffer in server.buffers.items():
        if not _equal(buffers[name], buffer):
            raise InputError(
                f"forward writes into the buffer {name} when the model is judged, which would "
                "depend on how often that is done: write into it where self.training is true"
            )
    if not all(map(_equal, tree.tensors(given), tree.tensors(x))):
        raise InputError(
            "the model writes into the examples that it is given, which other rounds read too: "
            "have its first layers leave them as they are (inplace=False)"
        )
    for name, weight in server.params.items():
        if not _equal(weights[name], FAR * weight):
            raise InputError(
                f"forward writes into the parameter {name}, as clamp_ and nn.Embedding(max_norm=) "
                "do, which would change the server's weights whenever the model is run: bound a "
                "copy of it where it is used"
            )


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def refuse_stale_weights(setup: Setup, server: Server, x: Inputs, run: GiveLogits) -> None:
    """Refuse a model that reads weights in a way by which it is not given those of a run."""
    own = _own_weights(setup.model)

    def finite(names: Sequence[str]) -> Tensor:
        with _unreadable([weight for name in names for weight in own[name]]):
            return run(setup, server, x).isfinite()

    usual = finite([])
    if torch.equal(finite(list(own)), usual):
        return
    stale = next((name for name in own if not torch.equal(finite([name]), usual)), "")
    raise InputError(
        f"the model reads its parameter {stale} by a list or a function that holds it, and so "
        "would never see it trained: read it as an attribute of its module, or put it into an "
        "nn.ParameterList; make a method of a function"
    )


def _own_weights(model: Model) -> dict[str, list[Tensor]]:
    """By name, the tensors of a model's modules in whose place runs are given others.

    Those that functions of its modules hold belong to the module that it was copied from.
    """
    modules = model.submodules()
    found: dict[str, list[Tensor]] = {}
    for root in [module for name, module in modules if not name] + _held_by_functions(modules):
        for name, weight in root.named_parameters():
            if weight.requires_grad:
                found.setdefault(name, []).append(weight)
    return found


def _held_by_functions(modules: Sequence[tuple[str, nn.Module]]) -> list[nn.Module]:
    functions = [f for _, module in modules for f in vars(module).values()]
    cells = [c for f in functions if isinstance(f, FunctionType) for c in f.__closure__ or ()]
    return [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, nn.Module)]


@contextmanager
def _unreadable(weights: Sequence[Tensor]) -> Iterator[None]:
    """Inside, these are NaN."""
    kept = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        try:
            for weight in weights:
                weight.fill_(torch.nan)
            yield
        finally:
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)
