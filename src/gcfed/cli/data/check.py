"""The command that compares data sets with what was published."""

from collections import Counter

import typer

from gcfed.cli import console
from gcfed.cli.options import DataDir, DatasetNames, Plugins


def check(
    names: DatasetNames,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Compare data sets with what was published.

    NAME is one that 'gcfed data list' shows; several may be given.  If a file is missing or
    different, or a folder empty, the exit code is 1.  Data of your own, such as
    "folder(path='photos')", are read; if they cannot be, it is 2.
    """
    from gcfed.cli.data.describe import STATUSES, is_bad, named
    from gcfed.config.materials import read_dataset
    from gcfed.data import data_dir as folder_of_data
    from gcfed.data.downloads.catalog import PUBLICATIONS
    from gcfed.data.downloads.fetch import check as check_files

    root, found = folder_of_data(data_dir), []
    for name, text in [(named(text), text) for text in names]:
        if name in PUBLICATIONS:
            found += check_files(name, root)
        elif text.strip() != name:
            own = read_dataset(text, root)
            console.tell(
                f"{text}: {len(own.train.y):,} train and {len(own.test.y):,} test examples"
            )
        else:
            console.tell(f"{name}: there are no files to check")
    if found:
        rows = [(f.file, f.status, "-" if f.path is None else str(f.path)) for f in found]
        console.table(("file", "status", "where"), rows)
    for status in Counter(f.status for f in found):
        console.tell(f"{status}: {STATUSES[status]}")
    if is_bad(found):
        raise typer.Exit(1)
