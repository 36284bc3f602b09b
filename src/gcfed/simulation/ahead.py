"""Rounds concluded ahead: before it is known whether what came is finite."""

from collections.abc import Callable
from contextlib import suppress

from gcfed.core import tree
from gcfed.core.chain import acting_at
from gcfed.core.client import Trained
from gcfed.core.server import Server
from gcfed.core.torch_internals import versions
from gcfed.errors import InputError
from gcfed.population.population import Drawn
from gcfed.simulation.round import Sent, begin_conclusion, receive
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import Clients, RoundResult


def begin_trusting(
    setup: Setup,
    server: Server,
    clients: Clients,
    t: int,
    sent: Sent,
    trained: Trained,
    drawn: Drawn,
) -> Callable[[], RoundResult | None]:
    """`receive` and `begin_conclusion` of a whole cohort whose updates are taken as finite.

    Nothing is awaited, so that an accelerator has all of a round to do while the host does
    something else.  What is given waits for the result.  That is None if an update was not finite,
    and where the host keeps something of each client, for which it would have had to wait: then the
    round is to be done by `receive` and `conclude`.
    """
    averaging = setup.server_task.is_averaging
    kept = (trained.upload.memory, {} if averaging else trained.buffers)
    if acting_at(setup.algorithm, "init_row", "receive") or tree.holds_tensors(kept):
        return _untold
    ids = list(drawn.plans)
    given = [x for _, x in tree.leaves((server, trained.upload))]
    before = versions(given)
    conclusion: Callable[[], RoundResult | None] = _untold
    with suppress(Exception):  # a hook may refuse what is not finite; if not, it shows there
        part, after = receive(setup, server, clients, t, ids, sent, trained, trusting=True)
        conclusion = begin_conclusion(setup, server, after, t, [part], drawn.absent)

    def finish() -> RoundResult | None:
        result = conclusion()
        if result is None and versions(given) != before:
            raise InputError(
                f"{setup.algorithm} writes into tensors that its hooks are given, and was given an "
                "update that is not finite: hooks return new tensors (x + y, and not x.add_(y))"
            )
        return result

    return finish


def _untold() -> None:
    """What is said of a round that was not concluded ahead."""
