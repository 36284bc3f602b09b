"""What stands below the table of a comparison: what its numbers are."""

from collections.abc import Sequence
from typing import Protocol

from gcfed.core.metrics import Scale
from gcfed.results.outcomes import GroupResult
from gcfed.results.summary import SMOOTHED, say_averaged, say_chosen_on


class Compared(Protocol):
    """A comparison, as far as a legend tells of it."""

    @property
    def results(self) -> Sequence[GroupResult]: ...

    @property
    def metric(self) -> Scale: ...

    @property
    def target(self) -> float | None: ...

    @property
    def baseline(self) -> str | None: ...


def legend(found: Compared) -> list[str]:
    """Below a table of groups."""
    configs = [run.config for r in found.results for run in r.group.runs]
    lines = [
        f"{found.metric}: mean (standard deviation) over seeds; "
        f"final: of {_averaged(found)}; {say_chosen_on(configs)}"
    ]
    if found.target is not None:
        lines.append(
            f"to the target: until the mean of the last {SMOOTHED} evaluations reaches it; "
            "MB sent up and down, by all clients"
        )
    if found.baseline is not None:
        points = " in points" if found.metric.percent else ""
        lines.append(
            f"difference of final values{points}, paired by seed; p of a two-sided "
            "paired t-test, not adjusted for the number of methods"
        )
    return lines


def pivot_legend(found: Compared) -> list[str]:
    """Below a table of methods by tasks."""
    percent = " in %" if found.metric.percent else ""
    lines = [
        f"final values of {found.metric}{percent}: mean (standard deviation) over seeds, "
        f"each the mean of {_averaged(found)}"
    ]
    if found.target is not None or found.baseline is not None:
        lines.append("a pivot has final values alone: the table without it has the rest")
    return lines


def _averaged(found: Compared) -> str:
    """Which evaluations the final values are the means of."""
    runs = [o.run for r in found.results for o in r.outcomes if o.status == "finished"]
    return say_averaged(run.num_evaluations(found.metric.name) for run in runs)
