"""The command line: its commands, a module each, and what becomes of errors."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from gcfed.cli import console, data
from gcfed.cli.check import check
from gcfed.cli.compare import compare
from gcfed.cli.demo import demo
from gcfed.cli.exits import INVALID
from gcfed.cli.inspect import inspect
from gcfed.cli.list import list_
from gcfed.cli.resume import resume
from gcfed.cli.run import run
from gcfed.cli.show import show
from gcfed.cli.sweep import sweep
from gcfed.cli.verify import verify
from gcfed.config.plugins import load_installed
from gcfed.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
for command in (demo, run, resume, verify, show, compare, sweep, check, inspect):
    app.command()(command)
app.command("list")(list_)


def main() -> None:
    """Run a command; what is wrong with the input is one message and exit code 2."""
    console.show_warnings()
    try:
        load_installed()
        app()
    except InputError as error:
        console.fail(error)
        sys.exit(INVALID)
    except OSError as error:
        console.fail(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(INVALID)


def _version(wanted: bool) -> None:
    if wanted:
        console.tell(f"gcfed {version('gcfed')}")
        raise typer.Exit


@app.callback()
def _gcfed(
    wanted: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning under heterogeneous data and partial participation."""
