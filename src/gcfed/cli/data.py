"""Commands about data: what there is, who holds what."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcfed.cli import console, describe
from gcfed.cli.options import Plugins
from gcfed.data import DATASETS, PARTITIONS, Dataset, Partition, data_dir as folder_of_data
from gcfed.data.catalog import PUBLICATIONS
from gcfed.data.divide import divide
from gcfed.data.fetch import FileStatus, check as check_files, fetch as fetch_files, info
from gcfed.data.statistics import PartitionStatistics, partition_statistics
from gcfed.errors import InputError, unknown
from gcfed.experiments.config import Config, make
from gcfed.experiments.experiment import read_dataset
from gcfed.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTED, DRAWN = 10, 50
FORMATS, KINDS = (".png", ".pdf", ".svg"), ("bubble", "stack")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Data sets and partitions.")

DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder of data; GCFED_DATA, or a cache of yours."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of --out.")]


@app.callback()
def _data() -> None:
    """Data sets and partitions."""


@app.command("list")
def list_(data_dir: DataDir = None, plugin: Plugins = None) -> None:
    """List the data sets, and which are here."""
    root = folder_of_data(data_dir)
    rows = [describe.dataset_row(info(name, root)) for name in DATASETS]
    console.table(("data set", "download", "where", "what it is"), rows)
    console.tell(f"the folder of data is {root}")


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", hidden=True)],
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Download data sets, and verify them.

    NAME is one that 'gcfed data list' shows; several may be given.  A download that was cut goes on
    where it stopped.
    """
    root, wrong = folder_of_data(data_dir), []
    for name in list(map(_name, names)):
        if name not in PUBLICATIONS:
            console.tell(f"{name}: there is nothing to fetch")
            continue
        fetch_files(name, root)
        found = check_files(name, root)
        console.tell(f"{name}: {_tally(found)} in {root}")
        wrong += [name] if _is_bad(found) else []
    if wrong:
        console.fail(f"some files are not the published ones: gcfed data check {' '.join(wrong)}")
        raise typer.Exit(1)


