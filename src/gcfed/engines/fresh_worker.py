"""Worker processes that are started afresh, where a fork would not be safe.

They get what they must know as a pickle, and tensors through shared memory.
"""

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from gcfed.core.batches import DataHandle
from gcfed.core.precision import TorchSettings
from gcfed.engines.shared_memory import lay_into
from gcfed.engines.worker_program import ClientTrainer, SharedTensors, WorkerBrief
from gcfed.pickling import by_value, unpacked
from gcfed.processes import FreshProcess, serve

CODE = "from gcfed.engines.fresh_worker import main; main({pipe}, {file})"


def start_fresh(file: int, pipe: Connection, others: Sequence[Connection]) -> FreshProcess:
    """A process that shares the memory ``file`` and is first sent what `packed` gives."""
    code = CODE.format(pipe=pipe.fileno(), file=file)
    return FreshProcess(code, pipe.fileno(), file)


def packed(brief: WorkerBrief, shapes: SharedTensors, data: Sequence[DataHandle]) -> bytes:
    """All that a process must know to train in shared memory, whose tensors have ``shapes``."""
    lazy = [handle.examples.lazy for handle in data]
    names = [handle.name for handle in data]
    return by_value((brief, shapes, names, lazy, TorchSettings.current()))


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
    brief, shapes, names, lazy, settings = unpacked(knowledge)
    settings.apply()
    shared = lay_into(file, shapes)
    data = [
        DataHandle(examples.with_lazy(x), name)
        for examples, x, name in zip(shared.examples, lazy, names, strict=True)
    ]
    return ClientTrainer(brief, shared, data)
