"""The short way: one's own module and data, and a history to plot."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gcfed.config.build import Given, build
from gcfed.config.experiment import Experiment
from gcfed.config.settings import make
from gcfed.core.algorithm import Algorithm
from gcfed.core.calling import names_taken, pad_token
from gcfed.core.losses import Loss
from gcfed.core.metrics import Metrics
from gcfed.data import Dataset
from gcfed.data.datasets.user import InputsAndLabels, dataset_from, with_test
from gcfed.display import html_table
from gcfed.errors import InputError, unknown
from gcfed.progress import progress as shown, say
from gcfed.results.captions import short
from gcfed.results.facts import last_rounds, round_columns, round_note
from gcfed.results.frame import with_probes
from gcfed.runs.disk_memory import first_snapshot
from gcfed.runs.plan import engine_of, plan
from gcfed.simulation.lines import Record
from gcfed.simulation.loop import simulate

if TYPE_CHECKING:
    from gcfed.figures import Picture


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
        return [row[name] for row in rows if row.get(name) is not None]

    def __repr__(self) -> str:
        name = f"test_{self.experiment.metric.name}"
        last = f"{name}={self.records[-1][name]}"
        algorithm = short(self.experiment.config.algorithm)
        return f"History of {len(self.records)} rounds of {algorithm}, {last}"

    def _repr_html_(self) -> str:
        config, columns = self.experiment.config, round_columns(self.experiment.metrics)
        rows = [
            ("algorithm", config.algorithm),
            ("model", config.model),
            ("partition", config.partition),
            ("clients", f"{config.cohort} of {config.clients} a round"),
            ("rounds", f"{len(self.records)} of {config.rounds}"),
            ("engine", engine_of(self.experiment)),
        ]
        last = last_rounds(self.records, columns)
        return html_table(("history", ""), rows) + "\n" + html_table(columns, last)

    def plot(self, name: str | None = None) -> "Picture":
        """A matplotlib figure of one number over the rounds; what the run is judged by.

        A number that probes measure layer by layer, such as ``cka.new``, has a panel for each.
        """
        from gcfed.results.plots import draw

        metrics = self.experiment.metrics
        name = name or f"test_{self.experiment.metric.name}"
        lines = with_probes(self.records, self.probes)
        groups = {short(self.experiment.config.algorithm): [lines]}
        return draw({"": groups}, name, metrics=metrics)


def fit(
    module: nn.Module,
    train: Any,
    test: Any = None,
    *,
    algorithm: Algorithm | str | None = None,
    loss: Loss | str | None = None,
    metrics: Metrics | Sequence[str] | None = None,
    columns: InputsAndLabels | None = None,
    on_round: Callable[[Record], None] | None = None,
    progress: bool = True,
    **settings: Any,
) -> History:
    """Train ``module`` by federated learning; ``settings`` are the keys of a config.

    ``train`` is a `Dataset`, or as ``test`` whatever `dataset_from` understands: a pair of tensors,
    a map-style dataset of (image, label), a list of them, one a client.  ``test`` takes the place
    of the test examples that a `Dataset` has.  ``columns`` of a table are those of `dataset_from`.

    ``algorithm`` is a text or an `Algorithm`.  By default it is GC-Fed, or FedAvg for a model that
    trains nothing before its head and for labels that are no classes.  ``loss`` is a text, a loss
    of torch's such as ``nn.HuberLoss()``, or maps logits and labels to a number for each example;
    where it is left out it is cross-entropy, or the squared error if labels are numbers.
    ``metrics`` are names, or such functions, `Metric` objects and those of torchmetrics by name.

    ``module`` itself is left as it is: the trained copy is the history's.  ``progress`` says on
    standard error what the run will do and how far it is.  A run that diverges raises
    `DivergedError`.
    """
    _check(module, algorithm, on_round, progress, settings)
    doubled = any(weights.dtype == torch.float64 for weights in module.parameters())
    dtype = torch.float64 if doubled else torch.float32
    if isinstance(train, Dataset):
        if columns is not None:
            raise InputError("columns are those of a table, and a Dataset has been read already")
        dataset = with_test(train, test, pad_token(module))
    else:
        wanted: Any = {"pad": pad_token(module), "takes": names_taken(module)}
        dataset = dataset_from(train, test, columns=columns, dtype=dtype, **wanted)
    named = {"model": type(module).__name__, "dataset": "given"}
    if isinstance(algorithm, str):
        named["algorithm"] = algorithm
    if isinstance(loss, str):
        settings["loss"], loss = loss, None
    if not isinstance(metrics, Mapping | Sequence | None):
        raise InputError(f"metrics are names, or functions by name; not {metrics!r:.200}")
    if metrics is not None and not isinstance(metrics, Mapping):
        settings["metrics"], metrics = metrics, None
    given = Given(
        algorithm=algorithm if isinstance(algorithm, Algorithm) else None,
        any_algorithm=algorithm is None,
        module=module,
        dataset=dataset,
        loss=loss,
        metrics=metrics,
    )
    config = make({**settings, **named}, "fit")
    experiment = build(config, given)
    for line in plan(experiment) if progress else ():
        say(line)
    records, probed = list[Record](), list[Record]()
    begun = first_snapshot(experiment)
    server = begun.server
    with (
        closing(experiment),
        shown(short(experiment.config.algorithm), config.rounds, quiet=not progress) as tick,
        closing(simulate(experiment.setup, begun)) as rounds,
    ):
        for result in rounds:
            records.append(experiment.record(result))
            if experiment.probes:
                probed.append(experiment.measure(server, result).row)
            server = result.server
            tick(result.round + 1, round_note(experiment.metric, records[-1:]))
            if on_round is not None:
                on_round(records[-1])
    trained = experiment.setup.model.module(server.params, server.buffers)
    return History(records, trained, experiment, probed)


def _check(
    module: Any, algorithm: Any, on_round: Any, progress: Any, settings: Mapping[str, Any]
) -> None:
    if not isinstance(module, nn.Module):
        raise InputError(f"fit trains an nn.Module; not {module!r}")
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        name = algorithm.__name__
        raise InputError(f"algorithm={name} is a class: write algorithm={name}()")
    if not isinstance(algorithm, Algorithm | str | None):
        raise InputError(f"algorithm is a text or an Algorithm; not {algorithm!r}")
    if on_round is not None and not callable(on_round):
        raise InputError(f"on_round is a function of a round's line; not {on_round!r:.200}")
    if not isinstance(progress, bool):
        hint = ": on_round takes a function of a round's line" if callable(progress) else ""
        raise InputError(f"progress is True or False; not {progress!r:.200}{hint}")
    for key in ("dataset", "model", "track"):
        if key in settings:
            raise InputError(f"fit takes no {key}: it has a module, data and on_round of yours")
