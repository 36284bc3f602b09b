"""Options that several commands have."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcfed.cli.completion import names_of
from gcfed.config.plugins import load_plugins
from gcfed.errors import InputError

if TYPE_CHECKING:
    from gcfed.results.run import Run

WHERE, PICTURE = "Where things are", "The picture"


def _load(paths: list[Path] | None) -> list[Path]:
    load_plugins(paths or [])
    return paths or []


def _path(text: str | Path) -> Path:
    """A path that was really given: the empty text of an unset variable is not this folder."""
    if not str(text).strip():
        raise typer.BadParameter("a path is empty: name a file or a folder, such as runs")
    return Path(text)


def path_option(*names: str, **options: Any) -> Any:
    """An option that takes a path."""
    return typer.Option(*names, **{"metavar": "PATH", "parser": _path, **options})


def path_argument(metavar: str) -> Any:
    """An argument that is a path."""
    return typer.Argument(metavar=metavar, hidden=True, parser=_path)


def setting_option(panel: str, help: str, default: str, names: str | None = None) -> Any:
    """An option for a setting, with its default; a shell completes ``names`` of this kind."""
    complete = None if names is None else names_of(names)
    return typer.Option(
        help=help, show_default=default, rich_help_panel=panel, autocompletion=complete
    )


def alpha_option(panel: str) -> Any:
    return setting_option(panel, "Of a Dirichlet partition; small is skewed.", "0.1")


def clients_option(panel: str) -> Any:
    return setting_option(panel, "Number of clients.", "100, or as many as the data has")


Plugins = Annotated[
    list[Path] | None,
    path_option(
        "--plugin",
        metavar="FILE.py",
        is_eager=True,
        callback=_load,
        help="A Python file that registers algorithms, models, data sets ...; may be repeated.",
    ),
]
StoreOption = Annotated[
    Path, path_option(help="Where runs are kept and found again.", rich_help_panel=WHERE)
]
DataDir = Annotated[
    Path | None,
    path_option(
        help="The folder of data.",
        show_default="GCFED_DATA, or a cache of yours",
        rich_help_panel=WHERE,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="cuda:0,cuda:1",
        help="A process for each; cpu,cpu shares the cores.",
        show_default="all GPUs, or the CPU",
    ),
]
PerDevice = Annotated[
    int, typer.Option(metavar="N", help="Cells that share each device, all at once.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the cells and what they cost; train nothing.")
]
RunPaths = Annotated[list[Path], path_argument("RUNS...")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the file of --out.", rich_help_panel=PICTURE)
]
DatasetName = Annotated[
    str, typer.Argument(metavar="NAME", hidden=True, autocompletion=names_of("datasets"))
]
DatasetNames = Annotated[
    list[str], typer.Argument(metavar="NAME...", hidden=True, autocompletion=names_of("datasets"))
]


def check_positive(option: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"{option} is at least 1; not {number}")


def changes_given(options: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """The settings that options and ``--set`` change; refused where the two contradict each other.

    An option that is None was not given.
    """
    from gcfed.data import PARTITIONS

    given = {key: value for key, value in options.items() if value is not None}
    assigned = _assigned(assignments)
    for key in given.keys() & assigned.keys():
        if given[key] != assigned[key]:
            option = f"--{key.replace('_', '-')} {given[key]}"
            raise InputError(
                f"{option} and --set {key}={assigned[key]} contradict each other: leave one out"
            )
    changes = {**assigned, **given}
    if changes.keys() >= {"alpha", "partition"}:
        alpha, partition = changes["alpha"], str(changes["partition"])
        if PARTITIONS.parse(partition).keywords.get("alpha", alpha) != alpha:
            both = f"alpha={alpha} and partition={partition}"
            raise InputError(f"{both} contradict each other: leave one out")
    return changes


def _assigned(assignments: Iterable[str]) -> dict[str, Any]:
    """What ``--set`` gives; refused where it gives a key twice, as two values."""
    from gcfed.config.toml import assignment

    found: dict[str, Any] = {}
    for key, value in map(assignment, assignments):
        if found.setdefault(key, value) != value:
            both = f"--set {key}={found[key]} and --set {key}={value}"
            raise InputError(f"{both} contradict each other: leave one out")
    return found


def trained_together(paths: Iterable[Path]) -> list[list["Run"]]:
    """The runs at some paths, each with those that are trained together with it, each set once."""
    from gcfed.results.finding import find_runs, no_runs

    sets: dict[Path, list[Run]] = {}
    for path in paths:
        runs = find_runs(path)
        if not runs:
            raise no_runs(path)
        for run in runs:
            together = run.together()
            sets.setdefault(together[0].path.resolve(), together)
    return list(sets.values())
