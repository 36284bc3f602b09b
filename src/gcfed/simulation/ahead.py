"""Rounds concluded ahead: before it is known whether the clients' updates are finite."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gcfed.core import tree
from gcfed.core.client import Trained
from gcfed.core.server import Server
from gcfed.core.torch_internals import versions
from gcfed.errors import InputError
from gcfed.population.population import Drawn
from gcfed.simulation.round import Sent, arrive, result_of, sent_in_vain, taken
from gcfed.simulation.server_half import ServerHalf
from gcfed.simulation.setup import Setup
from gcfed.simulation.side_stream import fetch
from gcfed.simulation.snapshot import Clients, RoundResult, Snapshot


@dataclass(frozen=True)
class Trusted:
    """A round whose updates were taken as finite.

    ``at`` is where the run then stands.  ``finish`` waits for the result; that is None if an update
    was not finite: then the round is to be done by `receive` and `conclude`.  ``is_pure`` says that
    no hook wrote into what it was given.
    """

    at: Snapshot
    is_pure: bool
    finish: Callable[[], RoundResult | None]


def begin_trusting(
    setup: Setup,
    half: ServerHalf,
    server: Server,
    clients: Clients,
    t: int,
    sent: Sent,
    trained: Trained,
    drawn: Drawn,
    *,
    is_even: bool = False,
) -> Trusted | None:
    """`receive` and `conclude` of a whole cohort whose updates are taken as finite.

    Nothing is awaited, so that an accelerator has all of a round to do while the host does
    something else.  None where the host keeps something of each client, for which it would have to
    wait, and where a hook raises: then the round is done with care from the start.  If such a hook
    has written into what it was given there is no start to go back to, which is an error.
    """
    local = {} if setup.server_task.is_averaging else trained.buffers
    if setup.server_task.hears_each or tree.holds_tensors((trained.upload.memory, local)):
        return None
    given = tree.tensors((server, trained.upload))
    before = versions(given)
    try:
        ids = list(drawn.plans)
        arrived, upload = arrive(setup, t, ids, sent, trained)
        part = taken(setup, ids, range(len(ids)), sent, trained, upload)
        concluded = half(server, t, arrived, is_even=is_even)
        wasted = sent_in_vain(setup, server, drawn.absent)
        fetched = fetch(torch.stack([concluded.length, concluded.finite.to(concluded.length)]))
    except Exception as error:  # a hook may refuse what is not finite; if not, it shows there
        if versions(given) != before:
            raise _written(setup) from error
        return None
    at = Snapshot(t, concluded.server, clients)
    is_pure = versions(given) == before  # asked now: an engine may write there in the next round

    def finish() -> RoundResult | None:
        length, finite = fetched.wait().tolist()
        if finite:
            return result_of(setup, at, [part], drawn.absent, length, wasted)
        if not is_pure:
            raise _written(setup)
        return None

    return Trusted(at, is_pure, finish)


def _written(setup: Setup) -> InputError:
    return InputError(
        f"{setup.algorithm} writes into tensors that its hooks are given, which are read again "
        "where an update is not finite or a hook raises: hooks return new tensors (x + y, and not "
        "x.add_(y))"
    )
