"""Worker processes that are started afresh, where a fork would not be safe.

They get what they must know as a pickle, and tensors through shared memory.
"""

import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from gcfed.core.batches import DataHandle
from gcfed.core.precision import TorchSettings
from gcfed.engines.shared_memory import lay_into
from gcfed.engines.worker_pool import FreshProcess, serve
from gcfed.engines.worker_program import ClientTrainer, SharedTensors, WorkerBrief

CODE = "from gcfed.engines.fresh_worker import main; main({pipe}, {file})"


def start_fresh(file: int, pipe: Connection, others: Sequence[Connection]) -> FreshProcess:
    """A process that shares the memory ``file`` and is first sent what `packed` gives."""
    code = CODE.format(pipe=pipe.fileno(), file=file)
    return FreshProcess(code, pipe.fileno(), file)


def packed(brief: WorkerBrief, shapes: SharedTensors, data: Sequence[DataHandle]) -> bytes:
    """All that a process must know to train in shared memory, whose tensors have ``shapes``."""
    names = [handle.name for handle in data]
    with _unfindable_by_value():
        value: bytes = cloudpickle.dumps((brief, shapes, names, TorchSettings.current()))
    return value


def main(pipe: int, file: int) -> None:
    """The life of such a process: it learns what it must know, then trains clients."""
    trainers: list[ClientTrainer] = []

    def work(*piece: Any) -> None:
        if trainers:
            trainers[0].train(*piece)
        else:
            trainers.append(_trainer(file, *piece))

    serve(Connection(pipe), work)


def _trainer(file: int, knowledge: bytes) -> ClientTrainer:
    brief, shapes, names, settings = cloudpickle.loads(knowledge)
    settings.apply()
    shared = lay_into(file, shapes)
    data = [DataHandle(x, name) for x, name in zip(shared.examples, names, strict=True)]
    return ClientTrainer(brief, shared, data)


@contextmanager
def _unfindable_by_value() -> Iterator[None]:
    """Inside, what modules define that another process would not find is pickled whole.

    So are plugins, which are files anywhere; what ``__main__`` defines always is.
    """
    modules = [module for name, module in list(sys.modules.items()) if _is_unfindable(name, module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_unfindable(name: str, module: ModuleType) -> bool:
    if name == "__main__" or getattr(module, "__file__", None) is None:
        return False
    parent, _, _ = name.rpartition(".")
    if parent and parent not in sys.modules:
        return True
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    return importlib.machinery.PathFinder.find_spec(name, path) is None
