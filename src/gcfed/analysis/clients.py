"""Who benefits: how well each client is served by the global model, and by a model of its own."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gcfed.analysis.probe import PROBES, Observation, Probe, Sight
from gcfed.core import keys, tree
from gcfed.core.measures import is_correct
from gcfed.core.server import Server
from gcfed.engines import Sequential
from gcfed.errors import InputError
from gcfed.simulation.evaluation import TestSet, visit_batches
from gcfed.simulation.round import prepare
from gcfed.simulation.setup import Setup
from gcfed.values import check_range

DECILES = tuple(range(10, 100, 10))


@PROBES.register("clients")
@dataclass(frozen=True)
class ClientAccuracy(Probe):
    r"""How accurate models are on what each client holds: all clients, the worst off, each class.

    A client's accuracy is the one to be expected on test examples that are drawn by the shares
    :math:`p_k(c)` of classes among its own examples, :math:`\sum_c p_k(c)\, a(c)`, where
    :math:`a(c)` is a model's accuracy on the test examples of class c.  Every client counts alike.

    - ``mean``, ``std``, ``worst``, ``decile.10`` to ``decile.90``: of the round's new global model,
      over all clients; ``worst`` is the mean over the tenth that is worst off.
    - ``class.0``, ``class.1``, ...: the global model's :math:`a(c)`.
    - ``local_mean``, ``local_worst``, ``local_gain``: of the models that the round's clients ended
      with, each on what its client holds; ``local_gain`` is the mean less that of the global model
      for the same clients.
    - ``end_mean``, ``end_std``, ``end_worst``, ``end_gain``: the same, once the run is over, for
      clients that train the final model a last time; None in all rounds before the last.

    ``at_end`` is how many clients do so, spread evenly over all of them; 0 leaves this out.  The
    last round is measured whatever ``every`` says.
    """

    needs: ClassVar[frozenset[Sight]] = frozenset({"models", "batch"})

    every: int = field(default=10, kw_only=True)
    at_end: int = 100

    def check(self, setup: Setup) -> None:
        check_range("clients(at_end=...)", self.at_end, "at least 0")
        if not setup.data.has_classes:
            raise InputError("the probe clients needs labels that are classes: leave it out here")
        if setup.buffers == "local" and setup.model.buffers:
            raise InputError(
                "the probe clients judges the global model, and where each client has buffers of "
                "its own there is none: set buffers = 'average', or leave the probe out"
            )

    def is_due(self, t: int, rounds: int) -> bool:
        return super().is_due(t, rounds) or t + 1 == rounds

    def measure(self, seen: Observation) -> Mapping[str, float]:
        setup, result, test = seen.setup, seen.result, seen.need_test()
        by_class = class_accuracy(setup, result.server, test)
        everyone = expected(by_class, label_shares(setup, range(setup.data.num_clients)))
        local = _own_accuracy(setup, _trained(seen), test, everyone)
        is_last = result.round + 1 == setup.schedule.rounds
        tuned = _tuned(seen, self._chosen(setup) if is_last else [])
        end = _own_accuracy(setup, tuned, test, everyone)
        return {
            **summary(everyone),
            **{f"decile.{n}": x for n, x in zip(DECILES, deciles(everyone), strict=True)},
            **{f"class.{c}": x for c, x in enumerate(by_class.tolist())},
            **{f"local_{name}": local[name] for name in ("mean", "worst", "gain")},
            **{f"end_{name}": value for name, value in end.items()},
        }

    def _chosen(self, setup: Setup) -> list[int]:
        """The clients that train once more, in even distances."""
        num_clients = setup.data.num_clients
        number = min(self.at_end, num_clients)
        return [i * num_clients // number for i in range(number)]


def class_accuracy(setup: Setup, server: Server, test: TestSet) -> Tensor:
    """The share of each class that a model gets right; NaN where there is no test example."""
    num_classes, right = setup.data.num_classes, list[Tensor]()

    def count(_: int, logits: Tensor, y: Tensor) -> None:
        hits = is_correct(logits, y)
        right.append((F.one_hot(y, num_classes) * hits[:, None]).sum(0))

    visit_batches(setup, [server], test, count)
    there = F.one_hot(test.y, num_classes).sum(0)
    return (torch.stack(right).sum(0).double() / there).cpu()


def label_shares(setup: Setup, ids: Sequence[int]) -> Tensor:
    """The share of each class among the examples of each client."""
    counts = setup.data.label_counts(ids).double()
    return counts / counts.sum(1, keepdim=True)


def expected(by_class: Tensor, shares: Tensor) -> Tensor:
    """The accuracy on examples drawn by these shares; classes without a test example are left out.

    It is NaN for clients that hold no other.
    """
    known = by_class.isfinite()
    return (shares[:, known] @ by_class[known]) / shares[:, known].sum(1)


def summary(accuracies: Tensor) -> dict[str, float]:
    """The mean over clients, the standard deviation, and the mean of the tenth that is worst."""
    found = accuracies[accuracies.isfinite()].sort().values
    if not len(found):
        return dict.fromkeys(("mean", "std", "worst"), math.nan)
    return {
        "mean": found.mean().item(),
        "std": found.std(correction=0).item(),
        "worst": found[: -(-len(found) // 10)].mean().item(),
    }


def deciles(accuracies: Tensor) -> list[float]:
    """What a tenth, two tenths, ... nine tenths of the clients do not exceed."""
    found, at = accuracies[accuracies.isfinite()], torch.tensor(DECILES).double() / 100
    return found.quantile(at).tolist() if len(found) else [math.nan] * len(DECILES)


def _own_accuracy(
    setup: Setup, models: Iterator[tuple[int, Server]], test: TestSet, everyone: Tensor
) -> dict[str, float]:
    """Of models by client, each on what its client holds; ``everyone`` has the global model's."""
    ids, found = list[int](), list[Tensor]()
    for i, server in models:
        shares = label_shares(setup, [i])
        held = shares[0].to(test.y.device)[test.y] > 0  # other classes do not count for this client
        ids.append(i)
        if held.any():
            part = TestSet(tree.map(lambda x, held=held: x[held], test.x), test.y[held])
            found.append(expected(class_accuracy(setup, server, part), shares)[0])
        else:
            found.append(torch.tensor(math.nan).double())
    own = torch.stack(found) if found else torch.zeros(0).double()
    gain = (own - everyone[ids]).nanmean().item()
    return {**summary(own), "gain": gain}


def _trained(seen: Observation) -> Iterator[tuple[int, Server]]:
    """The clients of the round with the models that they ended with."""
    if seen.result.models is not None:
        for k in seen.rows:
            model = tree.take(seen.result.models, k)
            yield seen.result.ids[k], Server(model.params, {}, model.buffers)


def _tuned(seen: Observation, ids: Sequence[int]) -> Iterator[tuple[int, Server]]:
    """Clients with the models that they make of the new global one, as in one more round.

    As many as a round has train at once, with the batches of the round that ended.
    """
    setup, result = seen.setup, seen.result
    make = setup.chosen.make if isinstance(setup.engine, str) else Sequential  # the run has its own
    with torch.enable_grad(), make() as engine:
        for chunk in setup.chunks(ids):
            job = prepare(setup, result.server, result.clients, result.round, chunk)
            with keys.untouched(), setup.arithmetic():
                (trained,) = engine([job])
            for k, i in enumerate(chunk):
                params, buffers = tree.take((trained.params, trained.buffers), k)
                yield i, Server(params, {}, buffers)
