"""The command that says what noise is worth."""

import math
from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli import console
from gcfed.cli.options import Plugins, path_argument, setting_option
from gcfed.errors import InputError

EVERY, MOST_ROWS = 100, 20
WHAT = "What is trained"


def privacy(
    config: Annotated[Path | None, path_argument("[CONFIG.toml]")] = None,
    algorithm: Annotated[
        str | None,
        setting_option(WHAT, "A chain with clip_update and noise.", "the config's", "algorithms"),
    ] = None,
    clients: Annotated[
        int | None, setting_option(WHAT, "Number of clients.", "the config's; else it is needed")
    ] = None,
    cohort: Annotated[int | None, setting_option(WHAT, "Clients in a round.", "5")] = None,
    rounds: Annotated[int | None, setting_option(WHAT, "Number of rounds.", "100")] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="The chance with which the bound may fail.", show_default="clients ** -1.1"
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Say what a run with noise spends of its clients' privacy: epsilon, every 100 rounds.

    CONFIG.toml is a file of settings, such as the config.toml of a run.  Nothing is trained.
    docs/security.md says what an epsilon promises, to whom, and what it does not cover.

    Example:

        gcfed privacy --algorithm 'gcfed + clip_update(norm=1) + noise(multiplier=2)' --clients 1000
    """
    from gcfed.algorithms.spec import parse
    from gcfed.config.settings import make, override
    from gcfed.config.toml import read
    from gcfed.results.privacy import mechanism_of

    if delta is not None and not 0 < delta < 1:
        raise InputError(f"--delta is between 0 and 1, such as 1e-5; not {delta}")
    given = {"algorithm": algorithm, "clients": clients, "cohort": cohort, "rounds": rounds}
    changes = {key: value for key, value in given.items() if value is not None}
    values = {} if config is None else read(config)
    settings = make(override(values, changes), "settings" if config is None else str(config))
    mechanism = mechanism_of(parse(settings.algorithm), settings)
    if mechanism is None:
        raise InputError(
            f"{settings.algorithm} adds no noise, so its epsilon is infinite: add "
            "clip_update(norm=...) and noise(multiplier=...) to the chain"
        )
    delta = mechanism.delta if delta is None else delta
    last = settings.rounds
    step = EVERY * math.ceil(last / (EVERY * MOST_ROWS))
    shown = [*range(step, last, step), last]
    rows = [(str(t), f"{mechanism.epsilon(t, delta):.3g}") for t in shown]
    console.table(("rounds", "epsilon"), rows)
    proven = mechanism.proven_epsilon(last, delta)
    drawn = f"{mechanism.cohort} of {mechanism.clients:,} clients"
    if not mechanism.is_random:
        console.tell("not every client is as likely as any other: each counts as drawn always")
    console.tell(f"delta {delta:.2g}; epsilon as if each client were drawn by a coin of its own")
    console.tell(f"proven for exactly {drawn}, one in the place of another: epsilon {proven:.3g}")