@app.command()
def check(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", hidden=True)],
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Compare data sets with what was published.

    NAME is one that 'gcfed data list' shows; several may be given.  If a file is missing or
    different, the exit code is 1.
    """
    root, found = folder_of_data(data_dir), []
    for name in list(map(_name, names)):
        if name in PUBLICATIONS:
            found += check_files(name, root)
        else:
            console.tell(f"{name}: there are no files to check")
    if found:
        rows = [(f.file, f.status, "-" if f.path is None else str(f.path)) for f in found]
        console.table(("file", "status", "where"), rows)
    for status in Counter(f.status for f in found):
        console.tell(f"{status}: {describe.STATUSES[status]}")
    if _is_bad(found):
        raise typer.Exit(1)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", hidden=True)],
    out: Annotated[
        Path | None, typer.Option(help="Draw some images of every class to this .png.")
    ] = None,
    per_class: Annotated[
        int | None, typer.Option(help="Images of a class; 8, of many classes 4.")
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Show what a data set holds.

    Examples, their shape, classes, and how many there are of each; with --out, some images.  NAME
    may have arguments, such as "emnist(split='letters')".  What is missing is fetched.
    """
    _check_out(out, force)
    _check_positive("--per-class", per_class)
    if per_class is not None and out is None:
        raise InputError("--per-class goes with --out")
    dataset = _read(name, data_dir)
    console.table(("data set", DATASETS.canonical(name)), describe.dataset_facts(dataset))
    if dataset.has_classes:
        console.tell()
        columns = ("label", "class", "train", "test", "train examples")
        console.table(columns, describe.label_histogram(dataset))
    if out is not None:
        from gcfed.data.gallery import draw_gallery  # matplotlib takes a second to import

        _save(draw_gallery(dataset, per_class), out)


@app.command()
def partition(
    dataset: Annotated[
        str, typer.Option(help="What to divide; fashion10k.", show_default=False)
    ] = "fashion10k",
    partition: Annotated[
        str | None, typer.Option(help="How, such as 'shards(per_client=2)'; dirichlet.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Of a Dirichlet partition; small is skewed.")
    ] = None,
    alphas: Annotated[
        str | None, typer.Option(metavar="0.1,1,...", help="Several, side by side.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; 100, or as many as the data has.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Draws the partition of a run of this seed; 0.", show_default=False)
    ] = 0,
    first: Annotated[
        int | None, typer.Option(help=f"Clients to list and to draw; {LISTED} and {DRAWN}.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw who holds what to this .png.")] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="bubble|stack", help="What to draw; bubble.")
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Divide a data set among clients.

    Prints who holds what, and how far clients are from the whole; with --out, draws it.  The figure
    of the paper: gcfed data partition --alphas 0.05,0.1,1,1000 --clients 10 --out figure.png
    """
    _check_positive("--first", first)
    _check_out(out, force)
    _check_kind(kind, out)
    given = {"dataset": dataset, "partition": partition, "clients": clients, "seed": seed}
    configs = _configs(given, alpha, alphas)
    held = _read(dataset, data_dir)
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
        _save(figure, out, quiet=as_json)


def _configs(
    given: Mapping[str, Any], alpha: float | None, alphas: str | None
) -> dict[str, Config]:
    """What to draw, by title; as a run would read it."""
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


def _read(text: str, data_dir: Path | None) -> Dataset:
    return read_dataset(text, None if data_dir is None else str(data_dir))


def _json(config: Config, skew: PartitionStatistics, first: int) -> dict[str, Any]:
    return {
        "dataset": DATASETS.canonical(config.dataset),
        "partition": PARTITIONS.canonical(config.partition),
        "seed": config.seed,
        **skew.to_json(),
        "first": [describe.client_json(client) for client in skew.first(first)],
    }


def _print_one(config: Config, held: Dataset, skew: PartitionStatistics, first: int) -> None:
    console.table(("partition", PARTITIONS.canonical(config.partition)), skew.rows())
    console.tell()
    rows = [describe.client_row(held, client) for client in skew.first(first)]
    console.table(("client", "examples", "classes", "distance", "examples by class"), rows)
    if (more := len(skew.sizes) - len(rows)) > 0:
        console.tell(f"and {more:,} more clients (--first {len(skew.sizes)})")


def _draw(
    configs: Mapping[str, Config],
    drawn: Mapping[str, Partition],
    held: Dataset,
    kind: str,
    first: int,
) -> "Figure":
    from gcfed.data.partition_plot import draw_partition, draw_partitions

    options: dict[str, Any] = {"kind": kind, "max_clients": first, "class_names": held.class_names}
    if list(drawn) == [""]:
        title = f"{configs[''].dataset}: {configs[''].partition}"
        return draw_partition(drawn[""], held.pool, title=title, **options)
    titled = {rf"$\alpha$ = {alpha}": p for alpha, p in drawn.items()}
    return draw_partitions(titled, held.pool, **options)


def _name(text: str) -> str:
    """The data set that is meant, of whose arguments files know nothing."""
    name = text.partition("(")[0].strip()
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return name


def _tally(found: list[FileStatus]) -> str:
    counts = Counter(f.status for f in found)
    return ", ".join(f"{n} files {status}" for status, n in counts.items())


def _is_bad(found: list[FileStatus]) -> bool:
    return any(f.status in ("missing", "different") for f in found)


def _check_out(out: Path | None, force: bool) -> None:
    """Refuse a file that cannot be meant, before the work is done."""
    if out is None:
        if force:
            raise InputError("--force goes with --out")
        return
    if out.suffix.lower() not in FORMATS:
        raise InputError(f"--out ends in one of {', '.join(FORMATS)}; not {out}")
    if out.is_dir() or (out.exists() and not force):
        raise InputError(f"{out} is there already: name another file, or give --force")


def _check_kind(kind: str | None, out: Path | None) -> None:
    if kind is not None and out is None:
        raise InputError("--kind goes with --out")
    if kind not in (None, *KINDS):
        raise unknown("kind of picture", str(kind), KINDS)


def _check_positive(option: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"{option} is at least 1; not {number}")


def _save(figure: "Figure", out: Path, quiet: bool = False) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)

    def save(path: Path) -> None:
        figure.savefig(path, format=out.suffix[1:].lower(), dpi=150, bbox_inches="tight")

    write_atomically(out, save)
    if not quiet:
        console.tell(f"\nplot  {out}")
