"""A cohort over the machines of a Ray cluster: workers that each train blocks of clients."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gcfed.core import tree
from gcfed.core.batches import BatchPlan
from gcfed.core.client import RECEIVED, ClientTask, Job, Trained
from gcfed.core.precision import TorchSettings
from gcfed.core.seeding import generators_kept
from gcfed.engines.block_trainer import RayBrief
from gcfed.engines.choice import ENGINES
from gcfed.engines.engine import Engine
from gcfed.engines.parcels import pack, pack_examples, unpack
from gcfed.engines.ray_crew import RayCrew
from gcfed.engines.ray_session import RaySession, require_ray
from gcfed.errors import InputError
from gcfed.pickling import by_value


@ENGINES.register("ray")
class RayWorkers(Engine):
    """Blocks of clients over the workers of a Ray cluster, each of which has an engine of its own.

    A cohort is cut into blocks of ``block`` clients, whatever the number of workers, and results
    are put together in the order of clients: any number of workers gives the same bits.  The
    examples travel once to each machine; those of a data set that is read while training, workers
    read for themselves.  The block of a worker that dies is done by another.
    Where the run is on a GPU, so is each worker, on one of its own.
    """

    name = "ray"

    def __init__(self, *, workers: int = 2, block: int = 8, engine: str = "sequential") -> None:
        """Set the number of workers, of clients in a block, and the engine that trains a block."""
        require_ray()
        for key, count in (("workers", workers), ("block", block)):
            if count < 1:
                raise InputError(f"ray({key}=...) is a positive count; not {count}")
        made = ENGINES.parse(engine)
        if made.func is RayWorkers:
            raise InputError("ray(engine=...) names the engine inside a worker; not ray itself")
        self._local: Engine = made()
        self.pads, self.needs_cuda = self._local.pads, self._local.needs_cuda
        self._workers, self._block, self._engine = workers, block, engine
        self._program: RayProgram | None = None

    def __call__(self, jobs: Sequence[Job]) -> list[Trained]:
        with generators_kept():  # Ray draws names of its own from Python's generator
            return self._train(jobs)

    def _train(self, jobs: Sequence[Job]) -> list[Trained]:
        if self._program is None or not self._program.fits(jobs):
            self.close()
            self._program = RayProgram(jobs, self._workers, self._engine)
        try:
            return self._program.run(jobs, self._block)
        except BaseException:
            self.close()  # what its workers are at is not known
            raise

    @property
    def products(self) -> str:
        return self._local.products

    def test_task(self, task: ClientTask) -> ClientTask:
        return self._local.test_task(task)

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        if self._program is not None:
            self._program.close()
        self._program = None


class ClientBlock(NamedTuple):
    """Some clients of a job: the job's number, where they begin, and what they train on."""

    job: int
    start: int
    plans: Sequence[BatchPlan]

    @property
    def clients(self) -> slice:
        return slice(self.start, self.start + len(self.plans))


class RayProgram:
    """Workers that know the tasks and the examples of some jobs."""

    def __init__(self, jobs: Sequence[Job], num_workers: int, engine: str) -> None:
        self._tasks = [job.task for job in jobs]
        self._data = [job.batches.data for job in jobs]
        examples = [pack_examples(data.examples) for data in self._data]
        device = _device(jobs[0])
        brief = RayBrief(self._tasks, engine, device, TorchSettings.current())
        self._session = RaySession(num_cpus=num_workers)
        try:
            self._put = self._session.ray.put
            knowledge = sys.path, by_value(brief), *examples
            self.crew = RayCrew(
                self._session.ray,
                num_workers,
                list(map(self._put, knowledge)),
                num_gpus=int(device == "cuda"),
            )
        except BaseException:
            self._session.close()
            raise

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        self.crew.close()
        self._session.close()

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Whether these jobs are those it was made for, in another round."""
        same_data = [a is job.batches.data for a, job in zip(self._data, jobs, strict=False)]
        same_tasks = [job.task for job in jobs] == self._tasks
        return len(jobs) == len(self._data) and all(same_data) and same_tasks

    def run(self, jobs: Sequence[Job], size: int) -> list[Trained]:
        """Train the clients of each job, in blocks of at most ``size``."""
        received = [self._put(pack(_received(job))) for job in jobs]
        blocks = [
            ClientBlock(j, start, job.batches.plans[start : start + size])
            for j, job in enumerate(jobs)
            for start in range(0, job.num_clients, size)
        ]

        def work(block: ClientBlock) -> tuple[Any, ...]:
            job, room = jobs[block.job], min(size, jobs[block.job].room)
            return block.job, received[block.job], pack(_own(job, block)), block.plans, room

        trained = self.crew.run(blocks, work)
        return [
            _together([unpack(trained[n]) for n, block in enumerate(blocks) if block.job == j], job)
            for j, job in enumerate(jobs)
        ]


def _device(job: Job) -> str:
    """Where workers train; on GPUs, each on the one that it sees, which is its first."""
    device = job.cohort.key.device
    if device.index:  # a pickled tensor goes to the device of the same number
        raise InputError(f"the ray engine needs device = 'cuda'; not {str(device)!r}")
    return device.type


def _received(job: Job) -> dict[str, Any]:
    """What all clients of a job received, once."""
    return {field: tree.take(getattr(job.cohort, field), 0) for field in RECEIVED}


def _own(job: Job, block: ClientBlock) -> dict[str, Any]:
    """What each client of a block has of its own."""
    fields = job.cohort._asdict().items()
    return {name: tree.take(x, block.clients) for name, x in fields if name not in RECEIVED}


def _together(blocks: Sequence[Trained], job: Job) -> Trained:
    """The clients of all blocks, in memory of this process, where the job's cohort lies."""
    device = job.cohort.key.device
    return tree.map(lambda *x: torch.cat(x).to(device), *blocks)
