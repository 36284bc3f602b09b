"""The command that divides a data set among clients."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcfed.cli import console
from gcfed.cli.completion import names_of
from gcfed.cli.options import (
    PICTURE,
    DataDir,
    Force,
    Plugins,
    alpha_option,
    check_positive,
    clients_option,
    path_option,
    setting_option,
)
from gcfed.cli.pictures import check_out, save
from gcfed.errors import InputError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gcfed.config.settings import Config
    from gcfed.data import Dataset, Partition
    from gcfed.data.partitions.skew import PartitionStatistics

LISTED, DRAWN = 10, 50
KINDS = ("bubble", "stack")
DIVIDED = "What is divided, and how"


def partition(
    dataset: Annotated[
        str,
        typer.Option(
            help="What to divide.", rich_help_panel=DIVIDED, autocompletion=names_of("datasets")
        ),
    ] = "fashion10k",
    partition: Annotated[
        str | None,
        setting_option(DIVIDED, "How, such as 'shards(per_client=2)'.", "dirichlet", "partitions"),
    ] = None,
    alpha: Annotated[float | None, alpha_option(DIVIDED)] = None,
    alphas: Annotated[
        str | None,
        typer.Option(metavar="0.1,1,...", help="Several, side by side.", rich_help_panel=DIVIDED),
    ] = None,
    clients: Annotated[int | None, clients_option(DIVIDED)] = None,
    seed: Annotated[
        int,
        typer.Option(help="Draws the partition of a run of this seed.", rich_help_panel=DIVIDED),
    ] = 0,
    first: Annotated[
        int | None,
        typer.Option(help="Clients to list and to draw.", show_default=f"{LISTED} and {DRAWN}"),
    ] = None,
    out: Annotated[
        Path | None,
        path_option(help="Draw who holds what to this .png.", rich_help_panel=PICTURE),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="bubble|stack",
            help="What to draw.",
            show_default="bubble",
            rich_help_panel=PICTURE,
        ),
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Divide a data set among clients.

    Prints who holds what, and how far clients are from the whole; with --out, draws it.

    Example, the figure of the paper:

        gcfed data partition --alphas 0.05,0.1,1,1000 --clients 10 --out figure.png
    """
    from gcfed.cli.data import describe
    from gcfed.config.materials import partition_text, read_dataset
    from gcfed.data.partitions.skew import partition_statistics
    from gcfed.data.partitions.ways import divide

    check_positive("--first", first)
    check_out(out, force)
    _check_kind(kind, out)
    given = {"dataset": dataset, "partition": partition, "clients": clients, "seed": seed}
    configs = _configs(given, alpha, alphas)
    held = read_dataset(dataset, data_dir)
    configs = {
        title: c.model_copy(update={"partition": partition_text(c, held)})
        for title, c in configs.items()
    }
    drawn = {t: divide(c.partition, held.pool, clients, seed) for t, c in configs.items()}
    skews = {title: partition_statistics(p, held.pool) for title, p in drawn.items()}
    if as_json:
        rows = [_json(configs[t], s, first or LISTED) for t, s in skews.items()]
        print(json.dumps(rows[0] if alphas is None else rows, indent=2))
    elif alphas is None:
        _print_one(next(iter(configs.values())), held, skews[""], first or LISTED)
    else:
        console.table(describe.SKEW, [describe.skew_row(t, s) for t, s in skews.items()])
    if out is not None:
        figure = _draw(configs, drawn, held, kind or "bubble", first or DRAWN)
        save(figure, out)
        if not as_json:
            console.tell(f"\nplot  {out}")


def _configs(
    given: Mapping[str, Any], alpha: float | None, alphas: str | None
) -> dict[str, "Config"]:
    """What to draw, by title; as a run would read it."""
    from gcfed.config.settings import make

    values = {k: v for k, v in given.items() if v is not None} | {"cohort": 1}
    if alphas is None:
        one = {} if alpha is None else {"alpha": alpha}
        return {"": make(values | one, "the command line")}
    if alpha is not None:
        raise InputError("give --alpha or --alphas, not both")
    try:
        numbers = [float(part) for part in alphas.split(",")]
    except ValueError:
        raise InputError(f"--alphas takes numbers such as 0.1,1,10; not {alphas!r}") from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--alphas names a number twice: {alphas}")
    return {f"{a:g}": make(values | {"alpha": a}, "the command line") for a in numbers}


def _json(config: "Config", skew: "PartitionStatistics", first: int) -> dict[str, Any]:
    from gcfed.cli.data import describe
    from gcfed.data import DATASETS, PARTITIONS

    return {
        "dataset": DATASETS.canonical(config.dataset),
        "partition": PARTITIONS.canonical(config.partition),
        "seed": config.seed,
        **skew.to_json(),
        "first": [describe.client_json(client) for client in skew.first(first)],
    }


def _print_one(config: "Config", held: "Dataset", skew: "PartitionStatistics", first: int) -> None:
    from gcfed.cli.data import describe
    from gcfed.data import PARTITIONS

    console.table(("partition", PARTITIONS.canonical(config.partition)), skew.rows())
    console.tell()
    rows = [describe.client_row(held, client) for client in skew.first(first)]
    console.table(("client", "examples", "classes", "distance", "examples by class"), rows)
    if (more := len(skew.sizes) - len(rows)) > 0:
        console.tell(f"and {more:,} more clients (--first {len(skew.sizes)})")


def _draw(
    configs: "Mapping[str, Config]",
    drawn: "Mapping[str, Partition]",
    held: "Dataset",
    kind: str,
    first: int,
) -> "Figure":
    from gcfed.data.partitions.picture import draw_partition, draw_partitions

    options: dict[str, Any] = {"kind": kind, "max_clients": first, "class_names": held.class_names}
    if list(drawn) == [""]:
        title = f"{configs[''].dataset}: {configs[''].partition}"
        return draw_partition(drawn[""], held.pool, title=title, **options)
    titled = {rf"$\alpha$ = {alpha}": p for alpha, p in drawn.items()}
    return draw_partitions(titled, held.pool, **options)


def _check_kind(kind: str | None, out: Path | None) -> None:
    if kind is not None and out is None:
        raise InputError("--kind goes with --out")
    if kind not in (None, *KINDS):
        raise unknown("kind of picture", str(kind), KINDS)
