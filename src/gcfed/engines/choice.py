"""Engines by name, and the one that suits the device and the model."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gcfed.core.client import Job, Trained
from gcfed.core.model import Model
from gcfed.engines.sequential import sequential
from gcfed.engines.streams import streams
from gcfed.engines.vectorized import vectorized
from gcfed.engines.workers import available_cores, can_fork, workers
from gcfed.kernels.products import FEW
from gcfed.registry import Registry

Engine = Callable[[Sequence[Job]], list[Trained]]
"""Trains the cohorts of one or several runs; each goes out as it came, clients stacked, and is good
until the engine is called again.
"""


class Choice(NamedTuple):
    """An engine, its name, and why it was chosen."""

    name: str
    engine: Engine
    reason: str


ENGINES: Registry[Engine] = Registry("engine")
ENGINES.register("sequential")(sequential)
ENGINES.register("vectorized")(vectorized)
ENGINES.register("streams")(streams)
ENGINES.register("workers")(workers)


def needs_cuda(engine: Engine) -> bool:
    """Whether it works on a GPU alone."""
    return bool(getattr(engine, "needs_cuda", False))


def choose(engine: Engine | str, model: Model, batch_size: int) -> Choice:
    """The engine asked for; for ``"auto"`` the one that suits ``model`` where it lies."""
    if engine == "auto":
        return _auto(model, batch_size)
    if isinstance(engine, str):
        return Choice(engine, ENGINES[engine], "as asked")
    return Choice(getattr(engine, "name", "own"), engine, "as asked")


def _auto(model: Model, batch_size: int) -> Choice:
    if next(iter(model.params.values())).device.type == "cpu":
        cores = available_cores()
        if cores > 1 and can_fork():
            return Choice("workers", workers, f"{cores} cores, one client each")
        return Choice("sequential", sequential, "one core, one client at a time")
    if model.cross_batch:
        norms = ", ".join(model.cross_batch)
        return Choice("sequential", sequential, f"batch statistics ({norms}) cannot be padded")
    if model.has_convolutions and batch_size > FEW:
        return Choice("streams", streams, "convolutions are fastest side by side")
    return Choice("vectorized", vectorized, "products are fastest together")
