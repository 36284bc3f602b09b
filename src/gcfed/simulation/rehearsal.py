"""A trial step before the first round, in which every hook of an algorithm is checked."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.algorithm import Algorithm
from gcfed.core.client import Job, Trained
from gcfed.core.hook_checks import NOT_THE_HOOKS, with_checked_hooks
from gcfed.core.losses import Loss
from gcfed.core.memory import HostStore
from gcfed.core.server import Server
from gcfed.engines.engine import FunctionEngine
from gcfed.engines.graphs import eagerly
from gcfed.engines.lineup import Lineup
from gcfed.engines.sequential import Sequential
from gcfed.errors import DivergedError, InputError, reason
from gcfed.population.faults import NO_FAULTS
from gcfed.simulation.round import run_round
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import Clients

NO_MAP = "the model cannot be mapped over clients"


def rehearse(setup: Setup, server: Server, t: int) -> Setup:
    """Refuse an algorithm with a hook that is wrong; nothing is changed.

    One client takes the first step of its round ``t``, under ``vmap`` if the engine uses it, and
    the server takes it in.  FedAvg does so first, so that what fails for it is known to be the
    model's fault or the loss's.  What is given is the setup, with an engine that can train it.
    """
    setup = with_able_engine(setup, server, t)
    _try_step(setup, server, t, with_checked_hooks(setup.algorithm))
    return setup


def with_able_engine(setup: Setup, server: Server, t: int) -> Setup:
    """The setup as it is, or with the engine `Sequential` where its own cannot train the model.

    ``vmap`` cannot run a model that reads a number out of a tensor, as ``.item()`` and ``if`` do.
    """
    server = server._replace(state={})
    first = partial(_try_step, setup, server, t, Algorithm())  # whose check does not warn again
    alone: dict[str, Any] = {"engine": Sequential.name, "engine_reason": NO_MAP}
    with _told("the model and the loss cannot take a training step"), _flat_refused(setup) as loss:
        first(**alone, loss=loss)
    try:
        if setup.chosen.make().pads:
            first()
        return setup
    except NOT_THE_HOOKS:
        raise
    except Exception as error:
        warnings.warn(
            f"the {setup.chosen.name} engine cannot train this model, so the sequential one does, "
            f"a client at a time: {reason(error)}",
            stacklevel=3,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the setup that was given has warned already
            return replace(setup, **alone)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Inside, any error but `NOT_THE_HOOKS` becomes an `InputError` that says ``what``."""
    try:
        yield
    except NOT_THE_HOOKS:
        raise
    except Exception as error:
        raise InputError(f"{what}: {reason(error)}") from error


@contextmanager
def _flat_refused(setup: Setup) -> Iterator[Loss]:
    """A loss to take inside in place of a setup's, which is refused if none of it has a gradient.

    Where nothing leads from the loss to a weight, torch.func gives zeros for the gradient.
    """
    leads: list[bool] = []

    def noted(logits: Tensor, y: Tensor) -> Tensor:
        found = setup.loss(logits, y)
        if not found.is_floating_point():
            raise InputError("the loss gives whole numbers, and those have no gradient")
        leads.append(found.requires_grad)
        return found

    yield noted
    if leads and not any(leads):
        raise InputError(
            "no gradient leads from the loss to a weight, so that nothing would be trained: the "
            "model or the loss has torch.no_grad(), .detach() or argmax on the way"
        )


def _try_step(setup: Setup, server: Server, t: int, algorithm: Algorithm, **changes: Any) -> None:
    trial = replace(setup, algorithm=algorithm, faults=NO_FAULTS, keep=frozenset(), **changes)
    server = tree.map(torch.clone, server)  # a hook may change what it is given
    nobody = Clients(HostStore(), HostStore(), HostStore())
    (client, *_) = trial.population.sample(t) or [0]
    plan = trial.population.plan(t, client).first(1)
    engine = FunctionEngine(_train_mapped) if trial.chosen.make().pads else Sequential()
    with suppress(DivergedError):  # the round itself will tell
        run_round(trial, server, nobody, t, [client], [plan], engine=engine)


def _train_mapped(jobs: Sequence[Job]) -> list[Trained]:
    lineup = Lineup.of(jobs)
    return lineup.finish(eagerly(lineup))
