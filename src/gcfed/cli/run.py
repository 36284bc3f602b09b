"""The command that trains, and writes run directories."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gcfed.cli.completion import names_of
from gcfed.cli.exits import exit_code
from gcfed.cli.options import WHERE, Plugins, StoreOption
from gcfed.errors import InputError
from gcfed.files import refuse_existing
from gcfed.results.directory import STORE

FLAGS = (
    *("algorithm", "dataset", "model", "clients", "cohort", "alpha", "rounds", "seed"),
    *("engine", "device", "track"),
)
WHAT, HOW = "What is trained", "How it is trained"


def run(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", hidden=True)] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="Such as 'fedlc + gcfed'.",
            show_default="gcfed",
            rich_help_panel=WHAT,
            autocompletion=names_of("algorithms"),
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="What to train on.",
            show_default="fashion10k",
            rich_help_panel=WHAT,
            autocompletion=names_of("datasets"),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="What to train.",
            show_default="cnn",
            rich_help_panel=WHAT,
            autocompletion=names_of("models"),
        ),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            help="Number of clients.",
            show_default="100, or as many as the data has",
            rich_help_panel=WHAT,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Of a Dirichlet partition; small is skewed.",
            show_default="0.1",
            rich_help_panel=WHAT,
        ),
    ] = None,
    cohort: Annotated[
        int | None,
        typer.Option(help="Clients in a round.", show_default="5", rich_help_panel=HOW),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Number of rounds.", show_default="100", rich_help_panel=HOW),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Draws all that is random.", show_default="0", rich_help_panel=HOW),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="A run for each of these.", rich_help_panel=HOW),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="How a cohort is trained.",
            show_default="auto",
            rich_help_panel=HOW,
            autocompletion=names_of("engines"),
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, ...", show_default="auto", rich_help_panel=HOW),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting; may be repeated.", rich_help_panel=HOW
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to make, instead of one in the store.", rich_help_panel=WHERE),
    ] = None,
    store: StoreOption = STORE,
    track: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="tensorboard, mlflow, wandb.", rich_help_panel=WHERE),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary alone, as JSON.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Train, and write a run directory: one for each seed.

    CONFIG.toml is a file of settings, such as the config.toml of a run; the options below change
    some of them.  'gcfed list settings' shows all, with their defaults; 'gcfed list algorithms',
    datasets, models, partitions, engines and metrics show what they can name.  A run that is in the
    store already is not done again: asked for more rounds, it goes on.

    Examples:

        gcfed run --algorithm fedavg --rounds 50 --seeds 0,1,2
        gcfed run --algorithm 'fedlc(tau=0.1) + gcfed' --alpha 0.05 --set lr=0.05
        gcfed run runs/x/config.toml --engine sequential --out again
    """
    from gcfed.cli import training
    from gcfed.config.settings import make
    from gcfed.runs.store import RunStore

    values = _settings(config, context.params, set_ or [], plugin or [])
    chosen = None if seeds is None else _seeds(seeds, seed)
    each = [values] if chosen is None else [values | {"seed": s} for s in chosen]
    configs = [make(e, "the command line") for e in each]
    if out is None:
        runs = training.run_in_store(RunStore(store), configs, quiet=as_json)
    else:
        refuse_existing(out)
        if chosen is None:
            runs = training.run_one(configs[0], out, quiet=as_json)
        else:
            runs = training.run_seeds(configs, out, quiet=as_json)
    if as_json:
        found = runs[0].summary if chosen is None else training.summarize(runs)
        print(json.dumps(found, indent=2))
    else:
        training.print_runs(runs)
    sys.exit(exit_code(runs))


def _settings(
    config: Path | None, flags: Mapping[str, Any], assignments: list[str], plugins: list[Path]
) -> dict[str, Any]:
    """The settings of a file, changed by flags and then by assignments."""
    from gcfed.config.settings import assignment, make, override, read

    given = {} if config is None else read(config)
    if isinstance(given.get("grid"), dict) or isinstance(given.get("tune"), dict):
        raise InputError(f"{config} is a grid of settings: train it with gcfed sweep {config}")
    make(given, str(config))  # what is wrong with the file is said of the file
    changes = {key: flags[key] for key in FLAGS if flags[key] is not None}
    changes |= dict(map(assignment, assignments))
    values = override(given, changes)
    if plugins:
        named = values.get("plugins", [])
        named = named if isinstance(named, list) else [named]
        values["plugins"] = [*named, *map(str, plugins)]
    return values


def _seeds(text: str, seed: int | None) -> list[int]:
    if seed is not None:
        raise InputError("give --seed or --seeds, not both")
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds takes numbers such as 0,1,2; not {text!r}") from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--seeds names a seed twice: {text}")
    return numbers
