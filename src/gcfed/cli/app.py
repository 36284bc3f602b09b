"""The command line: its commands, a module each, and what becomes of errors."""

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import version
from typing import Annotated

import click
import typer

from gcfed.cli import console, data, deploy
from gcfed.cli.check import check
from gcfed.cli.compare import compare
from gcfed.cli.costs import costs
from gcfed.cli.demo import demo
from gcfed.cli.exits import INTERRUPTED, INVALID
from gcfed.cli.help import SectionedCommand, SectionedGroup
from gcfed.cli.inspect import inspect
from gcfed.cli.interrupts import ending_imports
from gcfed.cli.list import list_
from gcfed.cli.privacy import privacy
from gcfed.cli.report import report
from gcfed.cli.reproduce import reproduce
from gcfed.cli.resume import resume
from gcfed.cli.run import run
from gcfed.cli.show import show
from gcfed.cli.sweep import sweep
from gcfed.cli.theory import theory
from gcfed.cli.verify import verify
from gcfed.errors import InputError, unknown

START, TRAIN, READ, EXTEND = "To begin with", "Training", "Results", "Your own"
PAPER = "The paper"
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    START: {
        "demo": demo,
        "list": list_,
        "inspect": inspect,
        "costs": costs,
        "privacy": privacy,
    },
    TRAIN: {"run": run, "sweep": sweep, "resume": resume},
    READ: {"show": show, "compare": compare, "report": report, "verify": verify},
    EXTEND: {"check": check},
    PAPER: {"reproduce": reproduce, "theory": theory},
}
"""The commands by section, in the order in which a person comes to use them."""

SPINS = "10000"
"""A tenth of a millisecond or so, for which threads of torch spin while they wait for each other.

OpenMP's default is thirty times that: where other programs use the cores, a thread that spins keeps
the one it waits for from running.  With none, small layers take twice as long.
"""

app = typer.Typer(
    cls=SectionedGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for section, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=SectionedCommand, rich_help_panel=section)(command)
    if section == START:
        app.add_typer(data.app, name="data", rich_help_panel=section)
    if section == TRAIN:
        app.add_typer(deploy.app, name="deploy", rich_help_panel=section)


def main() -> None:
    """Run a command; what is wrong with the input is one message and exit code 2."""
    console.print_all_text()
    console.show_warnings()
    if "OMP_WAIT_POLICY" not in os.environ:  # OpenMP reads both when torch is imported
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        with ending_imports():
            sys.exit(app(prog_name="gcfed", standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(INVALID)
    except click.ClickException as error:
        console.fail(_explain(error))
        sys.exit(INVALID)
    except (click.Abort, KeyboardInterrupt):  # click makes one of the other inside a command alone
        sys.exit(INTERRUPTED)
    except InputError as error:
        console.fail(error)
        sys.exit(INVALID)
    except OSError as error:
        console.fail(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(INVALID)


def _explain(error: click.ClickException) -> str:
    """What is wrong with the words of a command, in the style of every other message."""
    context = getattr(error, "ctx", None)
    command = "gcfed" if context is None else context.command_path
    if isinstance(error, click.NoSuchOption) and context is not None:
        words = [word for param in context.command.params for word in param.opts]
        options = [word for word in [*words, "--help"] if word.startswith("-")]
        typed = get_close_matches(error.option_name, options, n=1, cutoff=0.8)
        if not typed and (key := _setting(error.option_name)) and (how := _how_set(context, key)):
            return f"{key} is no option of {command}, but a setting: {how}"
        return str(unknown(f"option of {command}", error.option_name, options))
    said = error.format_message().rstrip(".")
    said = said.replace(" (env var: 'None')", "")  # click < 8.2.2 adds this to every option
    how = f"{command} --help shows what it takes"
    if "+" in sys.argv:  # which a shell made words of its own of
        how = "what is joined by + goes in quotes, as in 'fedlc + gcfed'"
    return f"{said[:1].lower()}{said[1:]}; {how}"


def _setting(option: str) -> str | None:
    """The setting that an option's name stands for, if it is one."""
    from gcfed.config.settings import KEYS  # imports torch, which help does without

    key = option.lstrip("-").replace("-", "_")
    return key if key in (*KEYS, "seeds") else None


def _how_set(context: click.Context, key: str) -> str | None:
    """How a command is given a setting that is no option of its own."""
    if any("--set" in param.opts for param in context.command.params):
        return f"--set {key}=VALUE"
    files = [str(param.metavar) for param in context.command.params]
    return next((f"write it into {file}" for file in files if file.endswith(".toml")), None)


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
    """Federated learning under heterogeneous data and partial participation.

    Examples:

        gcfed demo
        gcfed run --algorithm 'fedlc + gcfed' --alpha 0.1 --seeds 0,1,2
        gcfed compare runs

    'gcfed COMMAND --help' says more.  The documentation is in docs/ of the source: begin with
    docs/quickstart.md; docs/configuration.md explains every setting.
    """
