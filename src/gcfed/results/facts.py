"""Runs and rounds in words, for tables, notebooks and progress bars."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gcfed.results.summary import SMOOTHED
from gcfed.simulation.evaluation import Record

if TYPE_CHECKING:
    from gcfed.results.run import Run

FINAL = f"final: the mean of the last {SMOOTHED} evaluations"

ROUND_COLUMNS = ("round", "test_accuracy", "test_loss", "train_loss", "update_norm")


def facts(run: "Run") -> list[tuple[str, str]]:
    """The name and the value of what there is to say of a run as a whole."""
    config, summary, made = run.config, run.summary, run.provenance
    return [
        ("algorithm", config.algorithm),
        ("data", config.dataset),
        ("partition", config.partition),
        ("clients", f"{config.cohort} of {config.clients} a round"),
        ("model", config.model),
        ("seed", str(config.seed)),
        ("status", status_of(summary)),
        ("rounds", f"{len(run.records)} of {config.rounds}"),
        ("final accuracy", f"{percent(summary.get('test_accuracy'))} % ({FINAL[7:]})"),
        ("best accuracy", f"{percent(summary.get('test_accuracy_best'))} %"),
        ("engine", f"{made['engine']} on {made['device']} ({made['engine_reason']})"),
        ("precision", config.precision),
        ("made with", f"gcfed {made['gcfed']} ({made['commit']}), torch {made['torch']}"),
        ("seconds a round", _pace(run)),
    ]


def last_rounds(records: Sequence[Record]) -> list[list[str]]:
    """A row for each of the last five rounds, below `ROUND_COLUMNS`."""
    return [[_number(line[column]) for column in ROUND_COLUMNS] for line in records[-5:]]


def round_note(lines: Iterable[Record]) -> str:
    """What a progress bar says of a round of one or several runs: their test accuracies."""
    scores = [line["test_accuracy"] for line in lines]
    shown = " ".join(f"{100 * score:.1f}" for score in scores if score is not None)
    return f"accuracy {shown} %" if shown else ""


def status_of(summary: Mapping[str, Any]) -> str:
    """Whether a run finished, and if not, where and why it ended."""
    if "reason" not in summary:
        return str(summary["status"])
    return f"{summary['status']} in round {summary['round']}: {summary['reason']}"


def percent(mean: float | None, std: float | None = None) -> str:
    """A fraction in percent, and its deviation where there is one."""
    if mean is None:
        return "-"
    return f"{100 * mean:.2f}" + ("" if std is None else f" ± {100 * std:.2f}")


def _pace(run: "Run") -> str:
    seconds = [timing["seconds"] for timing in run.timings]
    return f"{statistics.median(seconds):.3g} (median)" if seconds else "-"


def _number(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"
