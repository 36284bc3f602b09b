"""What is fixed for a whole run: the algorithm, the model, the data and the schedule."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from gcfed.core.algorithm import Algorithm, Need
from gcfed.core.batches import Batches, BatchPlan
from gcfed.core.chain import acting_at, parts
from gcfed.core.client import ClientTask
from gcfed.core.draw_trial import ModelDraws, draws_of
from gcfed.core.hook_checks import naming_hooks
from gcfed.core.losses import Loss, cross_entropy
from gcfed.core.model import Model
from gcfed.core.optimizer import Optimizer
from gcfed.core.precision import Precision, arithmetic, resolve
from gcfed.core.schedule import Schedule, check_choice
from gcfed.core.server import BufferPolicy, ServerTask
from gcfed.core.tree import Tree
from gcfed.core.types import Transform
from gcfed.data.federated import FederatedData
from gcfed.engines import Choice, Engine, Train, choose
from gcfed.errors import InputError
from gcfed.population.availability import ALWAYS, Availability
from gcfed.population.faults import NO_FAULTS, Faults
from gcfed.population.population import Population
from gcfed.population.samplers import Sampler, uniform

Keep = Literal["uploads", "models"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run before it starts: the server's task, the clients' task, and the population.

    - ``engine``: how a cohort is trained: an engine by name, with its arguments if need be, or as
      an `Engine`, or a function of jobs.  A run opens it when it starts and closes it at its end.
    - ``engine_reason``: why it is this engine, where it stands in the place of the one asked for.
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
    - ``keep``: what a round's result holds of its clients beside the numbers: what they sent
      (``"uploads"``), the models they ended with (``"models"``).
    """

    algorithm: Algorithm
    model: Model
    data: FederatedData
    optimizer: Optimizer
    schedule: Schedule
    engine: Engine | Train | str = "auto"
    engine_reason: str = ""
    precision: Precision = "auto"
    loss: Loss = cross_entropy
    transform: Transform | None = None
    buffers: BufferPolicy = "average"
    chunk: int | None = None
    availability: Availability = ALWAYS
    sampler: Sampler = uniform
    faults: Faults = NO_FAULTS
    initial: Tree | None = None
    keep: frozenset[Keep] = frozenset({"uploads"})

    def __post_init__(self) -> None:
        check_choice("buffers", self.buffers, BufferPolicy)
        check_choice("precision", self.precision, Precision)
        self.population  # noqa: B018 (what is wrong with it is said first)
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk is a positive count; not {self.chunk}")
        if self.chunk is not None and any(
            "aggregate" in part.claims for part in parts(self.algorithm)
        ):
            raise InputError("an algorithm that replaces the mean needs the whole cohort: no chunk")
        if not self.model.params:
            raise InputError("the module has no parameter that needs a gradient: nothing to train")
        self.model.check_numbers()
        if self.initial is not None and self.initial.keys() != self.model.params.keys():
            raise InputError("the initial weights are not named as the model's parameters are")
        for need, (met, given) in self._met().items():
            needy = [type(p).__name__ for p in parts(self.algorithm) if need in p.needs]
            if needy and not met:
                names = " and ".join(needy)
                raise InputError(f"{given} breaks the equations of {names}, which need {need}")
        engine = self.chosen.make()
        if engine.needs_cuda and self.device.type != "cuda":
            name = self.chosen.name
            raise InputError(f"the {name} engine needs a CUDA device; on a CPU there is workers")
        if self.model.cross_batch and engine.pads:
            raise InputError(
                f"the {self.chosen.name} engine cannot train {', '.join(self.model.cross_batch)}: "
                "ragged batches are padded, and what looks across a batch would see the padding; "
                "use GroupNorm, or the sequential or workers engine"
            )
        if self.own_draws and engine.pads:
            raise InputError(
                f"the {self.chosen.name} engine cannot train {', '.join(self.own_draws)}: it draws "
                "random numbers by functions whose numbers cannot come from a key; use torch.rand, "
                "torch.randn or torch.bernoulli, or the sequential or workers engine"
            )
        with naming_hooks(self.algorithm):
            self.algorithm.check(self.model.params, self.model.roles)

    def _met(self) -> dict[Need, tuple[bool, str]]:
        """Whether this setup has what an algorithm may need, and what it has instead."""
        s, y = self.schedule, self.data.y
        return {
            "class labels": (self.data.has_classes, f"y of shape {list(y.shape)} and {y.dtype}"),
            "server_lr = 1": (s.server_lr == 1, f"server_lr={s.server_lr}"),
            "SGD": (self.optimizer.momentum is not None, type(self.optimizer).__name__),
            "uniform weights": (s.weighting == "uniform", f"weighting={s.weighting!r}"),
            "the plain mean of uploads": (
                not (apart := self._reads_uploads_apart()),
                f"{' and '.join(apart)}, which looks at uploads one by one,",
            ),
            "buffers that stay local": (
                self.buffers == "local" or not self.model.buffers,
                f"buffers='average' with a model that has {', '.join([*self.model.buffers][:3])}",
            ),
        }

    def _reads_uploads_apart(self) -> list[str]:
        """The parts of the algorithm for which the mean of uploads is not enough."""
        apart = acting_at(self.algorithm, "init_row", "receive", "aggregate")
        return [type(part).__name__ for part in apart]

    @cached_property
    def chosen(self) -> Choice:
        """Which engine trains this run, and why it is this one."""
        batch_size = self.schedule.batch_size
        found = choose(self.engine, self.model, batch_size, self.precision, self.own_draws)
        return found._replace(reason=self.engine_reason) if self.engine_reason else found

    @property
    def own_draws(self) -> tuple[str, ...]:
        """The modules whose random numbers no key can say."""
        return self.draws.own

    @cached_property
    def draws(self) -> ModelDraws:
        """How the model draws, as a trial shows."""
        two = BatchPlan.of([torch.zeros(2, dtype=torch.int64)])
        task, model = self._task(ModelDraws()), self.model

        def run(train: bool, key: Tensor | None) -> Tensor:
            x = next(Batches(self.data.handle, [two]).of(0)).x
            x = self.transform(x, model.evaluation_key) if self.transform else x
            out, _ = task.run(model.params, x, buffers=model.buffers, train=train, key=key)
            return out.logits

        return draws_of(model, run)

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.params.values())).device

    @cached_property
    def population(self) -> Population:
        """The clients: what each holds, and who takes part when."""
        return Population(self.data, self.schedule, self.availability, self.sampler, self.faults)

    @cached_property
    def server_task(self) -> ServerTask:
        """What the server does."""
        return ServerTask(
            self.algorithm,
            self.schedule,
            self.data.num_clients,
            self.buffers,
            self.model.roles,
        )

    @cached_property
    def client_task(self) -> ClientTask:
        """What every client does."""
        return self._task(self.draws)

    def _task(self, draws: ModelDraws) -> ClientTask:
        return ClientTask(
            self.algorithm,
            self.model,
            self.loss,
            self.optimizer,
            transform=self.transform,
            compute=torch.bfloat16 if self.precision == "bf16" else None,
            keep_models="models" in self.keep,
            own_draws=draws.own,
            draws_in_evaluation=draws.in_evaluation,
        )

    @cached_property
    def test_task(self) -> ClientTask:
        """What models are judged by."""
        return self.chosen.make().test_task(self.client_task)

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

    def lr(self, t: int) -> float:
        """The clients' learning rate in round ``t``."""
        return self.optimizer.lr * self.schedule.lr_factor(t)
