"""A trial step before the first round, in which every hook of an algorithm is checked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from gcfed.core import tree
from gcfed.core.algorithm import Algorithm
from gcfed.core.client import Job, Trained
from gcfed.core.hook_checks import NOT_THE_HOOKS, with_checked_hooks
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


def rehearse(setup: Setup, server: Server, t: int, *, mapped: bool) -> None:
    """Refuse an algorithm with a hook that is wrong; nothing is changed.

    One client takes the first step of its round ``t``, under ``vmap`` if ``mapped``, and the server
    takes it in.  FedAvg does so first, so that what fails for it is known to be the model's fault
    or the loss's.
    """
    plain = server._replace(state={})
    with _told("the model and the loss cannot take a training step"):
        _try_step(setup, plain, t, Algorithm(), mapped=False)
    if mapped:
        name = setup.chosen.name
        with _told(f"the {name} engine cannot train this model, as sequential and workers can"):
            _try_step(setup, plain, t, Algorithm(), mapped)
    _try_step(setup, server, t, with_checked_hooks(setup.algorithm), mapped)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Inside, an error that is not the user's words becomes an `InputError` that says ``what``."""
    try:
        yield
    except NOT_THE_HOOKS:
        raise
    except Exception as error:
        raise InputError(f"{what}: {reason(error)}") from error


def _try_step(setup: Setup, server: Server, t: int, algorithm: Algorithm, mapped: bool) -> None:
    trial = replace(setup, algorithm=algorithm, faults=NO_FAULTS, keep=frozenset())
    server = tree.map(torch.clone, server)  # a hook may change what it is given
    nobody = Clients(HostStore(), HostStore(), HostStore())
    (client, *_) = trial.population.sample(t) or [0]
    plan = trial.population.plan(t, client).first(1)
    engine = FunctionEngine(_train_mapped) if mapped else Sequential()
    with suppress(DivergedError):  # the round itself will tell
        run_round(trial, server, nobody, t, [client], [plan], engine=engine)


def _train_mapped(jobs: Sequence[Job]) -> list[Trained]:
    lineup = Lineup.of(jobs)
    return lineup.finish(eagerly(lineup))
