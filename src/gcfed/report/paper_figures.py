"""The figures of a report as a paper prints them."""

from collections.abc import Iterator
from typing import Any

from gcfed.errors import InputError
from gcfed.report.charts import probe_measures, round_measures
from gcfed.results.bands import DECILES
from gcfed.results.comparison import Comparison


def paper_figures(found: Comparison) -> Iterator[tuple[str, Any]]:
    """A name and a matplotlib figure for every number that was recorded.

    One that was measured layer by layer is a single figure with a panel for each layer.
    """
    panels, metrics = found.panels(), found.results[0].group.runs[0].metrics
    of_rounds = [measure.name for measure in round_measures(panels, metrics)]
    of_probes = [".".join(m.name.split(".")[:2]) for m in probe_measures(panels)]
    for name in dict.fromkeys([*of_rounds, *of_probes]):
        yield name, found.plot(name)
    try:
        yield DECILES, found.plot(DECILES)
    except InputError:  # the probe clients was not asked for
        return
