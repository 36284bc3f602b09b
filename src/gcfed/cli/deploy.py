"""Commands about runs across machines."""

import typer

from gcfed.cli.certs import certs
from gcfed.cli.help import SectionedCommand, SectionedGroup

app = typer.Typer(cls=SectionedGroup, no_args_is_help=True, rich_markup_mode=None)
app.command("certs", cls=SectionedCommand)(certs)


@app.callback()
def _deploy() -> None:
    """Runs across machines, over Flower."""
