"""Commands about data: what there is, who holds what."""

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Data sets and partitions.")


@app.callback()
def _data() -> None:
    """Data sets and partitions."""
