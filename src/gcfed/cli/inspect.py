"""The command that says what each parameter of a model is."""

from typing import Annotated

import torch
import typer
from torch import nn

from gcfed.algorithms.centralized import describe
from gcfed.algorithms.spec import parse
from gcfed.cli import console
from gcfed.cli.options import DataDir, Plugins
from gcfed.config.materials import module_for, read_dataset
from gcfed.config.settings import Config
from gcfed.core.description import COLUMNS
from gcfed.core.model import Model
from gcfed.data import Dataset
from gcfed.models import MODELS


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", hidden=True)],
    dataset: Annotated[
        str, typer.Option(help="What the model is to read; fashion10k.", show_default=False)
    ] = Config().dataset,
    algorithm: Annotated[
        str, typer.Option(help="Such as 'gcfed(lam=0.9)'; gcfed.", show_default=False)
    ] = "gcfed",
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """List the parameters of a model, and what gradient centralization does to each.

    MODEL is a name such as cnn, or a text like 'mlp(hidden=(64,))'.  Local GC is what clients do to
    gradients, Global GC what the server does to their mean update.
    """
    method = parse(algorithm)
    MODELS.parse(model)  # what is misspelt shows before data are read
    wrapped = Model(_hollow(model, read_dataset(dataset, data_dir)))
    method.check(wrapped.params, wrapped.roles)
    table = describe(wrapped, method).parameters
    console.table(COLUMNS, [parameter.cells for parameter in table])
    local, server = sum(p.local for p in table), sum(p.server for p in table)
    console.tell(
        f"{algorithm}: of {len(table)} parameters, Local GC centralizes {local} and Global GC "
        f"{server}"
    )


def _hollow(text: str, dataset: Dataset) -> nn.Module:
    """The model without values, which need not be drawn to be named, where it can be made so."""
    try:
        with torch.device("meta"):
            return module_for(text, dataset)
    except Exception:  # a user's model may compute while it is made
        return module_for(text, dataset)
