"""The command that shows what a data set holds."""

from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli import console
from gcfed.cli.options import (
    PICTURE,
    DataDir,
    DatasetName,
    Force,
    Plugins,
    check_positive,
    path_option,
)
from gcfed.cli.pictures import check_out, save
from gcfed.errors import InputError


def show(
    name: DatasetName,
    out: Annotated[
        Path | None,
        path_option(help="Draw some images of every class to this .png.", rich_help_panel=PICTURE),
    ] = None,
    per_class: Annotated[
        int | None,
        typer.Option(
            help="Images of a class.", show_default="8, of many classes 4", rich_help_panel=PICTURE
        ),
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Show what a data set holds.

    Examples, their shape, classes, and how many there are of each; with --out, some images.  NAME
    may have arguments, such as "emnist(split='letters')".  What is missing is fetched.
    """
    from gcfed.cli.data import describe
    from gcfed.config.materials import read_dataset
    from gcfed.data import DATASETS

    check_out(out, force)
    check_positive("--per-class", per_class)
    if per_class is not None and out is None:
        raise InputError("--per-class goes with --out")
    dataset = read_dataset(name, data_dir)
    console.table(("data set", DATASETS.canonical(name)), describe.dataset_facts(dataset))
    if dataset.has_classes:
        console.tell()
        columns = ("label", "class", "train", "test", "train examples")
        console.table(columns, describe.label_histogram(dataset))
    if out is not None:
        from gcfed.data.datasets.gallery import draw_gallery  # matplotlib takes a second to import

        save(draw_gallery(dataset, per_class), out)
        console.tell(f"\nplot  {out}")
