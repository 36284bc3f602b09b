"""Commands about data: what there is, who holds what."""

import typer

from gcfed.cli.data.check import check
from gcfed.cli.data.fetch import fetch
from gcfed.cli.data.list import list_
from gcfed.cli.data.partition import partition
from gcfed.cli.data.show import show

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Data sets and partitions.")
for command in (partition, fetch, check, show):
    app.command()(command)
app.command("list")(list_)


@app.callback()
def _data() -> None:
    """Data sets and partitions."""
