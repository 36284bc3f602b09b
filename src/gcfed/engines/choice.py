"""Engines by name, and the one that suits the device and the model."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from gcfed.core.model import Model
from gcfed.core.precision import Precision
from gcfed.cpu import available_cores
from gcfed.engines.engine import Engine, FunctionEngine, Train
from gcfed.engines.sequential import Sequential
from gcfed.engines.shared_memory import can_share_memory
from gcfed.engines.streams import Streams
from gcfed.engines.vectorized import Fused, Vectorized
from gcfed.engines.workers import Workers
from gcfed.kernels.fitting import fits_model
from gcfed.kernels.products import FEW
from gcfed.registry import Registry, hyper_parameters


class EngineRegistry(Registry[Callable[..., Engine]]):
    """Engines by name; its table has ``auto`` too, which stands for one of them."""

    def rows(self) -> list[tuple[str, str, str]]:
        auto = ("auto", "The one that suits the device and the model; says which.", "")
        return [auto, *super().rows()]


ENGINES = EngineRegistry("engine")
"""What makes engines; ``workers(processes=4)`` names one and sets its arguments."""

for kind in (Sequential, Vectorized, Fused, Streams, Workers):
    ENGINES.register(kind.name)(kind)


class Choice(NamedTuple):
    """Which engine trains a run, by its name and what makes it, and why."""

    name: str
    make: Callable[[], Engine]
    reason: str


def choose(
    engine: Engine | Train | str,
    model: Model,
    batch_size: int,
    precision: Precision = "auto",
    own_draws: Sequence[str] = (),
) -> Choice:
    """The engine asked for; for ``"auto"`` the one that suits ``model`` where it lies.

    ``own_draws`` are modules whose random numbers no key can give: one client trains at a time.
    """
    if engine == "auto":
        return _auto(model, batch_size, precision, own_draws)
    if isinstance(engine, str):
        made = ENGINES.parse(engine)
        return Choice(_written(made), made, "as set")
    own = engine if isinstance(engine, Engine) else FunctionEngine(engine)
    return Choice(own.name, lambda: own, "as set")


def needs_cuda(engine: str) -> bool:
    """Whether the engine of this name works on a CUDA device alone."""
    return engine != "auto" and ENGINES.parse(engine)().needs_cuda


def _written(made: "partial[Engine]") -> str:
    """The name of an engine, with the arguments that are not its defaults."""
    defaults = hyper_parameters(made.func)
    given = [f"{k}={v!r}" for k, v in made.keywords.items() if v != defaults[k][1]]
    name = ENGINES.name_of(made.func) or made().name
    return f"{name}({', '.join(given)})" if given else name


def _auto(model: Model, batch_size: int, precision: Precision, own_draws: Sequence[str]) -> Choice:
    if next(iter(model.params.values())).device.type == "cpu":
        cores = available_cores()
        if cores > 1 and can_share_memory():
            return _chosen(Workers, f"{cores} cores, one client each")
        return _chosen(Sequential, "one core, one client at a time")
    if model.cross_batch:
        norms = ", ".join(model.cross_batch)
        return _chosen(Sequential, f"{norms} looks across a batch, which cannot be padded")
    if own_draws:
        return _chosen(Sequential, f"{', '.join(own_draws)} draws numbers of its own")
    if precision != "float32" and fits_model(model):
        return _chosen(Fused, "convolutions are operators for all clients")
    if model.convolutions and batch_size > FEW:
        return _chosen(Streams, "convolutions are fastest side by side")
    return _chosen(Vectorized, "products are fastest together")


def _chosen(kind: type[Engine], reason: str) -> Choice:
    return Choice(kind.name, kind, reason)
