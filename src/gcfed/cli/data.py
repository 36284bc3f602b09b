"""Commands about data: what there is, who holds what."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console, describe
from gcfed.cli.options import DataDir, Force, Plugins, check_positive
from gcfed.cli.partition import partition
from gcfed.cli.pictures import check_out, save
from gcfed.data import DATASETS, data_dir as folder_of_data
from gcfed.data.catalog import PUBLICATIONS
from gcfed.data.fetch import FileStatus, check as check_files, fetch as fetch_files, info
from gcfed.errors import InputError, unknown
from gcfed.experiments.experiment import read_dataset

if TYPE_CHECKING:
    pass

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Data sets and partitions.")
app.command()(partition)


@app.callback()
def _data() -> None:
    """Data sets and partitions."""


@app.command("list")
def list_(data_dir: DataDir = None, plugin: Plugins = None) -> None:
    """List the data sets, and which are here."""
    root = folder_of_data(data_dir)
    rows = [describe.dataset_row(info(name, root)) for name in DATASETS]
    console.table(("data set", "download", "where", "what it is"), rows)
    console.tell(f"the folder of data is {root}")


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", hidden=True)],
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Download data sets, and verify them.

    NAME is one that 'gcfed data list' shows; several may be given.  A download that was cut goes on
    where it stopped.
    """
    root, wrong = folder_of_data(data_dir), []
    for name in list(map(_name, names)):
        if name not in PUBLICATIONS:
            console.tell(f"{name}: there is nothing to fetch")
            continue
        fetch_files(name, root)
        found = check_files(name, root)
        console.tell(f"{name}: {_tally(found)} in {root}")
        wrong += [name] if _is_bad(found) else []
    if wrong:
        console.fail(f"some files are not the published ones: gcfed data check {' '.join(wrong)}")
        raise typer.Exit(1)


@app.command()
def check(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", hidden=True)],
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Compare data sets with what was published.

    NAME is one that 'gcfed data list' shows; several may be given.  If a file is missing or
    different, the exit code is 1.
    """
    root, found = folder_of_data(data_dir), []
    for name in list(map(_name, names)):
        if name in PUBLICATIONS:
            found += check_files(name, root)
        else:
            console.tell(f"{name}: there are no files to check")
    if found:
        rows = [(f.file, f.status, "-" if f.path is None else str(f.path)) for f in found]
        console.table(("file", "status", "where"), rows)
    for status in Counter(f.status for f in found):
        console.tell(f"{status}: {describe.STATUSES[status]}")
    if _is_bad(found):
        raise typer.Exit(1)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", hidden=True)],
    out: Annotated[
        Path | None, typer.Option(help="Draw some images of every class to this .png.")
    ] = None,
    per_class: Annotated[
        int | None, typer.Option(help="Images of a class; 8, of many classes 4.")
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Show what a data set holds.

    Examples, their shape, classes, and how many there are of each; with --out, some images.  NAME
    may have arguments, such as "emnist(split='letters')".  What is missing is fetched.
    """
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
        from gcfed.data.gallery import draw_gallery  # matplotlib takes a second to import

        save(draw_gallery(dataset, per_class), out)
        console.tell(f"\nplot  {out}")


def _name(text: str) -> str:
    """The data set that is meant, of whose arguments files know nothing."""
    name = text.partition("(")[0].strip()
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return name


def _tally(found: list[FileStatus]) -> str:
    counts = Counter(f.status for f in found)
    return ", ".join(f"{n} files {status}" for status, n in counts.items())


def _is_bad(found: list[FileStatus]) -> bool:
    return any(f.status in ("missing", "different") for f in found)
