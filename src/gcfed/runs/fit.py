"""The short way: one's own module and data, and a history to plot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gcfed.config.build import Experiment, Given, build
from gcfed.config.settings import make
from gcfed.core.algorithm import Algorithm
from gcfed.core.client import Loss
from gcfed.data import Dataset
from gcfed.data.datasets.user import dataset_from
from gcfed.errors import InputError, unknown
from gcfed.runs.disk_memory import first_snapshot
from gcfed.simulation.evaluation import Metric, Record
from gcfed.simulation.loop import simulate
from gcfed.simulation.setup import cross_entropy


@dataclass(frozen=True, repr=False)
class History:
    """What a run went through, and the module it ended with."""

    records: list[Record]
    module: nn.Module
    experiment: Experiment
    probes: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[Any]:
        """One number of every round that has it: ``history["test_accuracy"]``, or a probe's."""
        rows = self.probes if self.probes and name in self.probes[0] else self.records
        if name not in rows[0]:
            known = [*self.records[0], *(self.probes or [{}])[0]]
            raise unknown("number of a round", name, dict.fromkeys(known))
        return [row[name] for row in rows if row[name] is not None]

    def __repr__(self) -> str:
        last = f"test_accuracy={self.records[-1]['test_accuracy']}"
        return (
            f"History of {len(self.records)} rounds of {self.experiment.config.algorithm}, {last}"
        )

    def plot(self, name: str = "test_accuracy") -> Any:
        """A matplotlib figure of one number over the rounds."""
        from gcfed.results.plots import curves

        return curves({self.experiment.config.algorithm: [self.records]}, name)


def fit(
    module: nn.Module,
    train: Any,
    test: Any = None,
    *,
    algorithm: Algorithm | str = "gcfed",
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    on_round: Callable[[Record], None] | None = None,
    **settings: Any,
) -> History:
    """Train ``module`` by federated learning; ``settings`` are the keys of a config.

    ``train`` and ``test`` are a `Dataset`, or whatever `dataset_from` understands: a pair of
    tensors, a map-style dataset of (image, label), a list of them, one a client.  ``algorithm`` is
    a text or an `Algorithm`.  ``loss`` and ``metrics`` (accuracy, where there are classes) map
    logits and labels to a number for each example.  ``module`` itself is left as it is: the trained
    copy is the history's.  A run that diverges raises `DivergedError`.
    """
    _check(module, algorithm, settings)
    dataset = train if isinstance(train, Dataset) else dataset_from(train, test)
    named = {"model": type(module).__name__, "dataset": "given"}
    if isinstance(algorithm, str):
        named["algorithm"] = algorithm
    given = Given(
        algorithm=algorithm if isinstance(algorithm, Algorithm) else None,
        module=module,
        dataset=dataset,
        loss=loss,
        metrics=metrics,
    )
    experiment = build(make({**settings, **named}, "fit"), given)
    records, probed = list[Record](), list[Record]()
    begun = first_snapshot(experiment)
    server = begun.server
    for result in simulate(experiment.setup, begun):
        records.append(experiment.record(result))
        if experiment.probes:
            probed.append(experiment.measure(server, result))
        server = result.server
        if on_round is not None:
            on_round(records[-1])
    trained = experiment.setup.model.module(server.params, server.buffers)
    return History(records, trained, experiment, probed)


def _check(module: Any, algorithm: Any, settings: Mapping[str, Any]) -> None:
    if not isinstance(module, nn.Module):
        raise InputError(f"fit trains an nn.Module; not {module!r}")
    if not isinstance(algorithm, Algorithm | str):
        raise InputError(f"algorithm is a text or an Algorithm; not {algorithm!r}")
    for key in ("dataset", "model", "track"):
        if key in settings:
            raise InputError(f"fit takes no {key}: it has a module, data and on_round of yours")
