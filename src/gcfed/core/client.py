"""One client's work, as pure functions that an engine maps over clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gcfed.core import keys, tree
from gcfed.core.algorithm import Algorithm
from gcfed.core.batches import Batches, BatchPlan
from gcfed.core.chain import acting_at
from gcfed.core.losses import Loss
from gcfed.core.model import Model
from gcfed.core.optimizer import Optimizer
from gcfed.core.seeding import generators_seeded
from gcfed.core.torch_internals import grad
from gcfed.core.transfer import on_device
from gcfed.core.tree import State, Tree
from gcfed.core.types import Batch, ClientContext, Inputs, Output, Transform, Upload

AUGMENT = 0x61756772  # keeps a transform's keys apart from those an algorithm folds
BEGIN = 0x626567696E  # no step has so high a number


class Client(NamedTuple):
    """A client as a round finds it, with what it received; a cohort is clients stacked.

    Clients of one run receive the same, expanded along the client axis without a copy.
    """

    anchor: Tree
    message: State
    lr: Tensor
    round: Tensor
    memory: State
    buffers: Tree
    label_counts: Tensor
    filled_counts: Tensor
    num_examples: Tensor
    num_steps: Tensor
    key: Tensor


class Facts(NamedTuple):
    """What is known of the clients of a round before it begins, stacked, where they train."""

    label_counts: Tensor
    filled_counts: Tensor
    num_examples: Tensor
    num_steps: Tensor
    key: Tensor

    @classmethod
    def of(
        cls,
        *,
        label_counts: Tensor,
        filled_counts: Tensor,
        num_examples: Tensor,
        plans: Sequence[BatchPlan],
        key: Tensor,
        like: Tensor,
    ) -> "Facts":
        """On the device of a parameter, counts as `counting_dtype` says."""
        dtype, device = counting_dtype(like), like.device
        steps = torch.tensor([len(plan) for plan in plans])
        counts = [label_counts, filled_counts, num_examples, steps]
        packed = torch.cat([x.reshape(-1).to(dtype) for x in counts])  # a copy for all of them
        parts = torch.split(on_device(packed, device), [x.numel() for x in counts])
        labels, filled, examples, steps = map(torch.Tensor.view_as, parts, counts)
        return cls(labels, filled, examples, steps, on_device(key, device))


def counting_dtype(like: Tensor) -> torch.dtype:
    """In which counts, losses and weights of clients are kept: at least float32."""
    return torch.promote_types(like.dtype, torch.float32)


def cohort_of(
    anchor: Tree,
    message: State,
    *,
    lr: float,
    t: int,
    memory: State,
    buffers: Tree,
    facts: Facts,
) -> Client:
    """The clients of a round, stacked: what all received, and what each has of its own."""
    like, n = next(iter(anchor.values())), len(facts.key)
    return Client(
        anchor=tree.expand(anchor, n),
        message=tree.expand(message, n),
        lr=torch.full((), lr, dtype=counting_dtype(like), device=like.device).expand(n),
        round=torch.full((), t, dtype=torch.int64, device=like.device).expand(n),
        memory=memory,
        buffers=buffers,
        **facts._asdict(),
    )


RECEIVED = ("anchor", "message", "lr", "round")
"""What all clients of a run have in common."""


class Progress(NamedTuple):
    """A client between two steps, after ``steps`` of them whose losses sum to ``loss``."""

    params: Tree
    optimizer: State
    buffers: Tree
    steps: Tensor
    loss: Tensor


class Trained(NamedTuple):
    """A client as a round leaves it; ``loss`` is the mean over its steps, without penalties.

    ``params`` are the weights it ended with, where the task keeps them, and else empty.
    """

    upload: Upload
    buffers: Tree
    loss: Tensor
    params: Tree


class LocalModel(NamedTuple):
    """The model that a client ended with; those of a cohort are stacked."""

    params: Tree
    buffers: Tree


@dataclass(frozen=True)
class ClientTask:
    """What all clients of a run do; what each does it with comes in as an argument.

    ``compute`` is the dtype the model runs in, its own by default; weights, gradients and losses
    keep theirs.  ``keep_models`` gives out the weights that clients end with, which nobody needs
    but those who measure them.  ``own_draws`` names modules whose numbers come from global
    generators, which are then seeded from the key; such a task cannot be mapped nor traced.  A
    model that ``draws_in_evaluation`` has the same numbers then every time.
    """

    algorithm: Algorithm
    model: Model
    loss: Loss
    optimizer: Optimizer
    transform: Transform | None = None
    compute: torch.dtype | None = None
    keep_models: bool = False
    own_draws: tuple[str, ...] = ()
    draws_in_evaluation: bool = False

    def begin(self, client: Client) -> Progress:
        steps = torch.zeros_like(client.num_steps, dtype=torch.int64)
        acts = acting_at(self.algorithm, "begin")  # to derive a key takes many small kernels
        key = keys.fold(client.key, BEGIN) if acts else client.key
        params = self.algorithm.begin(client.anchor, self.context(client, steps, key))
        loss = torch.zeros_like(client.num_steps)
        return Progress(params, self.optimizer.init(params), client.buffers, steps, loss)

    def step(self, at: Progress, batch: Batch, client: Client) -> Progress:
        grads, loss, buffers = self.gradients(at, batch, client)
        params, state = self.optimizer.step(grads, at.optimizer, at.params, client.lr)
        return Progress(params, state, buffers, at.steps + 1, at.loss + loss)

    def gradients(self, at: Progress, batch: Batch, client: Client) -> tuple[Tree, Tensor, Tree]:
        """What the optimiser steps along, the loss there and the buffers afterwards.

        The loss is the task's, through the algorithm's logits and without its penalty.
        """
        ctx = self.context(client, at.steps, keys.fold(client.key, at.steps))
        if self.transform:
            batch = batch._replace(x=self.transform(batch.x, keys.fold(ctx.key, AUGMENT)))

        def objective(params: Tree) -> tuple[Tensor, tuple[Tensor, Tree]]:
            out, buffers = self.forward(
                params, batch.x, buffers=at.buffers, train=True, key=ctx.key
            )
            loss = batch.mean(self.loss(self.algorithm.logits(out.logits, ctx), batch.y))
            return loss + self.algorithm.penalty(params, out, batch, ctx), (loss, buffers)

        where = self.algorithm.perturb(at.params, lambda w: objective(w)[0], batch, ctx)
        grads, (loss, buffers) = grad(objective, has_aux=True)(where)
        return self.algorithm.gradient(grads, at.params, ctx), loss, buffers

    def finish(self, at: Progress, client: Client) -> Trained:
        ctx = self.context(client, at.steps, client.key)
        upload = self.algorithm.upload(tree.sub(at.params, client.anchor), ctx)
        upload = Upload(*self.algorithm.send(upload.delta, upload.message, ctx), upload.memory)
        kept = at.params if self.keep_models else {}
        return Trained(upload, at.buffers, at.loss / at.steps, kept)

    def forward(
        self, params: Tree, x: Inputs, *, buffers: Tree, train: bool, key: Tensor | None = None
    ) -> tuple[Output, Tree]:
        """Run the model; what it draws comes from ``key``, or in evaluation from the model's."""
        if not train:
            key = self.model.evaluation_key if self.draws_in_evaluation else None
        if self.own_draws and key is not None:
            with generators_seeded(key):
                return self.run(params, x, buffers=buffers, train=train, key=key)
        return self.run(params, x, buffers=buffers, train=train, key=key)

    def run(
        self, params: Tree, x: Inputs, *, buffers: Tree, train: bool, key: Tensor | None
    ) -> tuple[Output, Tree]:
        """Run the model in the dtype it computes in."""
        if self.compute is None:
            return self.model(params, x, buffers=buffers, train=train, key=key)
        down, dtype = partial(_cast, dtype=self.compute), next(iter(params.values())).dtype
        uncast = self.model.uncast
        low = {name: w if name in uncast else down(w) for name, w in params.items()}
        kept = tree.map(down, buffers)
        out, after = self.model(low, tree.map(down, x), buffers=kept, train=train, key=key)
        features = None if out.features is None else _cast(out.features, dtype)
        after = tree.map(lambda new, old: new.to(old.dtype), after, buffers)
        return Output(_cast(out.logits, dtype), features), after

    def context(self, client: Client, step: Tensor, key: Tensor) -> ClientContext:
        def forward(params: Tree, x: Inputs, *, train: bool = False) -> Output:
            return self.forward(params, x, buffers=client.buffers, train=train, key=key)[0]

        return ClientContext(
            forward=forward,
            anchor=client.anchor,
            message=client.message,
            memory=client.memory,
            label_counts=client.label_counts,
            filled_counts=client.filled_counts,
            num_examples=client.num_examples,
            num_steps=client.num_steps,
            lr=client.lr,
            initial_lr=self.optimizer.lr,
            momentum=self.optimizer.momentum,
            round=client.round,
            step=step,
            key=key,
            head=self.model.head,
            roles=self.model.roles,
        )


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


class Job(NamedTuple):
    """A cohort to train: what an engine is given whole or in parts, here or elsewhere.

    Some rounds have fewer clients than others; none has more than there is ``room`` for, so that an
    engine can do every round with one program.
    """

    task: ClientTask
    cohort: Client
    batches: Batches
    room: int

    @property
    def num_clients(self) -> int:
        return len(self.cohort.key)

    def take(self, clients: slice) -> "Job":
        """The part of the job that is some of its clients'."""
        batches = Batches(self.batches.data, self.batches.plans[clients])
        cohort = tree.take(self.cohort, clients)
        return Job(self.task, cohort, batches, len(cohort.key))
