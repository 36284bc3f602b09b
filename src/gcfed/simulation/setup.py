"""What is fixed for a whole run: the algorithm, the model, the data and the schedule."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from gcfed.core import keys
from gcfed.core.algorithm import Algorithm, Need, parts
from gcfed.core.batches import BatchPlan, Fill, plan
from gcfed.core.client import ClientTask, Loss
from gcfed.core.model import Model
from gcfed.core.optimizer import Optimizer
from gcfed.core.tree import Tree
from gcfed.core.types import Transform
from gcfed.data.federated import FederatedData
from gcfed.engines import (
    Choice,
    Engine,
    Precision,
    arithmetic,
    choose,
    needs_cuda,
    resolve,
)
from gcfed.errors import InputError
from gcfed.population.availability import ALWAYS, Availability, ClientIds
from gcfed.population.faults import NO_FAULTS, Fate, Faults
from gcfed.population.samplers import Sampler, uniform

LrSchedule = Literal["constant", "exponential", "cosine"]
Weighting = Literal["uniform", "examples"]
OnNonfinite = Literal["fail", "drop"]
BufferPolicy = Literal["average", "local"]


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
        if (self.epochs is None) == (self.steps is None):
            raise InputError("a schedule gives epochs or steps: one of them, not both")
        for name in ("rounds", "cohort_size", "batch_size", "epochs", "steps"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise InputError(f"{name} is a positive count; not {count}")
        for name in ("lr_decay", "server_lr"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} is a finite number; not {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed is between 0 and 2^32 - 1; not {self.seed}")
        if self.lr_decay != 1 and self.lr_schedule != "exponential":
            raise InputError(f"lr_decay={self.lr_decay} goes with lr_schedule='exponential'")
        _check_choice("fill", self.fill, Fill)
        _check_choice("lr_schedule", self.lr_schedule, LrSchedule)
        _check_choice("weighting", self.weighting, Weighting)
        _check_choice("on_nonfinite", self.on_nonfinite, OnNonfinite)

    def lr_factor(self, t: int) -> float:
        """What the optimiser's learning rate is multiplied by in round ``t``."""
        match self.lr_schedule:
            case "constant":
                return 1.0
            case "exponential":
                return self.lr_decay**t
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * t / self.rounds))


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run before it starts.

    - ``engine``: how a cohort is trained, by name or as a function.
    - ``precision``: how products are computed, ``"float32"`` being strict; ``"auto"`` is
      ``"tf32"`` on a GPU.
    - ``transform``: the first thing that a batch's x goes through, with a key in training
      (augmentation), with None in evaluation.  It maps over clients, so it is pure.
    - ``buffers``: what becomes of those that training changes, such as BatchNorm's statistics:
      averaged over the cohort like weights, or each client's own.
    - ``chunk``: how many clients of a cohort are trained and held at once, all by default; the mean
      is then a sum over chunks in order.
    - ``availability``: who can be drawn in a round; ``sampler``: who is; ``faults``: what then goes
      wrong.
    - ``initial``: weights in place of the model's, so that runs from different weights can share a
      model.
    """

    algorithm: Algorithm
    model: Model
    data: FederatedData
    optimizer: Optimizer
    schedule: Schedule
    engine: Engine | str = "auto"
    precision: Precision = "auto"
    loss: Loss = cross_entropy
    transform: Transform | None = None
    buffers: BufferPolicy = "average"
    chunk: int | None = None
    availability: Availability = ALWAYS
    sampler: Sampler = uniform
    faults: Faults = NO_FAULTS
    initial: Tree | None = None

    def __post_init__(self) -> None:
        _check_choice("buffers", self.buffers, BufferPolicy)
        _check_choice("precision", self.precision, Precision)
        if self.schedule.cohort_size > self.data.num_clients:
            raise InputError(
                f"a cohort of {self.schedule.cohort_size} cannot be drawn from "
                f"{self.data.num_clients} clients"
            )
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk is a positive count; not {self.chunk}")
        if self.chunk is not None and any(
            "aggregate" in part.claims for part in parts(self.algorithm)
        ):
            raise InputError("an algorithm that replaces the mean needs the whole cohort: no chunk")
        if not self.model.params:
            raise InputError("the module has no parameter that needs a gradient: nothing to train")
        if self.initial is not None and self.initial.keys() != self.model.params.keys():
            raise InputError("the initial weights are not named as the model's parameters are")
        for need, (met, given) in self._met().items():
            needy = [type(p).__name__ for p in parts(self.algorithm) if need in p.needs]
            if needy and not met:
                names = " and ".join(needy)
                raise InputError(f"{given} breaks the equations of {names}, which need {need}")
        if needs_cuda(self.chosen.engine) and self.device.type != "cuda":
            name = self.chosen.name
            raise InputError(f"the {name} engine needs a CUDA device; on a CPU there is workers")
        if self.model.cross_batch and getattr(self.chosen.engine, "pads", False):
            raise InputError(
                f"the {self.chosen.name} engine cannot train {', '.join(self.model.cross_batch)}: "
                "ragged batches are padded, and batch statistics would count the padding; "
                "use GroupNorm, or the sequential or workers engine"
            )
        self.algorithm.check(self.model.params, self.model.head)
        self.available(0)  # what is wrong with it, or with the sampler, shows before a run starts
        self._draw(0, range(self.data.num_clients))

    def _met(self) -> dict[Need, tuple[bool, str]]:
        """Whether this setup has what an algorithm may need, and what it has instead."""
        s, y = self.schedule, self.data.y
        return {
            "class labels": (self.data.has_classes, f"y of shape {list(y.shape)} and {y.dtype}"),
            "server_lr = 1": (s.server_lr == 1, f"server_lr={s.server_lr}"),
            "SGD": (self.optimizer.momentum is not None, type(self.optimizer).__name__),
            "uniform weights": (s.weighting == "uniform", f"weighting={s.weighting!r}"),
        }

    @cached_property
    def chosen(self) -> Choice:
        """The engine of this run, and why it is this one."""
        return choose(self.engine, self.model, self.schedule.batch_size)

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.params.values())).device

    @cached_property
    def task(self) -> ClientTask:
        """What every client does."""
        low = torch.bfloat16 if self.precision == "bf16" else None
        return ClientTask(
            self.algorithm, self.model, self.loss, self.optimizer, self.transform, low
        )

    def arithmetic(self) -> AbstractContextManager[None]:
        """Inside, products are as precise as this setup asks."""
        return arithmetic(resolve(self.precision, self.device))

    @property
    def room(self) -> int:
        """How many clients are trained at once, at most."""
        return min(self.chunk or self.schedule.cohort_size, self.schedule.cohort_size)

    def chunks(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """A cohort in the parts that are trained at once."""
        return [ids[start : start + self.room] for start in range(0, len(ids), self.room)]

    def available(self, t: int) -> ClientIds:
        """The clients that can be drawn in round ``t``."""
        return self.availability(self.data.num_clients, t, self.schedule.seed)

    def sample(self, t: int) -> list[int]:
        """The cohort of round ``t``, without replacement; smaller where fewer are available."""
        among = self.available(t)
        return self._draw(t, among) if len(among) else []

    def _draw(self, t: int, among: ClientIds) -> list[int]:
        rng, size = keys.generator("cohort", self.schedule.seed, t), self.schedule.cohort_size
        return sorted(self.sampler(self.data.parts, among, size, t, rng).tolist())

    def fate(self, t: int, client: int) -> Fate:
        """What befalls a client in round ``t``."""
        return self.faults.of(self.schedule.seed, t, client)

    def plan(self, t: int, client: int) -> BatchPlan:
        """What a client trains on in round ``t``, whoever else takes part."""
        s, part = self.schedule, self.data.parts[client]
        rng = keys.generator("batches", s.seed, t, client)
        whole = plan(part, s.batch_size, epochs=s.epochs, steps=s.steps, fill=s.fill, rng=rng)
        return whole.first(self.faults.steps(len(whole))) if self.fate(t, client).late else whole

    def keys(self, t: int, ids: Sequence[int]) -> Tensor:
        """The random keys of clients in round ``t``."""
        return keys.fold(keys.key(self.schedule.seed, t), torch.tensor(ids)[:, None])

    def lr(self, t: int) -> float:
        """The clients' learning rate in round ``t``."""
        return self.optimizer.lr * self.schedule.lr_factor(t)

    def sizes(self, ids: Sequence[int]) -> Tensor:
        """How much each client counts: its examples, or one."""
        examples = self.data.num_examples(ids).double()
        return examples if self.schedule.weighting == "examples" else torch.ones_like(examples)

    def weights(self, ids: Sequence[int]) -> Tensor:
        """How much each of these clients counts among them; they sum to one."""
        sizes = self.sizes(ids)
        return sizes / sizes.sum()


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise InputError(f"{name} is one of {', '.join(get_args(choices))}; not {value!r}")
