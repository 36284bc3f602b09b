"""The command that trains, and writes run directories."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gcfed.cli import training
from gcfed.cli.exits import exit_code
from gcfed.cli.options import Plugins, StoreOption
from gcfed.config.settings import assignment, make, override, read
from gcfed.errors import InputError
from gcfed.files import refuse_existing
from gcfed.runs.store import STORE, RunStore

FLAGS = (
    *("algorithm", "dataset", "model", "clients", "cohort", "alpha", "rounds", "seed"),
    *("engine", "device", "track"),
)


def run(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", hidden=True)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting; may be repeated."),
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Such as 'fedlc + gcfed'.")] = None,
    dataset: Annotated[str | None, typer.Option(help="What to train on.")] = None,
    model: Annotated[str | None, typer.Option(help="What to train.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients in a round.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Of a Dirichlet partition; small is skewed.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draws all that is random.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="A run for each of these.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="How a cohort is trained.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    track: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="tensorboard, mlflow, wandb.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to make, instead of one in the store.")
    ] = None,
    store: StoreOption = STORE,
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
    """
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
    given = {} if config is None else read(config)
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
