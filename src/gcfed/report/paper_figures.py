"""The figures of a report as a paper prints them."""

from collections.abc import Iterator
from typing import Any

from gcfed.report.charts import probe_measures, round_measures
from gcfed.results.bands import DECILES, last_deciles
from gcfed.results.comparison import Comparison

OF_PROBES = ("drift.norm", "drift.pair_cosine", "cka.new", "participation.gap", "clients.worst")
"""What is drawn of each probe; ``gcfed compare --draw`` draws any other number."""


def paper_figures(found: Comparison) -> Iterator[tuple[str, Any]]:
    """A name and a matplotlib figure for all that rounds record, and some of what probes do.

    What was measured layer by layer is one figure with a panel for each layer.
    """
    panels, metrics = found.panels(), found.results[0].group.runs[0].metrics
    names = [measure.name for measure in round_measures(panels, metrics)]
    recorded = {".".join(each.name.split(".")[:2]) for each in probe_measures(panels)}
    names += [name for name in OF_PROBES if name in recorded]
    runs = (run for groups in panels.values() for lines in groups.values() for run in lines)
    if any(map(last_deciles, runs)):
        names.append(DECILES)
    for name in names:
        yield name, found.plot(name)
