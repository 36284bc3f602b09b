"""The command that downloads data sets."""

from collections import Counter
from typing import TYPE_CHECKING

import typer

from gcfed.cli import console
from gcfed.cli.options import DataDir, DatasetNames, Plugins

if TYPE_CHECKING:
    from gcfed.data.downloads.fetch import FileStatus


def fetch(
    names: DatasetNames,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Download data sets, and verify them.

    NAME is one that 'gcfed data list' shows; several may be given.  A download that was cut goes on
    where it stopped.

    Example:

        gcfed data fetch cifar10 --data-dir ~/data
    """
    from gcfed.cli.data.describe import is_bad, named
    from gcfed.data import data_dir as folder_of_data
    from gcfed.data.downloads.catalog import PUBLICATIONS
    from gcfed.data.downloads.fetch import check as check_files, fetch as fetch_files

    root, wrong = folder_of_data(data_dir), []
    for name in list(map(named, names)):
        if name not in PUBLICATIONS:
            console.tell(f"{name}: there is nothing to fetch")
            continue
        fetch_files(name, root)
        found = check_files(name, root)
        console.tell(f"{name}: {_tally(found)} in {root}")
        wrong += [name] if is_bad(found) else []
    if wrong:
        console.fail(f"some files are not the published ones: gcfed data check {' '.join(wrong)}")
        raise typer.Exit(1)


def _tally(found: "list[FileStatus]") -> str:
    counts = Counter(f.status for f in found)
    return ", ".join(f"{n} files {status}" for status, n in counts.items())
