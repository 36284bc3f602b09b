"""The line of a round: what it was, what the model scores after it, and a hash of its weights."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.lazy import LazyInputs
from gcfed.core.tree import Tree
from gcfed.simulation.evaluation import Scores, TestSet, begin_evaluation
from gcfed.simulation.setup import Setup
from gcfed.simulation.side_stream import AT_ONCE, Fetched, SideStream
from gcfed.simulation.snapshot import RoundResult

Record = dict[str, Any]
"""A round in numbers, the same for two equal runs: a line of rounds.jsonl."""


def _begin_cohort(
    setup: Setup, result: RoundResult, test: TestSet, side: SideStream
) -> Callable[[], list[Scores]]:
    """`begin_evaluation` with the buffers of each client of a round: the mean of the scores."""
    server, device = result.server, result.losses.device
    rows = [
        result.clients.buffers.gather([i], lambda: server.buffers, device)
        for i in result.survivors or result.ids
    ]
    servers = [server._replace(buffers=tree.take(buffers, 0)) for buffers in rows]
    finish_each = begin_evaluation(setup, servers, test, side)

    def finish() -> list[Scores]:
        found = finish_each()
        return [{name: sum(m[name] for m in found) / len(found) for name in found[0]}]

    return finish


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
    return record_together([setup], [result], [tests or {}], due=due)[0]


def record_together(
    setups: Sequence[Setup],
    results: Sequence[RoundResult],
    tests: Sequence[Mapping[str, TestSet]],
    *,
    due: bool = True,
) -> list[Record]:
    """`record` for runs that are trained together: what is judged by the same examples, at once."""
    return begin_records(setups, results, tests, AT_ONCE, due=due)()


def begin_records(
    setups: Sequence[Setup],
    results: Sequence[RoundResult],
    tests: Sequence[Mapping[str, TestSet]],
    side: SideStream,
    *,
    due: bool = True,
) -> Callable[[], list[Record]]:
    """Begin to compute the lines of a round; the result is a function that waits and makes them.

    Until then a GPU and its host can go on with the next round: models are judged on ``side``, and
    hashes are made in a thread.
    """
    if due and any(isinstance(test.x, LazyInputs) for each in tests for test in each.values()):
        side.rest()  # readers of examples may be forked
    with side.entered():
        weights = [side.fetch({**r.server.params, **r.server.buffers}) for r in results]
        # their index is copied from the host, which would wait for the scores if those came first
        losses = {i: loss for i, r in enumerate(results) if (loss := _train_loss(r)) is not None}
        finish_scores = _begin_scores(setups, results, tests, side) if due else None
        fetched = side.fetch(losses)  # the last of all
    hashes = [side.begin(partial(_sha256, each)) for each in weights]

    def finish() -> list[Record]:
        found = fetched.wait()
        scores = [{} for _ in setups] if finish_scores is None else finish_scores()
        means = [found[i].item() if i in found else None for i in range(len(setups))]
        done = [sha256() for sha256 in hashes]
        return list(map(_line, setups, results, tests, scores, means, done))

    return finish


def _begin_scores(
    setups: Sequence[Setup],
    results: Sequence[RoundResult],
    tests: Sequence[Mapping[str, TestSet]],
    side: SideStream,
) -> Callable[[], list[dict[str, Scores]]]:
    """Have every run judged on each split that there is something to judge by."""
    begun: list[tuple[str, list[int], Callable[[], list[Scores]]]] = []
    alike: dict[tuple[str, int], list[int]] = {}  # the runs that are judged by the same examples
    for i, (setup, result) in enumerate(zip(setups, results, strict=True)):
        for split, test in tests[i].items():
            if not _is_local(setup, result):
                alike.setdefault((split, id(test.x)), []).append(i)
            elif result.ids:
                begun.append((split, [i], _begin_cohort(setup, result, test, side)))
    for (split, _), runs in alike.items():
        servers, first = [results[i].server for i in runs], runs[0]
        finish_split = begin_evaluation(setups[first], servers, tests[first][split], side)
        begun.append((split, runs, finish_split))

    def finish() -> list[dict[str, Scores]]:
        scores: list[dict[str, Scores]] = [{} for _ in setups]
        for split, runs, finish_split in begun:
            for i, score in zip(runs, finish_split(), strict=True):
                scores[i][split] = score
        return scores

    return finish


def _line(
    setup: Setup,
    result: RoundResult,
    tests: Mapping[str, TestSet],
    scores: Mapping[str, Scores],
    train_loss: float | None,
    sha256: str,
) -> Record:
    numbers: dict[str, float | None] = {"test_accuracy": None, "test_loss": None}
    for split, test in tests.items():
        found = scores.get(split, {})
        numbers |= {f"{split}_{m}": _number(found.get(m)) for m in ("loss", *test.metrics)}
    among = setup.population.available(result.round)
    return {
        "round": result.round,
        **numbers,
        "tested": ("cohort" if _is_local(setup, result) else "global") if scores else None,
        "train_loss": _number(train_loss),
        "clients": result.ids,
        "dropped": result.dropped,
        "absent": result.absent,
        "late": result.late,
        "corrupted": result.corrupted,
        **({} if isinstance(among, range) else {"available": len(among)}),
        "update_norm": result.update_norm,
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "weights_sha256": sha256,
    }


def weights_sha256(weights: Tree) -> str:
    """A fingerprint of names, dtypes, shapes and every bit of the values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _is_local(setup: Setup, result: RoundResult) -> bool:
    """Whether each client has buffers of its own, so that there is no global model."""
    return setup.buffers == "local" and bool(result.server.buffers)


def _sha256(weights: Fetched[Tree]) -> str:
    return weights_sha256(weights.wait())


def _train_loss(result: RoundResult) -> Tensor | None:
    """The mean over the clients that entered the round."""
    kept = [k for k, i in enumerate(result.ids) if i not in result.dropped]
    if not kept:
        return None
    losses = result.losses[kept] if result.dropped else result.losses  # an index would be copied
    return losses.double().mean()


def _number(value: float | None) -> float | None:
    """A finite number, or None: JSON knows no other."""
    return value if value is not None and math.isfinite(value) else None
