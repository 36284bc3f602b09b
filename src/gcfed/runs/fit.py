"""The short way: one's own module and data, and a history to plot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gcfed.config.build import Experiment, Given, build
from gcfed.config.settings import make
from gcfed.core.algorithm import Algorithm
from gcfed.core.client import Loss
from gcfed.core.metrics import Metrics
from gcfed.data import Dataset
from gcfed.data.datasets.user import dataset_from
from gcfed.errors import InputError, unknown
from gcfed.runs.disk_memory import first_snapshot
from gcfed.simulation.evaluation import Record
from gcfed.simulation.loop import simulate
from gcfed.simulation.setup import cross_entropy


@dataclass(frozen=True, repr=False)
class History:
    """What a run went through, and the module it ended with."""

    records: list[Record]
    module: nn.Module
    experiment: Experiment

    def __getitem__(self, name: str) -> list[Any]:
        """One number of every round that has it: ``history["test_accuracy"]``."""
        if name not in self.records[0]:
            raise unknown("number of a round", name, self.records[0])
        return [line[name] for line in self.records if line[name] is not None]

    def __repr__(self) -> str:
        name = f"test_{self.experiment.metric.name}"
        last = f"{name}={self.records[-1][name]}"
        return (
            f"History of {len(self.records)} rounds of {self.experiment.config.algorithm}, {last}"
        )

    def plot(self, name: str | None = None) -> Any:
        """A matplotlib figure of one number over the rounds; what the run is judged by."""
        from gcfed.results.plots import curves

        metrics = self.experiment.metrics
        name = name or f"test_{self.experiment.metric.name}"
        return curves({self.experiment.config.algorithm: [self.records]}, name, metrics=metrics)


def fit(
    module: nn.Module,
    train: Any,
    test: Any = None,
    *,
    algorithm: Algorithm | str = "gcfed",
    loss: Loss = cross_entropy,
    metrics: Metrics | Sequence[str] | None = None,
    on_round: Callable[[Record], None] | None = None,
    **settings: Any,
) -> History:
    """Train ``module`` by federated learning; ``settings`` are the keys of a config.

    ``train`` and ``test`` are a `Dataset`, or whatever `dataset_from` understands: a pair of
    tensors, a map-style dataset of (image, label), a list of them, one a client.  ``algorithm`` is
    a text or an `Algorithm`.  ``loss`` maps logits and labels to a number for each example.
    ``metrics`` are names, or such functions and `Metric` objects by name.  ``module`` itself is
    left as it is: the trained copy is the history's.  A run that diverges raises `DivergedError`.
    """
    _check(module, algorithm, settings)
    dataset = train if isinstance(train, Dataset) else dataset_from(train, test)
    if "client" in dataset.keys and not settings.keys() & {"partition", "alpha"}:
        settings["partition"] = "by(key='client')"  # the data came divided
    named = {"model": type(module).__name__, "dataset": "given"}
    if isinstance(algorithm, str):
        named["algorithm"] = algorithm
    if metrics is not None and not isinstance(metrics, Mapping):
        settings["metrics"], metrics = metrics, None
    given = Given(
        algorithm=algorithm if isinstance(algorithm, Algorithm) else None,
        module=module,
        dataset=dataset,
        loss=loss,
        metrics=metrics,
    )
    experiment = build(make({**settings, **named}, "fit"), given)
    records: list[Record] = []
    for result in simulate(experiment.setup, first_snapshot(experiment), keep_uploads=False):
        records.append(experiment.record(result))
        server = result.server
        if on_round is not None:
            on_round(records[-1])
    trained = experiment.setup.model.module(server.params, server.buffers)
    return History(records, trained, experiment)


def _check(module: Any, algorithm: Any, settings: Mapping[str, Any]) -> None:
    if not isinstance(module, nn.Module):
        raise InputError(f"fit trains an nn.Module; not {module!r}")
    if not isinstance(algorithm, Algorithm | str):
        raise InputError(f"algorithm is a text or an Algorithm; not {algorithm!r}")
    for key in ("dataset", "model", "track"):
        if key in settings:
            raise InputError(f"fit takes no {key}: it has a module, data and on_round of yours")
