"""What algorithms cost with one model, side by side."""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gcfed.algorithms import ALGORITHMS
from gcfed.algorithms.spec import parse, to_text
from gcfed.analysis.costs import AlgorithmCost, MakeModule, cost
from gcfed.capacity import check_fits
from gcfed.config.materials import example_shape, make_module, read_dataset, weights_dtype
from gcfed.core import tree
from gcfed.core.algorithm import Algorithm
from gcfed.core.lazy import loaded
from gcfed.core.types import Inputs
from gcfed.data import Dataset
from gcfed.errors import InputError
from gcfed.models import MODELS
from gcfed.results.captions import short
from gcfed.results.tables import Entry, Section, Table, Tabulated
from gcfed.values import check_range, checked

CIFAR100 = ((3, 32, 32), 100)
"""The shape of an example and the number of classes, of which the paper trains VGG11."""

MB = 1e6


@dataclass(frozen=True)
class CostTable(Tabulated):
    """What algorithms cost with one model, by name; a notebook shows it as a table."""

    costs: Mapping[str, AlgorithmCost]
    clients: int
    cohort: int
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """In millions of bytes; what comes on top of the model stands in brackets."""
        sizes = ("down", "up", "round", "client", "server", "per client", "in all")
        columns = ("method", *(f"{name} (MB)" for name in sizes), "forward", "gradient")
        rows = tuple(self._row(name, each) for name, each in self.costs.items())
        return Table(columns, (Section("", rows),), (*self.notes, *self._legend()))

    def rows(self) -> list[dict[str, Any]]:
        """An algorithm each, in bytes; passes are those of one step, FedAvg's included."""
        return [
            {
                "algorithm": name,
                **asdict(each),
                "round": self._round(each),
                "kept": each.kept(self.clients),
                "clients": self.clients,
                "cohort": self.cohort,
            }
            for name, each in self.costs.items()
        ]

    def _row(self, name: str, each: AlgorithmCost) -> tuple[Entry, ...]:
        kept = (each.client, each.server, each.row, each.kept(self.clients))
        passes = (each.forward_passes - 1, each.gradient_passes - 1)
        return (
            Entry(name),
            _sent(each.down, each.model),
            _sent(each.up, each.model),
            Entry(_text(self._round(each))),
            *(Entry(_text(size)) for size in kept),
            *(Entry(str(number) if number else "-") for number in passes),
        )

    def _round(self, each: AlgorithmCost) -> int:
        return self.cohort * (each.down + each.up)

    def _legend(self) -> tuple[str, ...]:
        model = next(iter(self.costs.values())).model
        return (
            f"down, up: to and from one client in a round; the model is {_text(model)} MB each "
            f"way, and + is what comes on top; round: both, for {self.cohort} clients",
            "kept from round to round beside the model: by each client, by the server, by the "
            f"server per client, and in all with {self.clients:,} clients",
            "forward, gradient: passes through the model in one step, beside FedAvg's one of each",
        )


def costs(
    algorithms: str | Algorithm | Iterable[str | Algorithm] = (),
    *,
    model: str | nn.Module = "vgg11",
    dataset: str | Dataset | None = None,
    shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    clients: int = 1000,
    cohort: int = 5,
    data_dir: str | Path | None = None,
) -> CostTable:
    """What algorithms, or all that are registered, cost with a model; nothing is trained.

    The model reads the examples of a ``dataset``, or else examples of ``shape`` of which it tells
    ``num_classes`` apart; those of CIFAR-100 where neither is given.  Bytes are counted of what the
    hooks of an algorithm declare, return and send, and passes by one step of one client.
    """
    for name, number in (("clients", clients), ("cohort", cohort)):
        check_range(name, checked(name, number, int), "at least 1")
    if cohort > clients:
        raise InputError(f"a cohort of {cohort} cannot be drawn from {clients} clients")
    x, num_classes = _examples(dataset, data_dir, shape, num_classes)
    make, found = _maker(model, x, num_classes), dict[str, AlgorithmCost]()
    refused: dict[str, InputError] = {}
    for name, method in _methods(algorithms).items():
        try:
            found[name] = cost(method, make, x, num_classes)
        except InputError as error:
            refused[name] = error
    if not found:
        raise next(iter(refused.values()))
    notes = (f"{name} is left out: {error}" for name, error in refused.items())
    return CostTable(found, clients, cohort, tuple(notes))


def _methods(algorithms: str | Algorithm | Iterable[str | Algorithm]) -> dict[str, Algorithm]:
    """Algorithms by the names that the table has for them; all that there are if none is given."""
    if isinstance(algorithms, str) or not isinstance(algorithms, Iterable):
        algorithms = [algorithms]
    given = list(algorithms)
    every = [a if isinstance(a, Algorithm) else parse(a) for a in given or ALGORITHMS]
    return {short(to_text(algorithm)): algorithm for algorithm in every}


def _examples(
    dataset: str | Dataset | None,
    data_dir: str | Path | None,
    shape: tuple[int, ...] | None,
    num_classes: int | None,
) -> tuple[Inputs, int]:
    """Two examples as a model reads them, and the number of classes."""
    if dataset is None:
        shape = checked("shape", CIFAR100[0] if shape is None else shape, tuple[int, ...])
        classes = checked("classes", CIFAR100[1] if num_classes is None else num_classes, int)
        if not shape or min(*shape, classes) < 1:
            raise InputError(
                "examples have a shape such as (3, 32, 32), and at least 1 class; not "
                f"{shape} and {classes}"
            )
        check_fits("an example of this shape", 4 * math.prod(shape))
        return torch.zeros(2, *shape, dtype=torch.float32), classes
    if shape is not None or num_classes is not None:
        raise InputError("a data set has a shape and classes of its own: leave out the others")
    data = dataset if isinstance(dataset, Dataset) else read_dataset(dataset, data_dir)
    if not data.has_classes:
        raise InputError("costs are counted for labels that are classes; these are not")
    x = loaded(tree.take(data.train.x, slice(2)))
    return x if data.transform is None else data.transform(x, None), data.num_classes


def _maker(model: str | nn.Module, x: Inputs, num_classes: int) -> MakeModule:
    if isinstance(model, nn.Module):
        given = model
        return lambda device: copy.deepcopy(given).to(device)
    MODELS.parse(model)  # what is misspelt is no fault of an algorithm
    shape, dtype, text = example_shape(x), weights_dtype(x), model
    return lambda device: make_module(text, shape, num_classes, dtype=dtype)


def _sent(size: int, model: int) -> Entry:
    return Entry(_text(size), f" (+{_text(size - model)})" if size > model else "")


def _text(size: int) -> str:
    """Millions of bytes, and a dash for none."""
    if not size:
        return "-"
    return f"{size / MB:,.1f}" if size >= 0.05 * MB else f"{size / MB:.2g}"
