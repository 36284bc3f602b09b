"""What a reader of a comparison has to know besides its numbers."""

from collections.abc import Sequence
from typing import Any

from gcfed.core.metrics import Scale
from gcfed.results.captions import partition_caption
from gcfed.results.groups import INCIDENTAL, Group, differing, tasks
from gcfed.results.outcomes import GroupResult
from gcfed.results.run import Run


def settings_notes(groups: Sequence[Group]) -> list[str]:
    """In what the groups differ, besides their algorithms."""
    differ = differing([g.settings for g in groups])
    notes = []
    if len(groups) > 1:
        words = ["algorithm"] if "algorithm" in differ else []
        others = {key: values for key, values in differ.items() if key != "algorithm"}
        words += [f"{key} ({_listed(key, values)})" for key, values in others.items()]
        notes.append(f"the groups differ in: {'; '.join(words)}")
    for title, compared in tasks(groups).items():
        if len({g.seeds for g in compared}) > 1:
            each = "; ".join(f"{g.name}: {', '.join(map(str, g.seeds))}" for g in compared)
            place = f" ({title})" if title else ""
            notes.append(f"the groups have different seeds{place}: {each}")
    for key in INCIDENTAL:
        values = {str(getattr(run.config, key)) for g in groups for run in g.runs}
        if len(values) > 1:
            notes.append(f"the runs differ in {key}: {', '.join(sorted(values))}")
    return notes


def _listed(key: str, values: Sequence[Any]) -> str:
    texts = map(str, values)
    return ", ".join(map(partition_caption, texts) if key == "partition" else texts)


def run_notes(results: Sequence[GroupResult], metric: Scale) -> list[str]:
    """Why runs have no final value, or count as failed."""
    lost = [(r, o) for r in results for o in r.outcomes if o.final is None]
    notes = [f"{r.name}, seed {o.seed}: {_status(o.run, metric)}" for r, o in lost]
    if len(results) > 1 and any(r.failed for r in results):
        notes.append("a method with a failed run has no rank, since its mean lacks the worst")
    return notes


def dropped_notes(results: Sequence[GroupResult]) -> list[str]:
    """How many updates that were not finite were left out, where that did not end a run."""
    found = []
    for r in results:
        counts = {run.config.seed: _dropped(run) for run in r.group.runs}
        if any(counts.values()):
            each = ", ".join(f"seed {seed}: {count}" for seed, count in counts.items() if count)
            found.append(f"{r.name}: updates that were not finite were left out ({each})")
    return found


def _dropped(run: Run) -> int:
    if run.config.on_nonfinite == "fail":
        return 0
    return sum(len(line.get("dropped", [])) for line in run.records)


def _status(run: Run, metric: Scale) -> str:
    done = f"{len(run.records)} of {run.config.rounds} rounds"
    if run.status == "failed":
        return f"failed after {done}: {run.summary.get('reason', 'no reason given')}"
    if run.status == "finished":
        return f"no round has a finite test {metric.name}"
    return f"{run.status} after {done}, and left out"
