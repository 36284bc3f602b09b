"""How good a model is: metrics on test examples, and a round as a row of numbers."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gcfed import tree
from gcfed.context import Inputs, Output
from gcfed.engines.layout import ChannelsLast, channels_last
from gcfed.errors import InputError
from gcfed.round import RoundResult, Server
from gcfed.setup import Setup
from gcfed.tree import Tree

Metric = Callable[[Tensor, Tensor], Tensor]
"""A number for each example, from logits and labels; what is reported is the mean."""

Record = dict[str, Any]
"""A round in numbers, the same for two equal runs: a line of rounds.jsonl."""


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Whether the largest logit is the label's."""
    return logits.argmax(1) == y


@dataclass(frozen=True)
class TestSet:
    """Examples to judge a model by, and the metrics beside the loss."""

    __test__ = False  # not one of pytest's

    x: Inputs
    y: Tensor
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"accuracy": accuracy})
    batch_size: int = 2000

    def __post_init__(self) -> None:
        if len(self.y) == 0:
            raise InputError("a test set holds no example, so there is nothing to judge a model by")


def predict(setup: Setup, server: Server, x: Inputs) -> Output:
    """What the global model says of ``x``, in evaluation mode."""
    with torch.no_grad(), setup.arithmetic():
        x = ChannelsLast(setup.transform)(x, None)
        params = tree.map(channels_last, server.params)
        return setup.task.forward(params, x, buffers=server.buffers, train=False)[0]


def evaluate(setup: Setup, server: Server, test: TestSet) -> dict[str, float]:
    """The mean over ``test`` of the loss and of each metric."""
    measures = {"loss": setup.loss, **test.metrics}
    sums: list[Tensor] = []  # read at the end, so that an accelerator need not be waited for
    for start in range(0, len(test.y), test.batch_size):
        chunk = slice(start, start + test.batch_size)
        y = test.y[chunk]
        logits = predict(setup, server, tree.take(test.x, chunk)).logits
        values = [measure(logits, y).reshape(len(y), -1) for measure in measures.values()]
        sums.append(torch.stack([v.double().mean(1).sum() for v in values]))
    totals = torch.stack(sums).sum(0) / len(test.y)
    return dict(zip(measures, totals.tolist(), strict=True))


def evaluate_cohort(setup: Setup, result: RoundResult, test: TestSet) -> dict[str, float]:
    """The mean over a round's clients of `evaluate`, each with its own buffers."""
    server, device = result.server, result.losses.device
    found = [
        evaluate(setup, server._replace(buffers=tree.take(buffers, 0)), test)
        for i in result.survivors or result.ids
        for buffers in [result.clients.buffers.gather([i], lambda: server.buffers, device)]
    ]
    return {name: sum(m[name] for m in found) / len(found) for name in found[0]}


def record(
    setup: Setup,
    result: RoundResult,
    tests: Mapping[str, TestSet] | None = None,
    *,
    due: bool = True,
) -> Record:
    """The line of a round, with what the model scores on ``tests``, such as ``{"test": ...}``.

    Where an evaluation is not ``due`` the scores are None.  ``tested`` says which model they are
    of: the global one, or (buffers kept local) each of the cohort's, whose scores are averaged; a
    round without clients has none of these.  ``available`` counts who could be drawn, where that
    is not always everyone.
    """
    local = setup.buffers == "local" and bool(result.server.buffers)
    due, among = due and bool(result.ids or not local), setup.available(result.round)
    scores: dict[str, float | None] = {"test_accuracy": None, "test_loss": None}
    for split, test in (tests or {}).items():
        found: Mapping[str, float | None] = dict.fromkeys(("loss", *test.metrics))
        if due and local:
            found = evaluate_cohort(setup, result, test)
        elif due:
            found = evaluate(setup, result.server, test)
        scores.update({f"{split}_{name}": _number(score) for name, score in found.items()})
    tested = "cohort" if local else "global"
    return {
        "round": result.round,
        **scores,
        "tested": tested if tests and due else None,
        "train_loss": _number(_train_loss(result)),
        "clients": result.ids,
        "dropped": result.dropped,
        "absent": result.absent,
        "late": result.late,
        "corrupted": result.corrupted,
        **({} if isinstance(among, range) else {"available": len(among)}),
        "update_norm": result.update_norm,
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "weights_sha256": weights_sha256({**result.server.params, **result.server.buffers}),
    }


def weights_sha256(weights: Tree) -> str:
    """A fingerprint of names, dtypes, shapes and every bit of the values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _train_loss(result: RoundResult) -> float | None:
    """The mean over the clients that entered the round."""
    kept = [k for k, i in enumerate(result.ids) if i not in result.dropped]
    return result.losses[kept].double().mean().item() if kept else None


def _number(value: float | None) -> float | None:
    """A finite number, or None: JSON knows no other."""
    return value if value is not None and math.isfinite(value) else None
