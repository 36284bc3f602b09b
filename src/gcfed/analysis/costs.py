"""What an algorithm costs: counted from what its hooks declare, send, keep and call.

Nothing is trained for it.  One client takes one step on the device ``meta``, where tensors have
shapes and no values, so a large model costs as little as a small one.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gcfed.core import keys, tree
from gcfed.core.algorithm import Algorithm
from gcfed.core.client import Client, ClientTask
from gcfed.core.losses import cross_entropy
from gcfed.core.model import Model
from gcfed.core.optimizer import SGD
from gcfed.core.schedule import Schedule
from gcfed.core.server import Server, ServerTask
from gcfed.core.torch_internals import load_transforms
from gcfed.core.tree import Tree
from gcfed.core.types import Batch, Inputs, Output
from gcfed.errors import InputError, reason

MakeModule = Callable[[str], nn.Module]
"""Makes the module to train on a device, which it is given by name."""


@dataclass(frozen=True)
class AlgorithmCost:
    """What an algorithm costs with one model; all but the passes in bytes.

    - ``model``: the model itself, which travels both ways whatever the algorithm.
    - ``down``, ``up``: all that a client receives and sends in a round, the model included.
    - ``client``: what a client keeps from round to round; ``server``: what the server keeps beside
      the model; ``row``: what the server keeps of each client.
    - ``forward_passes``, ``gradient_passes``: how often one step runs the model and goes back
      through it.  FedAvg does each once.
    """

    model: int
    down: int
    up: int
    client: int
    server: int
    row: int
    forward_passes: int
    gradient_passes: int

    def kept(self, num_clients: int) -> int:
        """All that is kept beside the model, by the server and by so many clients."""
        return self.server + num_clients * (self.client + self.row)


class Traffic(NamedTuple):
    """How many bytes a client receives and sends in a round."""

    down: int
    up: int


def traffic(task: ClientTask, client: Client, *, buffers_travel: bool) -> Traffic:
    """What travels to a client and back, which does not depend on how long it trains."""
    trained = task.finish(task.begin(client), client)
    given, sent = (client.buffers, trained.buffers) if buffers_travel else ({}, {})
    return Traffic(
        tree.num_bytes((client.anchor, client.message, given)),
        tree.num_bytes((trained.upload.delta, trained.upload.message, sent)),
    )


def cost(algorithm: Algorithm, make: MakeModule, x: Inputs, num_classes: int) -> AlgorithmCost:
    """What an algorithm costs with the module that ``make`` gives, which reads a batch like ``x``.

    A model or a hook that needs values, and not only shapes, takes its step on the host.
    """
    load_transforms()
    try:
        return _cost_on("meta", algorithm, make, x, num_classes)
    except Exception:  # what is really wrong shows again on the host
        pass
    try:
        return _cost_on("cpu", algorithm, make, x, num_classes)
    except InputError:
        raise
    except Exception as error:
        shapes = [list(part.shape[1:]) for _, part in tree.leaves(x)]
        raise InputError(
            f"no step can be taken on an example of shape {shapes[0]}: {reason(error)}"
        ) from error


def _cost_on(
    device: str, algorithm: Algorithm, make: MakeModule, x: Inputs, num_classes: int
) -> AlgorithmCost:
    with torch.device(device):
        model = CountedModel(make(device))
        algorithm.check(model.params, model.roles)
        schedule = Schedule(rounds=1, cohort_size=1, epochs=1, batch_size=1)
        server_task = ServerTask(algorithm, schedule, num_clients=1, roles=model.roles)
        server = server_task.start(model.params, model.buffers)
        client = _client(server_task, server, num_classes)
        task = ClientTask(algorithm, model, cross_entropy, SGD(lr=0.1, momentum=0.9))
        down, up = traffic(task, client, buffers_travel=True)
        begun = task.begin(client)
        model.passes.clear()
        task.step(begun, _batch(x, like=client.lr), client)
        return AlgorithmCost(
            model=tree.num_bytes((model.params, model.buffers)),
            down=down,
            up=up,
            client=tree.num_bytes(client.memory),
            server=tree.num_bytes(server.state),
            row=tree.num_bytes(algorithm.init_row(server.params)),
            forward_passes=model.passes["forward"],
            gradient_passes=model.passes["gradient"],
        )


def _client(task: ServerTask, server: Server, num_classes: int) -> Client:
    """A client on its first visit."""
    anchor, message = task.broadcast(server)
    one = torch.ones((), dtype=next(iter(anchor.values())).dtype)
    return Client(
        anchor=anchor,
        message=message,
        lr=one,
        round=torch.zeros((), dtype=torch.int64),
        memory=task.algorithm.init_client(anchor),
        buffers=server.buffers,
        label_counts=torch.ones(num_classes, dtype=one.dtype),
        filled_counts=torch.ones(num_classes, dtype=one.dtype),
        num_examples=one,
        num_steps=one,
        key=keys.key(0),
    )


def _batch(x: Inputs, like: Tensor) -> Batch:
    """Examples on the device and in the dtype of a model; tokens stay whole numbers."""
    x = tree.map(lambda v: v.to(like) if v.is_floating_point() else v.to(like.device), x)
    size = len(next(part for _, part in tree.leaves(x)))
    return Batch(x, torch.zeros(size, dtype=torch.int64), torch.ones(size, dtype=torch.bool))


class CountedModel(Model):
    """A model that counts in ``passes`` how often it is run and gone back through."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.passes: Counter[str] = Counter()

    def __call__(
        self, params: Tree, x: Inputs, *, buffers: Tree, train: bool, key: Tensor | None = None
    ) -> tuple[Output, Tree]:
        self.passes["forward"] += 1
        values = _CountGradients.apply(self.passes, *params.values())  # type: ignore[no-untyped-call]
        watched = dict(zip(params, values, strict=True))
        return super().__call__(watched, x, buffers=buffers, train=train, key=key)


class _CountGradients(torch.autograd.Function):
    """The identity on all parameters, which counts when a gradient comes back to them."""

    @staticmethod
    def forward(passes: Counter[str], *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.passes = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        ctx.passes["gradient"] += 1
        return (None, *grads)
