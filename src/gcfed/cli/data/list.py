"""The command that lists data sets."""

from gcfed.cli import console
from gcfed.cli.options import DataDir, Plugins


def list_(data_dir: DataDir = None, plugin: Plugins = None) -> None:
    """List the data sets, and which are here."""
    from gcfed.cli.data import describe
    from gcfed.data import DATASETS, data_dir as folder_of_data
    from gcfed.data.downloads.fetch import info

    root = folder_of_data(data_dir)
    rows = [describe.dataset_row(info(name, root)) for name in DATASETS]
    console.table(("data set", "download", "where", "what it is"), rows)
    console.tell(f"the folder of data is {root}")
