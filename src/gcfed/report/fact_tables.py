"""The tables of a report that are not made elsewhere: settings, costs, clients, environment."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gcfed.config.settings import Config
from gcfed.errors import InputError
from gcfed.results import directory
from gcfed.results.comparison import Comparison
from gcfed.results.cost_table import costs
from gcfed.results.groups import differing
from gcfed.results.outcomes import GroupResult, spread
from gcfed.results.run import Run
from gcfed.results.saved_model import num_outputs, read_about
from gcfed.results.tables import Entry, Section, Table

ENVIRONMENT = (
    *("gcfed", "commit", "torch", "numpy", "python", "platform", "processor"),
    *("device", "threads", "products", "engine", "engine_reason", "command"),
)
"""What a provenance says of where a run was made."""

LISTED = 5  # values of a setting, where runs have many
MB = 1e6

OF_CLIENTS = {
    "mean": "mean",
    "std": "deviation",
    "worst": "worst tenth",
    "local_gain": "gain of the round's clients",
    "end_gain": "gain of a last training",
}
"""What the probe ``clients`` says of all clients, and how a table calls it."""


def differences_table(found: Comparison) -> Table:
    """The settings in which groups differ; where nothing does, those that are not the default."""
    groups = [r.group for r in found.results]
    if differ := differing([each.settings for each in groups]):
        rows = [(g.name, *(_text(g.settings.get(key)) for key in differ)) for g in groups]
        return _table(("method", *differ), rows)
    return _table(("setting", "value", "default"), _changed(groups[0].runs[0].config))


def settings_table(runs: Sequence[Run]) -> Table:
    """Every setting, and the values that it has in these runs."""
    configs = [run.config.model_dump(mode="json") for run in runs]
    rows = [(key, _values(config[key] for config in configs)) for key in Config.model_fields]
    return _table(("setting", "value"), rows)


def environment_table(runs: Sequence[Run]) -> Table:
    """What runs were made with and on, and how many where they differ."""
    rows = [
        (key.replace("_", " "), _values(run.provenance.get(key) for run in runs))
        for key in ENVIRONMENT
    ]
    return _table(("what", "value"), rows)


def spent_table(found: Comparison) -> Table:
    """What the runs of each group sent, and how long a round took, as recorded."""
    columns = ("method", "up (MB a round)", "down (MB a round)", "in all (MB)", "seconds a round")
    blocks = tuple(
        Section(title, tuple(tuple(map(Entry, _spent(r))) for r in results))
        for title, results in found.blocks.items()
    )
    notes = ("by all clients of a round, as a mean over runs; seconds: the median of all rounds",)
    return Table(columns, blocks, notes)


def kept_tables(found: Comparison) -> tuple[dict[str, Table], list[str]]:
    """What algorithms send and keep with the model of each task, and why some are not counted.

    Tasks that cost the same share a table.
    """
    titles: dict[Counted, list[str]] = {}
    notes: list[str] = []
    for title, results in found.blocks.items():
        try:
            titles.setdefault(_counted(results), []).append(title)
        except InputError as error:
            notes.append(f"{title}: {error}" if title else str(error))
    tables: dict[str, Table] = {}
    for counted, some in titles.items():
        title = some[0] if len(some) == 1 else f"{some[0]}, and {len(some) - 1} more tasks"
        try:
            tables[title] = _count(counted)
        except InputError as error:
            notes.append(f"{title}: {error}" if title else str(error))
    return tables, notes


def clients_table(groups: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> Table | None:
    """How well the clients of each method are served at the end, by the probe ``clients``."""
    rows = []
    for label, runs in groups.items():
        ends = [{key: _last(run, f"clients.{key}") for key in OF_CLIENTS} for run in runs]
        means = [spread(end[key] for end in ends) for key in OF_CLIENTS]
        if means[0].mean is not None:
            rows.append((label, *(_percent(each.mean, each.std) for each in means)))
    columns = ("method", *(f"{name} (%)" for name in OF_CLIENTS.values()))
    return _table(columns, rows) if rows else None


class Counted(NamedTuple):
    """What the costs of algorithms depend on."""

    algorithms: tuple[str, ...]
    model: str
    shape: tuple[int, ...]
    num_classes: int
    clients: int
    cohort: int


def _counted(results: Sequence[GroupResult]) -> Counted:
    """What the costs of a task depend on, read from the model that a finished run has left."""
    runs = [run for r in results for run in r.group.runs]
    weights = [path for run in runs if (path := run.path / directory.WEIGHTS).is_file()]
    if not weights:
        raise InputError("what algorithms keep is counted once a run has finished")
    about, clients = read_about(weights[0]), runs[0].config.clients or 1
    algorithms = tuple(dict.fromkeys(r.group.settings["algorithm"] for r in results))
    shape, cohort = tuple(about["shape"]), min(runs[0].config.cohort, clients)
    return Counted(algorithms, about["model"], shape, num_outputs(about), clients, cohort)


@lru_cache
def _count(counted: Counted) -> Table:
    """A report that is served asks for the same costs again and again."""
    return costs(**counted._asdict()).table()


def _spent(r: GroupResult) -> tuple[str, ...]:
    runs = [run for run in r.group.runs if run.records]
    up, down, total = ([] for _ in range(3))
    for run in runs:
        sums = [sum(line[key] for line in run.records) for key in ("bytes_up", "bytes_down")]
        up.append(sums[0] / len(run.records))
        down.append(sums[1] / len(run.records))
        total.append(sum(sums))
    seconds = [timing["seconds"] for run in runs for timing in run.timings]
    pace = f"{statistics.median(seconds):.3g}" if seconds else "-"
    return (r.name, *(_megabytes(each) for each in (up, down, total)), pace)


def _megabytes(sizes: Sequence[float]) -> str:
    if not sizes:
        return "-"
    size = statistics.fmean(sizes) / MB
    return f"{size:,.1f}" if size >= 10 else f"{size:.3g}"


def _changed(config: Config) -> list[tuple[str, str, str]]:
    """The settings that are not the default."""
    values = config.model_dump(mode="json")
    defaults = {key: known.default for key, known in Config.model_fields.items()}
    return [
        (key, _text(value), _text(defaults[key]))
        for key, value in values.items()
        if _text(value) != _text(defaults[key])
    ]


def _last(run: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((line[name] for line in reversed(run) if line.get(name) is not None), None)


def _percent(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "-"
    return f"{100 * mean:.2f}" + ("" if std is None else f" ({100 * std:.2f})")


def _values(values: Iterable[Any]) -> str:
    """The values that there are, and where there are several, how often each."""
    counts = Counter(map(_text, values))
    if len(counts) == 1:
        return next(iter(counts))
    listed = [f"{text} ({count})" for text, count in counts.most_common(LISTED)]
    more = len(counts) - len(listed)
    return "; ".join([*listed, *([f"and {more} more"] if more else [])])


def _text(value: Any) -> str:
    """A value as a table shows it."""
    match value:
        case None:
            return "-"
        case str():
            return value
        case [*words] if all(isinstance(word, str) for word in words):
            return " ".join(words) or "-"
        case _:
            return json.dumps(value)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    return Table(tuple(columns), (Section("", tuple(tuple(map(Entry, row)) for row in rows)),))
