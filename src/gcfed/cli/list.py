"""The command that lists what there is to choose from."""

from typing import Annotated

import typer

from gcfed.cli import console
from gcfed.cli.choices import CIFAR, LISTS, choices
from gcfed.cli.completion import list_names
from gcfed.cli.options import Plugins
from gcfed.errors import unknown


def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", hidden=True, autocompletion=list_names)],
    plugin: Plugins = None,
) -> None:
    """List what there is to choose from, a line each.

    WHAT is algorithms, datasets, models, partitions, engines, losses, metrics, probes,
    availabilities, samplers, faults, trackers, authors (methods as the authors of GC-Fed ran them),
    or settings (of gcfed run).
    """
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    console.table(*choices(what))
    if what == "models":
        console.say(
            f"parameters and forward MFLOP are for examples of {' x '.join(map(str, CIFAR))} and "
            "10 classes, as in CIFAR-10; a model for other examples has a dash"
        )
