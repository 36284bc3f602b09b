"""Passes: what changes a module and says which of its modules it replaced."""

from collections.abc import Callable

from torch import nn

Pass = Callable[[nn.Module], tuple[nn.Module, list[str]]]
"""Takes a module; returns one with the same parameters, and the names of what it replaced."""

Replacement = Callable[[str, nn.Module], nn.Module | None]
"""What takes the place of a module inside another, by its name there; None leaves it."""


def replace_modules(module: nn.Module, replacement: Replacement) -> tuple[nn.Module, list[str]]:
    """Replace modules inside ``module``, which is changed, and tell their names.

    A module that stands in two places is replaced by one that stands in both.
    """
    made: dict[nn.Module, nn.Module | None] = {}
    names = []
    for name, child in list(module.named_modules(remove_duplicate=False)):
        if name == "":  # the whole is not inside itself
            continue
        if child not in made:
            made[child] = replacement(name, child)
        if (new := made[child]) is not None:
            module.set_submodule(name, new)
            names.append(name)
    return module, names


def keep_weights_apart(module: nn.Module) -> None:
    """Have recurrent layers leave their weights where they are.

    On a GPU they would put them into one block of memory whenever they are given others: those of a
    run, which would move, and those of a gradient, which have no memory to put anywhere.
    """
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters = _nothing  # type: ignore[method-assign]


def _nothing() -> None: ...
