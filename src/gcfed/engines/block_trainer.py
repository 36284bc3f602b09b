"""What a Ray worker does: it trains blocks of clients by an engine of its own."""

import os
import platform
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gcfed.core import keys, tree
from gcfed.core.batches import Batches, BatchPlan, DataHandle
from gcfed.core.client import Client, ClientTask, Job
from gcfed.core.hook_checks import naming_hooks
from gcfed.core.precision import TorchSettings, arithmetic
from gcfed.engines.choice import ENGINES
from gcfed.engines.parcels import ExamplesParcel, Parcel, pack, unpack, unpack_examples
from gcfed.errors import InputError
from gcfed.pickling import unpacked
from gcfed.processes import keep_freed_memory, to_send


class RayBrief(NamedTuple):
    """What a worker must know: each job's task, the engine that trains, and torch's settings."""

    tasks: list[ClientTask]
    engine: str
    device: str
    settings: TorchSettings


class BlockTrainer:
    """Trains blocks of clients: a Ray actor.

    It has one thread, so that a block's bits depend on nothing but the block.  ``path`` is where
    the process that made ``brief`` looks for modules.
    """

    def __init__(self, path: list[str], brief: bytes, *examples: ExamplesParcel) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        torch.set_num_threads(1)
        keep_freed_memory()
        self._failure: Exception | None = None
        try:
            self._learn(brief, examples)
        except Exception as error:  # raised here, Ray would take it for the death of the worker
            self._failure = _told(error)

    def _learn(self, brief: bytes, examples: Sequence[ExamplesParcel]) -> None:
        self._brief: RayBrief = unpacked(brief)
        self._brief.settings.apply()
        self._device = torch.device(self._brief.device)
        self._data = [DataHandle(unpack_examples(each).to(self._device)) for each in examples]
        self._engine = ENGINES.parse(self._brief.engine)()

    def ready(self) -> int | Exception:
        """The number of the worker's process, or what went wrong when it was started."""
        return self._failure or os.getpid()

    def train(
        self, j: int, received: Parcel, own: Parcel, plans: Sequence[BatchPlan], room: int
    ) -> Parcel | Exception:
        """Train some clients of job ``j``: what became of them, or what went wrong.

        ``received`` is what all clients of the job received, ``own`` what each of these has.
        """
        try:
            task = self._brief.tasks[j]
            job = Job(task, self._cohort(received, own, plans), self._batches(j, plans), room)
            precise = arithmetic(self._brief.settings.precision)
            with naming_hooks(task.algorithm), keys.untouched(), precise:
                (trained,) = self._engine([job])
            return pack(trained)
        except Exception as error:
            return _told(error)

    def _cohort(self, received: Parcel, own: Parcel, plans: Sequence[BatchPlan]) -> Client:
        shared, each = (
            tree.map(lambda x: x.clone().to(self._device), unpack(parcel))
            for parcel in (received, own)
        )
        return Client(**tree.expand(shared, len(plans)), **each)

    def _batches(self, j: int, plans: Sequence[BatchPlan]) -> Batches:
        return Batches(self._data[j], plans)


def _told(error: Exception) -> Exception:
    """An error as it is sent back, with the machine, whose files may not be those of others."""
    where = f"in a Ray worker on {platform.node()}"
    if isinstance(error, InputError):
        return InputError(f"{where}: {error}")
    return to_send(error, where)
