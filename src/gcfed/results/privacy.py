"""What a run with noise spends of its clients' privacy: (epsilon, delta), by dp-accounting."""

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

from gcfed.algorithms.private import Noise
from gcfed.config.settings import Config
from gcfed.core.algorithm import Algorithm
from gcfed.core.chain import parts
from gcfed.errors import InputError

MISSING = "an epsilon needs dp-accounting: pip install 'gcfed[privacy]'"


@dataclass(frozen=True)
class Mechanism:
    """What every round of a run does for privacy: noise on the sum of some clients' updates.

    ``multiplier`` is the noise in units of the norm that updates are clipped to.  ``is_random`` is
    whether all clients are as likely to be drawn; where they are not, each counts as drawn always.
    """

    multiplier: float
    cohort: int
    clients: int
    is_random: bool

    @property
    def delta(self) -> float:
        """The delta that is usual for so many clients (McMahan et al., 2018)."""
        return float(max(self.clients, 2) ** -1.1)

    def epsilon(self, rounds: int, delta: float) -> float:
        """What is spent after so many rounds, if every client is drawn by a coin of its own.

        It is for the presence of one client, by the Renyi divergences of the subsampled Gaussian
        mechanism (Mironov et al., 2019).  Ours draws a fixed number of clients, for which this is
        customary and not proven; `proven_epsilon` is.
        """
        events, accountant = _accounting()
        event = events.GaussianDpEvent(self.multiplier)
        if self.is_random and self.cohort < self.clients:
            event = events.PoissonSampledDpEvent(self.cohort / self.clients, event)
        return float(accountant().compose(event, rounds).get_epsilon(delta))

    def proven_epsilon(self, rounds: int, delta: float) -> float:
        """A bound that holds for a fixed number of clients, drawn without replacement.

        It is for one client in the place of another, which changes a sum by up to twice the norm
        (Wang et al., 2019).
        """
        events, accountant = _accounting()
        event = events.GaussianDpEvent(self.multiplier / 2)
        if self.is_random and self.cohort < self.clients:
            event = events.SampledWithoutReplacementDpEvent(self.clients, self.cohort, event)
        relation = events.NeighboringRelation.REPLACE_ONE
        replacing = accountant(neighboring_relation=relation)
        return float(replacing.compose(event, rounds).get_epsilon(delta))


def mechanism_of(algorithm: Algorithm, config: Config) -> Mechanism | None:
    """What a run does for privacy in every round; None without noise."""
    noise = next((part for part in parts(algorithm) if isinstance(part, Noise)), None)
    if noise is None:
        return None
    if config.clients is None:
        raise InputError(
            "an epsilon depends on the number of clients: give --clients, or set clients"
        )
    is_random = (config.sampler, config.availability) == ("uniform", "always")
    return Mechanism(noise.multiplier, config.cohort, config.clients, is_random)


class Spent(NamedTuple):
    """What a run spent of its clients' privacy; the epsilon is None without dp-accounting.

    >>> print(Spent(8.0548, 0.00631))
    epsilon 8.05 at delta 0.0063
    """

    epsilon: float | None
    delta: float

    def __str__(self) -> str:
        if self.epsilon is None:
            return MISSING
        return f"epsilon {self.epsilon:.3g} at delta {self.delta:.2g}"


def spent(algorithm: Algorithm, config: Config, rounds: int) -> Spent | None:
    """What a run spends in so many rounds; None without noise."""
    mechanism = mechanism_of(algorithm, config)
    if mechanism is None:
        return None
    try:
        return Spent(mechanism.epsilon(rounds, mechanism.delta), mechanism.delta)
    except InputError:  # what would say it is not installed
        return Spent(None, mechanism.delta)


def _accounting() -> tuple[Any, Any]:
    """The module that describes mechanisms, and the class that adds up what they spend."""
    try:
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        raise InputError(MISSING) from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # it would comment on every order it tries
    return dp_accounting, RdpAccountant
