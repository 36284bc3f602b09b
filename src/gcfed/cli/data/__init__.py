"""Commands about data: what there is, who holds what."""

from collections.abc import Callable

import typer

from gcfed.cli.data.check import check
from gcfed.cli.data.fetch import fetch
from gcfed.cli.data.list import list_
from gcfed.cli.data.partition import partition
from gcfed.cli.data.show import show
from gcfed.cli.help import SectionedCommand, SectionedGroup

app = typer.Typer(cls=SectionedGroup, no_args_is_help=True, rich_markup_mode=None)
COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_,
    "fetch": fetch,
    "check": check,
    "show": show,
    "partition": partition,
}
for name, command in COMMANDS.items():
    app.command(name, cls=SectionedCommand)(command)


@app.callback()
def _data() -> None:
    """Data sets, and who holds what of them."""
