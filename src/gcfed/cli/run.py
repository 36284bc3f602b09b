"""The command that trains, and writes run directories."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gcfed.cli.exits import exit_code
from gcfed.cli.options import (
    WHERE,
    DataDir,
    Plugins,
    StoreOption,
    alpha_option,
    changes_given,
    clients_option,
    path_argument,
    path_option,
    setting_option,
)
from gcfed.cuda_start import start_cuda
from gcfed.errors import InputError
from gcfed.files import quoted, refuse_existing
from gcfed.garbage import unsearched
from gcfed.results.directory import CONFIG, STORE

FLAGS = (
    *("algorithm", "dataset", "model", "clients", "cohort", "alpha", "rounds", "seed"),
    *("engine", "device", "track"),
)
WHAT, HOW = "What is trained", "How it is trained"


@unsearched()  # until the first line of a run is written
def run(
    context: typer.Context,
    config: Annotated[Path | None, path_argument("[CONFIG.toml]")] = None,
    algorithm: Annotated[
        str | None, setting_option(WHAT, "Such as 'fedlc + gcfed'.", "gcfed", "algorithms")
    ] = None,
    dataset: Annotated[
        str | None, setting_option(WHAT, "What to train on.", "fashion10k", "datasets")
    ] = None,
    model: Annotated[str | None, setting_option(WHAT, "What to train.", "cnn", "models")] = None,
    clients: Annotated[int | None, clients_option(WHAT)] = None,
    alpha: Annotated[float | None, alpha_option(WHAT)] = None,
    cohort: Annotated[int | None, setting_option(HOW, "Clients in a round.", "5")] = None,
    rounds: Annotated[int | None, setting_option(HOW, "Number of rounds.", "100")] = None,
    seed: Annotated[int | None, setting_option(HOW, "Draws all that is random.", "0")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="A run for each of these.", rich_help_panel=HOW),
    ] = None,
    engine: Annotated[
        str | None, setting_option(HOW, "How a cohort is trained.", "auto", "engines")
    ] = None,
    device: Annotated[str | None, setting_option(HOW, "cpu, cuda, ...", "auto")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting; may be repeated.", rich_help_panel=HOW
        ),
    ] = None,
    out: Annotated[
        Path | None,
        path_option(help="Folder to make, instead of one in the store.", rich_help_panel=WHERE),
    ] = None,
    store: StoreOption = STORE,
    data_dir: DataDir = None,
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
    datasets, models, partitions, engines, losses and metrics show what they can name.  A run that
    is in the store already is not done again: asked for more rounds, it goes on.

    Examples:

        gcfed run --algorithm fedavg --rounds 50 --seeds 0,1,2
        gcfed run --algorithm 'fedlc(tau=0.1) + gcfed' --alpha 0.05 --set lr=0.05
        gcfed run runs/x/config.toml --engine sequential --out again
    """
    assigned = any(each.startswith(("device", "plugins")) for each in set_ or [])
    if config is None and not plugin and not assigned:  # a plugin may choose among the GPUs
        start_cuda(device or "auto")

    from gcfed.cli import training
    from gcfed.config.settings import make
    from gcfed.runs.store import RunStore

    values = _settings(config, context.params, set_ or [], plugin or [])
    chosen = None if seeds is None else _seeds(seeds, seed, set_ or [])
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
    """The settings of a file, changed by flags and assignments."""
    from gcfed.config.settings import add_plugins, make, override
    from gcfed.config.toml import read

    if config and config.is_dir():
        such = f", such as {quoted(file)}" if (file := config / CONFIG).is_file() else ""
        raise InputError(f"{config} is a folder: name a file of settings{such}")
    given = {} if config is None else read(config)
    if config and (isinstance(given.get("grid"), dict) or isinstance(given.get("tune"), dict)):
        how = f"train it with gcfed sweep {quoted(config)}"
        raise InputError(f"{config} is a grid of settings: {how}")
    make(given, str(config))  # what is wrong with the file is said of the file
    folder = None if flags["data_dir"] is None else str(flags["data_dir"])
    options = {key: flags[key] for key in FLAGS} | {"data_dir": folder}
    return add_plugins(override(given, changes_given(options, assignments)), plugins)


def _seeds(text: str, seed: int | None, assignments: list[str]) -> list[int]:
    if seed is not None or "seed" in (each.partition("=")[0].strip() for each in assignments):
        raise InputError("give a seed or --seeds, not both")
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds takes numbers such as 0,1,2; not {text!r}") from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--seeds names a seed twice: {text}")
    return numbers
