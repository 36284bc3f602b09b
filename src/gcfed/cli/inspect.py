"""The command that says what each parameter of a model is."""

from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.completion import names_of
from gcfed.cli.options import DataDir, Plugins

if TYPE_CHECKING:
    from torch import nn

    from gcfed.data import Dataset


def inspect(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", hidden=True, autocompletion=names_of("models"))
    ],
    dataset: Annotated[
        str,
        typer.Option(help="What the model is to read.", autocompletion=names_of("datasets")),
    ] = "fashion10k",
    algorithm: Annotated[
        str,
        typer.Option(help="Such as 'gcfed(lam=0.9)'.", autocompletion=names_of("algorithms")),
    ] = "gcfed",
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """List the parameters of a model, and what gradient centralization does to each.

    MODEL is a name such as cnn, or a text like 'mlp(hidden=(64,))'.  Local GC is what clients do to
    gradients, Global GC what the server does to their mean update.

    Example:

        gcfed inspect resnet18 --dataset cifar10 --algorithm 'gcfed(lam=0.9)'
    """
    from gcfed.algorithms.centralized import describe
    from gcfed.algorithms.spec import parse
    from gcfed.config.materials import read_dataset
    from gcfed.config.trial import with_head_found
    from gcfed.core.description import COLUMNS
    from gcfed.core.model import Model
    from gcfed.models import MODELS

    method = parse(algorithm)
    MODELS.parse(model)  # what is misspelt shows before data are read
    data = read_dataset(dataset, data_dir)
    wrapped = with_head_found(Model(_hollow(model, data)), data)
    method.check(wrapped.params, wrapped.roles)
    table = describe(wrapped, method).parameters
    console.table(COLUMNS, [parameter.cells for parameter in table])
    local, server = sum(p.local for p in table), sum(p.server for p in table)
    console.tell(
        f"{algorithm}: of {len(table)} parameters, Local GC centralizes {local} and Global GC "
        f"{server}"
    )


def _hollow(text: str, dataset: "Dataset") -> "nn.Module":
    """The model without values, which need not be drawn to be named, where it can be made so."""
    import torch

    from gcfed.config.materials import module_for

    try:
        with torch.device("meta"):
            return module_for(text, dataset)
    except Exception:  # a user's model may compute while it is made
        return module_for(text, dataset)
