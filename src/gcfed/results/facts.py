"""Runs and rounds in words, for tables, notebooks and progress bars."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gcfed.core.metrics import Scale
from gcfed.results import directory
from gcfed.results.privacy import Spent
from gcfed.results.seal import broken_seals, is_sealed, unsealed_files
from gcfed.simulation.lines import Record

if TYPE_CHECKING:
    from gcfed.results.run import Run


def facts(run: "Run") -> list[tuple[str, str]]:
    """The name and the value of what there is to say of a run as a whole."""
    config, summary, made, metric = run.config, run.summary, run.provenance, run.metric
    test = f"test_{metric.name}"
    probes = f"{', '.join(config.probes)}: {len(run.probes)} rows in {directory.PROBES}"
    return [
        ("algorithm", config.algorithm),
        ("data", config.dataset),
        ("partition", config.partition),
        ("clients", f"{config.cohort} of {config.clients} a round"),
        ("model", config.model),
        ("loss", config.loss),
        ("seed", str(config.seed)),
        ("status", status_of(run)),
        ("rounds", f"{len(run.records)} of {config.rounds}"),
        (f"final {metric.name}", metric.quantity(summary.get(test))),
        (f"best {metric.name}", metric.quantity(summary.get(f"{test}_best"))),
        *([("privacy", _privacy(run))] if "epsilon" in summary else []),
        *([("probes", probes)] if config.probes else []),
        ("engine", f"{made['engine']} on {made['device']} ({made['engine_reason']})"),
        ("precision", config.precision),
        ("made with", f"gcfed {made['gcfed']} ({made['commit']}), torch {made['torch']}"),
        ("seconds a round", _pace(run)),
        *([("time of probes", shares)] if (shares := probe_shares(run)) else []),
        ("seal", _seal(run)),
    ]


def round_columns(metrics: Iterable[str]) -> tuple[str, ...]:
    """What a table of rounds shows of a run that has these metrics."""
    return ("round", *(f"test_{name}" for name in metrics), "train_loss", "update_norm")


def last_rounds(records: Sequence[Record], columns: Sequence[str]) -> list[list[str]]:
    """A row for each of the last five rounds; people count them from 1."""
    shown = [{**line, "round": line["round"] + 1} for line in records[-5:]]
    return [[_number(line[column]) for column in columns] for line in shown]


def round_note(metric: Scale, lines: Iterable[Record]) -> str:
    """What a progress bar says of a round of one or several runs: what they score in it."""
    found = [line[f"test_{metric.name}"] for line in lines]
    shown = " ".join(metric.text(value) for value in found if value is not None)
    return f"{metric.name} {shown}{' %' if metric.percent else ''}" if shown else ""


def status_of(run: "Run") -> str:
    """Whether a run finished, and if not, where and why it ended."""
    if "reason" not in run.summary:
        return run.status
    done = run.summary["round"]
    where = f"after round {done}" if run.status == "stopped" else f"in round {done + 1}"
    return f"{run.status} {where}: {run.summary['reason']}"


def probe_shares(run: "Run") -> str:
    """The share of the run's time that each probe took, in words; nothing if there are none."""
    total = sum(timing["seconds"] for timing in run.timings) or math.inf
    spent: dict[str, float] = {}
    for timing in run.timings:
        for name, seconds in timing["probes"].items():
            spent[name] = spent.get(name, 0) + seconds
    return ", ".join(f"{name} {100 * each / total:.2g} %" for name, each in spent.items())


def _privacy(run: "Run") -> str:
    return f"{Spent(run.summary['epsilon'], run.summary['delta'])} spent"


def _seal(run: "Run") -> str:
    """Whether the files of a run are those that it ended with."""
    if changes := broken_seals(run):
        return "; ".join(changes)
    if not is_sealed(run):
        return "not sealed"
    return "; ".join(["holds", *(f"{name} is not sealed" for name in unsealed_files(run))])


def _pace(run: "Run") -> str:
    seconds = [timing["seconds"] for timing in run.timings]
    return f"{statistics.median(seconds):.3g} (median)" if seconds else "-"


def _number(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"
