"""How good a model is: metrics on test examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.client import ClientTask
from gcfed.core.lazy import LazyInputs, in_turn
from gcfed.core.metrics import BatchMetric, Metric, Metrics, accuracy, as_metrics, loss
from gcfed.core.server import Server
from gcfed.core.tree import Tree
from gcfed.core.types import Inputs, Output, Stored
from gcfed.errors import InputError
from gcfed.kernels.layout import ChannelsLast, channels_last
from gcfed.simulation.setup import Setup
from gcfed.simulation.side_stream import AT_ONCE, SideStream

Scores = dict[str, float]
"""The loss and each metric on some examples."""


@dataclass(frozen=True)
class TestSet:
    """Examples to judge a model by, and the metrics beside the loss; the first counts most."""

    __test__ = False  # not one of pytest's

    x: Stored
    y: Tensor
    metrics: Metrics = field(default_factory=lambda: {"accuracy": accuracy()})
    batch_size: int | None = None  # as suits the model and the device

    def __post_init__(self) -> None:
        if len(self.y) == 0:
            raise InputError("a test set holds no example, so there is nothing to judge a model by")


def predict(setup: Setup, server: Server, x: Inputs) -> Output:
    """What the global model says of ``x``, in evaluation mode.

    No layer is an operator of ours here, for to compile one takes longer than a few examples.
    """
    with torch.no_grad(), setup.arithmetic():
        params = tree.map(channels_last, server.params)
        x = ChannelsLast(setup.transform)(x, None)
        return _forward(setup.client_task, params, server.buffers, x)


def evaluate(setup: Setup, server: Server, test: TestSet) -> Scores:
    """The loss and each metric on ``test``."""
    return evaluate_together(setup, [server], test)[0]


def evaluate_together(setup: Setup, servers: Sequence[Server], test: TestSet) -> list[Scores]:
    """`evaluate` for several models of one task, of several seeds say."""
    return begin_evaluation(setup, servers, test, AT_ONCE)()


def begin_evaluation(
    setup: Setup, servers: Sequence[Server], test: TestSet, side: SideStream
) -> Callable[[], list[Scores]]:
    """Begin to evaluate models of one task; the result is a function that waits for the scores.

    No score is read before the last batch is through, so that an accelerator need not be waited
    for.
    """
    found = as_metrics({"loss": loss(), **test.metrics})
    metrics = {name: m for name, m in found.items() if isinstance(m, Metric)}
    others = {name: m for name, m in found.items() if isinstance(m, BatchMetric)}
    judged = [{n: m.begin(test.y.device) for n, m in others.items()} for _ in servers]

    def means(servers: tuple[Server, ...]) -> dict[str, Tensor]:
        """The means of each metric's columns, a row for each model."""
        sums = [torch.zeros((), dtype=torch.float64, device=test.y.device) for _ in servers]
        widths: list[int] = []

        def add(i: int, logits: Tensor, y: Tensor) -> None:
            columns = [m.columns(logits, y, setup.loss) for m in metrics.values()]
            widths[:] = map(len, columns)
            sums[i] = sums[i] + torch.stack([c.sum() for group in columns for c in group])
            for each in judged[i].values():
                each.add(logits, y)

        visit_batches(setup, servers, test, add)
        rows = torch.stack(sums) / len(test.y)
        return dict(zip(metrics, torch.split(rows, widths, 1), strict=True))

    models = tuple(server._replace(state={}) for server in servers)
    if others or isinstance(test.x, LazyInputs):
        fetched = side.fetch(means(models))
    else:
        fetched = side.fetch(side.repeat((id(setup), id(test), len(models)), means, models))

    def finish() -> list[Scores]:
        found = fetched.wait()
        return [
            {name: m.result(found[name][i]) for name, m in metrics.items()}
            | {name: each.result() for name, each in own.items()}
            for i, own in enumerate(judged)
        ]

    return finish


def visit_batches(
    setup: Setup,
    servers: Sequence[Server],
    test: TestSet,
    visit: Callable[[int, Tensor, Tensor], None],
) -> None:
    """Call ``visit`` with the number of a model, its logits for a batch, and the labels.

    Each batch is prepared once for all models.
    """
    size = test.batch_size or _batch_size(setup)
    models = [(tree.map(channels_last, server.params), server.buffers) for server in servers]
    with torch.no_grad(), setup.arithmetic():
        chunks = [slice(start, start + size) for start in range(0, len(test.y), size)]
        inputs = in_turn(tree.take(test.x, chunk) for chunk in chunks)
        for chunk, part in zip(chunks, inputs, strict=True):
            x, y = ChannelsLast(setup.transform)(part, None), test.y[chunk]
            for i, model in enumerate(models):
                visit(i, _forward(setup.test_task, *model, x).logits, y)


def _forward(task: ClientTask, params: Tree, buffers: Tree, x: Inputs) -> Output:
    return task.forward(params, x, buffers=buffers, train=False)[0]


def _batch_size(setup: Setup) -> int:
    """On a CPU, so few images that what convolutions make of them stays in its caches.

    Of texts there are few anywhere, since each of their tokens may have as many logits as there are
    words.
    """
    if isinstance(setup.data.x, dict) or setup.data.y.ndim > 1:
        return 64
    return 100 if setup.device.type == "cpu" and setup.model.convolutions else 2000
