"""A run before it starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gcfed.analysis.probe import Measured, Observation, Probe, measure
from gcfed.config.fingerprint import Fingerprint
from gcfed.config.settings import Config
from gcfed.core.lazy import LazyInputs
from gcfed.core.metrics import Scale, as_metrics, named
from gcfed.core.server import Server
from gcfed.data import Dataset
from gcfed.data.partitions.skew import PartitionStatistics
from gcfed.simulation import lines
from gcfed.simulation.evaluation import TestSet
from gcfed.simulation.lines import Record
from gcfed.simulation.setup import Setup
from gcfed.simulation.side_stream import AT_ONCE, SideStream
from gcfed.simulation.snapshot import RoundResult


@dataclass(frozen=True)
class Experiment:
    """A run before it starts, and what it is judged by: the test set, and one for tuning.

    ``reason`` says why the algorithm is this one, where none was asked for.  ``measured`` has the
    names of the numbers that each probe gave so far.
    """

    config: Config
    setup: Setup
    tests: dict[str, TestSet]
    statistics: PartitionStatistics
    dataset: Dataset
    data: Fingerprint
    probes: dict[str, Probe]
    reason: str = ""
    measured: dict[str, list[str]] = field(default_factory=dict)

    def measure(self, received: Server, result: RoundResult) -> Measured:
        """What the probes measure of a round that began with ``received``."""
        seen = Observation(self.setup, received, result, self.tests["test"])
        return measure(self.probes, seen, self.measured)

    @cached_property
    def metrics(self) -> dict[str, Scale]:
        """What is measured, in order: what the run is judged by above all stands first."""
        found = as_metrics({**self.tests["test"].metrics, "loss": named("loss")})
        return {name: metric.scale(name) for name, metric in found.items()}

    @property
    def metric(self) -> Scale:
        """What rounds and runs are chosen by."""
        return next(iter(self.metrics.values()))

    def close(self) -> None:
        """End the processes that read examples, if there are any."""
        for x in (self.dataset.train.x, self.dataset.test.x):
            if isinstance(x, LazyInputs):
                x.reader.close()

    def record(self, result: RoundResult) -> Record:
        """The line of a round, evaluated when it is due and at the end."""
        return begin_records([self], [result], AT_ONCE)()[0]

    def is_due(self, t: int) -> bool:
        """Whether the model is judged after round ``t``."""
        return (t + 1) % self.config.evaluate_every == 0 or t + 1 == self.config.rounds


def begin_records(
    experiments: Sequence[Experiment],
    results: Sequence[RoundResult],
    side: SideStream,
) -> Callable[[], list[Record]]:
    """Have the lines of a round of runs that are trained together made; what is given waits."""
    setups, tests = [e.setup for e in experiments], [e.tests for e in experiments]
    due = experiments[0].is_due(results[0].round)
    return lines.begin_records(setups, results, tests, side, due=due)
