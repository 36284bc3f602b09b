"""Commands of the command line; each asks the library and prints what it says."""

import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from gcfed import laws
from gcfed.algorithm import Algorithm
from gcfed.algorithms import ALGORITHMS
from gcfed.availability import AVAILABILITIES
from gcfed.cli import again, console, data, results
from gcfed.cli.again import exit_code
from gcfed.cli.compare import compare
from gcfed.cli.options import Plugins, Store
from gcfed.cli.sweep import sweep
from gcfed.data import DATASETS, PARTITIONS
from gcfed.engines import ENGINES
from gcfed.errors import InputError, unknown
from gcfed.experiments import demo as demonstration
from gcfed.experiments.config import assignment, describe, make, override, read
from gcfed.experiments.directory import refuse_existing, unused
from gcfed.experiments.plugins import load_installed, load_plugin
from gcfed.experiments.store import STORE, RunStore
from gcfed.experiments.trackers import TRACKERS
from gcfed.models import MODELS
from gcfed.participation import FAULTS, SAMPLERS
from gcfed.registry import Registry
from gcfed.spec import parse

FLAGS = (
    *("algorithm", "dataset", "model", "clients", "cohort", "alpha", "rounds", "seed"),
    *("engine", "device", "track"),
)
INVALID = 2

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
app.command()(again.resume)
app.command()(again.verify)
app.command()(compare)
app.command()(sweep)

REGISTRIES: dict[str, Registry[Any]] = {
    "algorithms": ALGORITHMS,
    "datasets": DATASETS,
    "models": MODELS,
    "partitions": PARTITIONS,
    "engines": ENGINES,
    "availabilities": AVAILABILITIES,
    "samplers": SAMPLERS,
    "faults": FAULTS,
    "trackers": TRACKERS,
}


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


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder to make; runs/demo if not given.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help=f"Rounds of each run; {demonstration.ROUNDS}.", show_default=False)
    ] = demonstration.ROUNDS,
    plugin: Plugins = None,
) -> None:
    """Compare FedAvg with GC-Fed: a table and a plot in two minutes.

    On the embedded data, three seeds of each.
    """
    folder = out or unused(Path("runs"), "demo")
    refuse_existing(folder)
    groups = []
    for name, configs in demonstration.configs(rounds).items():
        groups.append(results.run_group(name, configs, folder / name))
        if groups[-1].stopped:
            break
    results.print_comparison(groups)
    plot = results.save_curves(groups, folder, demonstration.TITLE)
    console.tell(f"\nplot  {plot}\nruns  {folder}  (gcfed show {folder})")
    sys.exit(exit_code([summary for group in groups for summary in group.summaries]))


@app.command()
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
    store: Store = STORE,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary alone, as JSON.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Train, and write a run directory: one for each seed.

    CONFIG.toml is a file of settings, such as the config.toml of a run; the options below change
    some of them.  'gcfed list settings' shows all, with their defaults; 'gcfed list algorithms',
    datasets, models, partitions and engines show what they can name.  A run that is in the store
    already is not done again: asked for more rounds, it goes on.
    """
    values = _settings(config, context.params, set_ or [], plugin or [])
    chosen = None if seeds is None else _seeds(seeds, seed)
    each = [values] if chosen is None else [values | {"seed": s} for s in chosen]
    configs = [make(e, "the command line") for e in each]
    if out is None:
        group = results.run_in_store(RunStore(store), configs, quiet=as_json)
    else:
        refuse_existing(out)
        if chosen is None:
            group = results.run_one(configs[0], out, quiet=as_json)
        else:
            group = results.run_group(configs[0].algorithm, configs, out, quiet=as_json)
    if as_json:
        print(json.dumps(group.summaries[0] if chosen is None else group.to_json(), indent=2))
    else:
        results.print_runs(group)
    sys.exit(exit_code(group.summaries))


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="WHAT", hidden=True)],
    plugin: Plugins = None,
) -> None:
    """List what there is to choose from, a line each.

    WHAT is algorithms, datasets, models, partitions, engines, availabilities, samplers, faults,
    trackers, or settings (of gcfed run).
    """
    if what == "settings":
        console.table(("setting", "default", "what it says"), describe())
    elif what == "models":
        costs = ("parameters", "forward MFLOP")  # of CIFAR-10's images
        console.table(("model", *costs, "what it is", "hyper-parameters"), results.model_rows())
    elif what in REGISTRIES:
        registry = REGISTRIES[what]
        rows = [(name, registry.describe(name), registry.settable(name)) for name in registry]
        if what == "engines":
            rows.insert(0, ("auto", "The one that suits the device and the model; says which.", ""))
        console.table((registry.kind, "what it is", "hyper-parameters"), rows)
    else:
        raise unknown("list", what, [*REGISTRIES, "settings"])


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="RUN", hidden=True)],
    plugin: Plugins = None,
) -> None:
    """Show what came out of a run, or of several.

    RUN is a run directory, or a folder of them.
    """
    results.show(path)


@app.command()
def check(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", hidden=True)],
    plugin: Plugins = None,
) -> None:
    """Try the laws that every algorithm obeys on one of yours.

    ALGORITHM is my.py:MyAlgorithm, or a text like 'fedlc + gcfed'.  Every law that it breaks is
    named in a sentence, and the exit code is then 1.
    """
    broken = laws.check(_algorithm(algorithm))
    for sentence in broken:
        console.tell(f"- {sentence}")
    held = len(laws.LAWS) - len(broken)
    console.tell(f"{algorithm}: {held} of {len(laws.LAWS)} laws hold")
    sys.exit(1 if broken else 0)


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


def _algorithm(text: str) -> Algorithm:
    path, colon, name = text.rpartition(":")
    if text.endswith(".py"):
        raise InputError(f"name the class in {text} too: {text}:MyAlgorithm")
    if not colon or not path.endswith(".py"):
        return parse(text)
    module = load_plugin(path)
    classes = {
        n: c for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, Algorithm)
    }
    if name in vars(module) and name not in classes:
        raise InputError(f"{name} in {path} is no Algorithm: derive it from gcfed.Algorithm")
    if name not in classes:
        raise unknown(f"algorithm in {path}", name, classes)
    try:
        return classes[name]()
    except TypeError as error:
        raise InputError(f"{name} cannot be made without arguments: {error}") from None


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
