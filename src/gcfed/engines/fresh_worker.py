"""Worker processes that are started afresh, where a fork would not be safe.

They get what they must know as a pickle, and tensors through shared memory.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
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
    packages = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    modules = [sys.modules[name] for name in packages & sys.modules.keys() if not _is_found(name)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_found(name: str) -> bool:
    """Whether an import would find a module, had it not been loaded already."""
    return any(finder.find_spec(name, None) is not None for finder in sys.meta_path)
