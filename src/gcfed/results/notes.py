"""What a reader of a comparison has to know besides its numbers."""

from collections.abc import Sequence

from gcfed.core.metrics import Scale
from gcfed.results.groups import INCIDENTAL, Group, differing
from gcfed.results.outcomes import GroupResult
from gcfed.results.run import Run


def settings_notes(groups: Sequence[Group]) -> list[str]:
    """In what the groups differ, besides their algorithms."""
    differ = differing([g.settings for g in groups])
    notes = []
    if len(groups) > 1:
        words = ["algorithm"] if "algorithm" in differ else []
        others = {key: values for key, values in differ.items() if key != "algorithm"}
        words += [f"{key} ({', '.join(map(str, values))})" for key, values in others.items()]
        notes.append(f"the groups differ in: {'; '.join(words)}")
    if len({g.seeds for g in groups}) > 1:
        each = "; ".join(f"{g.name}: {', '.join(map(str, g.seeds))}" for g in groups)
        notes.append(f"the groups have different seeds: {each}")
    for key in INCIDENTAL:
        values = {str(getattr(run.config, key)) for g in groups for run in g.runs}
        if len(values) > 1:
            notes.append(f"the runs differ in {key}: {', '.join(sorted(values))}")
    return notes


def run_notes(results: Sequence[GroupResult], metric: Scale) -> list[str]:
    """Why runs have no final value, or count as failed."""
    lost = [(r, o) for r in results for o in r.outcomes if o.final is None]
    return [f"{r.name}, seed {o.seed}: {_status(o.run, metric)}" for r, o in lost]


def _status(run: Run, metric: Scale) -> str:
    summary, done = run.summary, f"{len(run.records)} of {run.config.rounds} rounds"
    if summary["status"] == "failed":
        return f"failed after {done}: {summary.get('reason', 'no reason given')}"
    if summary["status"] == "finished":
        return f"no round has a finite test {metric.name}"
    return f"{summary['status']} after {done}, and left out"
