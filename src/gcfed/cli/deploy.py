"""Commands that train across machines, over Flower."""

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.certs import certs
from gcfed.cli.exits import INTERRUPTED, exit_code
from gcfed.cli.help import SectionedCommand, SectionedGroup
from gcfed.cli.options import changes_given, check_positive, path_argument, path_option
from gcfed.errors import InputError
from gcfed.files import quoted, unused_folder
from gcfed.results.directory import STORE

if TYPE_CHECKING:
    from subprocess import Popen

    from gcfed.config.settings import Config

app = typer.Typer(cls=SectionedGroup, no_args_is_help=True, rich_markup_mode=None)
app.command("certs", cls=SectionedCommand)(certs)

PAUSE = 0.5  # seconds between two looks at how far a run is


@app.callback()
def _deploy() -> None:
    """Training across machines, over Flower."""


@app.command("init", cls=SectionedCommand)
def init(
    folder: Annotated[Path, path_argument("DIR")],
    config: Annotated[
        Path | None, path_option(metavar="CONFIG.toml", help="A file of settings.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, path_option(help="The run directory to write.", show_default="runs/DIR")
    ] = None,
) -> None:
    """Write a Flower app that is ready to run, for you to make your own.

    DIR is a folder to make.  Its pyproject.toml holds the settings, and its app.py one function
    that loads the data of a node.

    Example:

        gcfed deploy init hospitals --set algorithm='fedlc + gcfed' --set clients=6
    """
    from gcfed.config.settings import make, override
    from gcfed.config.toml import read
    from gcfed.deploy.shares import check_deployable
    from gcfed.deploy.starter import SETTINGS, write_app

    given = SETTINGS if config is None else read(config)
    settings = override(given, changes_given({}, set_ or []))
    check_deployable(make(settings, "the command line"))
    write_app(folder, settings, out or STORE / folder.absolute().name)
    console.tell(f"{folder}/pyproject.toml  what is trained, and where the run goes")
    console.tell(f"{folder}/app.py          load(client): your own data go in here")
    console.say(f"to try it on this machine: gcfed deploy local {quoted(folder)}")


@app.command("local", cls=SectionedCommand)
def local(
    folder: Annotated[Path | None, path_argument("[DIR]")] = None,
    nodes: Annotated[
        int | None, typer.Option(help="How many.", show_default="as many as the app has clients")
    ] = None,
    out: Annotated[
        Path | None,
        path_option(help="The run directory; one that is begun goes on.", show_default="a new one"),
    ] = None,
) -> None:
    """Run a Flower app on this machine: a SuperLink, a SuperNode for each client, and a run.

    DIR is what 'gcfed deploy init' wrote; without it, a small example is trained.  Everything that
    is started is stopped at the end, after Ctrl-C and after a failure.  Logs and what the nodes
    keep are in a folder beside the run directory.

    Examples:

        gcfed deploy local --nodes 4
        gcfed deploy local hospitals --out runs/trial
    """
    from gcfed.cli.training import print_runs
    from gcfed.config.settings import make
    from gcfed.deploy.local import local_federation
    from gcfed.deploy.starter import SETTINGS, read_settings, write_app
    from gcfed.results.run import Run

    check_positive("--nodes", nodes)
    settings = dict(SETTINGS) if folder is None else read_settings(folder)
    settings |= {} if nodes is None else {"clients": nodes}
    config = make(settings, "the app" if folder is None else str(folder / "pyproject.toml"))
    if config.clients is None:
        raise InputError("how many nodes are to be started? Name --nodes, or set clients")
    path = (out or unused_folder(STORE, "deployed")).absolute()
    beside = path.with_name(f"{path.name}-federation")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops what was started too
    try:
        with local_federation(beside, config.clients) as federation:
            console.say(f"a SuperLink and {config.clients} SuperNodes are up; logs in {beside}")
            if folder is None:
                folder = unused_folder(beside, "app")
                write_app(folder, settings, path)
            changes = {"clients": config.clients, "deploy.out": str(path)}
            _follow(federation.start_run(folder, changes), config, path)
            log = federation.log("run")
    except KeyboardInterrupt:
        console.say(f"stopped; the same command with --out {quoted(path)} goes on")
        sys.exit(INTERRUPTED)
    run = Run(path)
    if run.status == "killed":
        raise InputError(f"the run broke off: {_last_error(log, path)}")
    print_runs([run])
    sys.exit(exit_code([run]))


def _last_error(log: Path, path: Path) -> str:
    """What the server said last that went wrong, or where to look and how the run goes on."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.partition(": ")[2] for line in lines if line.startswith("gcfed.errors.")]
    if said:
        return said[-1]
    return f"see {log}; the same command with --out {quoted(path)} goes on"


def _follow(process: "Popen[bytes]", config: "Config", path: Path) -> None:
    """Show how far a run is until its process ends."""
    from gcfed.progress import progress
    from gcfed.results.captions import short
    from gcfed.results.facts import round_note
    from gcfed.results.run import Run
    from gcfed.results.summary import judged_by

    with progress(short(config.algorithm), config.rounds) as tick:
        shown, is_over = 0, False
        while not is_over:
            is_over = process.poll() is not None
            lines = Run(path).records if (path / "rounds.jsonl").is_file() else []
            for line in lines[shown:]:
                tick(line["round"] + 1, round_note(judged_by(config, line), [line]))
            shown = len(lines)
            time.sleep(0 if is_over else PAUSE)
