"""Commands of the command line; each asks the library and prints what it says."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gcfed import laws
from gcfed.algorithm import Algorithm
from gcfed.algorithms import ALGORITHMS
from gcfed.cli import console, data, results
from gcfed.cli.options import Plugins
from gcfed.data import DATASETS, PARTITIONS
from gcfed.engines import ENGINES
from gcfed.errors import InputError, unknown
from gcfed.experiments import demo as demonstration
from gcfed.experiments.config import Config, assignment, make, read
from gcfed.experiments.directory import unused
from gcfed.experiments.plugins import load_installed, load_plugin
from gcfed.models import MODELS
from gcfed.registry import Registry
from gcfed.spec import parse

DIVERGED = 3
INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning under heterogeneous data and partial participation.",
)
app.add_typer(data.app, name="data")

REGISTRIES: dict[str, Registry[Any]] = {
    "algorithms": ALGORITHMS,
    "datasets": DATASETS,
    "models": MODELS,
    "partitions": PARTITIONS,
    "engines": ENGINES,
}


def main() -> None:
    """Run a command; what is wrong with the input is one message and exit code 2."""
    console.show_warnings()
    try:
        load_installed()
        app()
    except InputError as error:
        console.err.print("[red]error:[/] ", end="")
        print(error, file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        console.err.print("[red]error:[/] ", end="")
        print(f"{error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder to make; runs/demo if not given.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = demonstration.ROUNDS,
    plugin: Plugins = None,
) -> None:
    """FedAvg against GC-Fed on the embedded data: a table, a plot, and where the files are."""
    folder = out or unused(Path("runs"), "demo")
    groups = []
    for name, configs in demonstration.configs(rounds).items():
        paths = [folder / name / f"seed-{config.seed}" for config in configs]
        groups.append(results.run_group(name, configs, paths, quiet=False))
    results.print_comparison(groups)
    plot = results.save_curves(groups, folder, demonstration.TITLE)
    console.out.print(f"\nplot   {plot}\nruns   {folder}/<algorithm>/seed-<n>", soft_wrap=True)
    _exit([summary for group in groups for summary in group.summaries])


@app.command()
def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting; gcfed list settings."),
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Such as 'fedlc + gcfed'.")] = None,
    dataset: Annotated[str | None, typer.Option(help="What to train on.")] = None,
    model: Annotated[str | None, typer.Option(help="What to train.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients in a round.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Of a Dirichlet partition.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draws all that is random.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several runs: 0,1,2.")] = None,
    engine: Annotated[str | None, typer.Option(help="How a cohort is trained.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to make; under runs/ if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary alone.")] = False,
    plugin: Plugins = None,
) -> None:
    """Train, and write a run directory: one for each seed."""
    flags = {
        "algorithm": algorithm,
        "dataset": dataset,
        "model": model,
        "clients": clients,
        "cohort": cohort,
        "alpha": alpha,
        "rounds": rounds,
        "seed": seed,
        "engine": engine,
        "device": device,
    }
    values: dict[str, Any] = {} if config is None else read(config)
    values |= {key: value for key, value in flags.items() if value is not None}
    values |= dict(assignment(text) for text in set_ or [])
    if plugin:
        values["plugins"] = [*values.get("plugins", []), *map(str, plugin)]
    where = "command line" if config is None else str(config)
    configs = [make(values | chosen, where) for chosen in _seeds(seeds, seed)]
    folder = out or unused(Path("runs"), results.slug(configs[0]))
    paths = [folder] if seeds is None else [folder / f"seed-{c.seed}" for c in configs]
    group = results.run_group(configs[0].algorithm, configs, paths, quiet=as_json)
    if as_json:
        print(json.dumps(group.summaries[0] if seeds is None else group.to_json(), indent=2))
    else:
        results.print_runs(group)
    _exit(group.summaries)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help=f"{', '.join(REGISTRIES)} or settings.")],
    plugin: Plugins = None,
) -> None:
    """What there is to choose from, a line each."""
    if what == "settings":
        fields = Config.model_fields.items()
        rows = [(n, json.dumps(f.default), f.description or "") for n, f in fields]
        console.table(("setting", "default", ""), rows)
    elif what == "models":
        console.table(("model", "parameters", "forward MFLOP", ""), results.model_rows())
    elif what in REGISTRIES:
        registry = REGISTRIES[what]
        console.table((registry.kind, ""), [(name, registry.describe(name)) for name in registry])
    else:
        raise unknown("list", what, [*REGISTRIES, "settings"])


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or a folder of them.")
    ],
    plugin: Plugins = None,
) -> None:
    """What came out of a run, or of several."""
    results.show(path)


@app.command()
def check(
    algorithm: Annotated[
        str, typer.Argument(help="my.py:MyAlgorithm, or a text like 'fedlc+gcfed'.")
    ],
    plugin: Plugins = None,
) -> None:
    """Try the laws that every algorithm obeys on one, and say in words which it breaks."""
    broken = laws.check(_algorithm(algorithm))
    for sentence in broken:
        console.out.print(f"- {sentence}", markup=False, soft_wrap=True)
    held = len(laws.LAWS) - len(broken)
    console.out.print(f"{algorithm}: {held} of {len(laws.LAWS)} laws hold", markup=False)
    sys.exit(1 if broken else 0)


def _algorithm(text: str) -> Algorithm:
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        return parse(text)
    module = load_plugin(path)
    classes = {n: c for n, c in vars(module).items() if isinstance(c, type)}
    if name not in classes:
        raise unknown(f"class in {path}", name, classes)
    cls = classes[name]
    if not issubclass(cls, Algorithm):
        raise InputError(f"{name} in {path} is no Algorithm: derive it from gcfed.Algorithm")
    try:
        return cls()
    except TypeError as error:
        raise InputError(f"{name} cannot be made without arguments: {error}") from None


def _seeds(seeds: str | None, seed: int | None) -> list[dict[str, int]]:
    if seeds is None:
        return [{}]
    if seed is not None:
        raise InputError("give --seed or --seeds, not both")
    try:
        numbers = [int(part) for part in seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds takes numbers such as 0,1,2; not {seeds!r}") from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--seeds names a seed twice: {seeds}")
    return [{"seed": number} for number in numbers]


def _exit(summaries: list[dict[str, Any]]) -> None:
    statuses = {summary["status"] for summary in summaries}
    sys.exit(DIVERGED if "failed" in statuses else INTERRUPTED if "stopped" in statuses else 0)
