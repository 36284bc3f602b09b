"""Who trains when, on how much, and how the updates are weighed."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from gcfed.core.batches import Fill
from gcfed.errors import InputError
from gcfed.values import checked, type_hints

LrSchedule = Literal["constant", "exponential", "cosine"]
Weighting = Literal["uniform", "examples"]
OnNonfinite = Literal["fail", "drop"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Who trains when, on how much, and how their updates are weighed.

    A client passes over its examples ``epochs`` times, or takes ``steps`` steps; ``fill`` says
    whether its first examples are repeated until every batch is full.  From round to round the
    clients' learning rate stays (``lr_schedule="constant"``), is multiplied by ``lr_decay``
    (``"exponential"``) or falls along half a cosine to zero (``"cosine"``); the server's step is
    multiplied by ``server_lr``.  A non-finite update ends the run (``on_nonfinite="fail"``) or is
    left out of its round (``"drop"``).
    """

    rounds: int
    cohort_size: int
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    fill: Fill = "repeat"
    seed: int = 0
    lr_schedule: LrSchedule = "constant"
    lr_decay: float = 1.0
    server_lr: float = 1.0
    weighting: Weighting = "uniform"
    on_nonfinite: OnNonfinite = "fail"

    def __post_init__(self) -> None:
        for name, hint in type_hints(Schedule).items():
            if get_origin(hint) is not Literal:
                checked(name, getattr(self, name), hint)
        if (self.epochs is None) == (self.steps is None):
            raise InputError("a schedule gives epochs or steps: one of them, not both")
        for name in ("rounds", "cohort_size", "batch_size", "epochs", "steps"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise InputError(f"{name} is a positive count; not {count}")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed is between 0 and 2^32 - 1; not {self.seed}")
        if self.lr_decay != 1 and self.lr_schedule != "exponential":
            raise InputError(f"lr_decay={self.lr_decay} goes with lr_schedule='exponential'")
        check_choice("fill", self.fill, Fill)
        check_choice("lr_schedule", self.lr_schedule, LrSchedule)
        check_choice("weighting", self.weighting, Weighting)
        check_choice("on_nonfinite", self.on_nonfinite, OnNonfinite)

    def lr_factor(self, t: int) -> float:
        """What the optimiser's learning rate is multiplied by in round ``t``."""
        match self.lr_schedule:
            case "constant":
                return 1.0
            case "exponential":
                return self.lr_decay**t
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * t / self.rounds))


def check_choice(name: str, value: str, choices: Any) -> None:
    """Refuse a value that is not one of a Literal's."""
    if value not in get_args(choices):
        raise InputError(f"{name} is one of {', '.join(get_args(choices))}; not {value!r}")
