"""The cells of a sweep as tasks of a Ray cluster, which finds a place for each of them.

A cell's run directories lie where the sweep's store does, so this is a folder that all machines
have.  A worker that dies is replaced by Ray, and the cell goes on from its last checkpoint.
"""

import os
import platform
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gcfed.config.settings import Config
from gcfed.engines.ray_session import RaySession
from gcfed.errors import InputError, reason
from gcfed.runs.interrupt import stop_request
from gcfed.sweeps.child import CellJob, ChildMessage, Ended, Note, Started, train_cell
from gcfed.sweeps.devices import Allotment
from gcfed.sweeps.pool import POLL, Tell

RETRIES = 3  # times that a cell is begun again after its worker died


def ray_device(names: str | Sequence[str] | None, default: str, per_device: int) -> str:
    """What each cell gets of a cluster: ``cuda``, a GPU or a part of one, or ``cpu``, cores."""
    if isinstance(names, str):
        names = names.split(",")
    name, *others = names or [default]
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if others or name not in ("cpu", "cuda"):
        raise InputError(
            f"with Ray, which finds each cell a place, the device is cpu or cuda; not "
            f"{','.join([name, *others])}"
        )
    if per_device < 1 or (per_device > 1 and name == "cpu"):
        raise InputError(f"with Ray, cells share GPUs, not cores: --per-device {per_device}")
    return name


def run_jobs_on_ray(
    jobs: Sequence[CellJob],
    address: str,
    device: str,
    per_device: int,
    allotment: Allotment,
    tell: Tell,
) -> None:
    """Have all jobs done; asked to stop, no more are begun, and those under way stop."""
    on_gpu = device == "cuda"
    resources = {
        "num_cpus": 1 if on_gpu else allotment.cores,
        "num_gpus": 1 / per_device if on_gpu else 0,
        "max_retries": RETRIES,
    }
    with stop_request() as request, RaySession(address, allotment.cores) as session:
        tasks = CellTasks(session.ray, resources)
        try:
            for job in jobs:
                tasks.begin(_placed(job, device, allotment.cores), allotment.threads)
            while tasks.under_way:
                if request.made:
                    tasks.stop()
                for letter in tasks.news():
                    tell(*letter)
        finally:
            tasks.stop(at_once=True)


class CellTasks:
    """The tasks of cells that are not over, by number, and the mailbox that they write to."""

    def __init__(self, ray: Any, resources: dict[str, Any]) -> None:
        self._ray = ray
        self._train = ray.remote(**resources)(train_on_ray)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._mailbox = ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote()
        self.under_way: dict[Any, int] = {}
        self._is_stopped = False

    def begin(self, job: CellJob, threads: int) -> None:
        task = self._train.remote(job, threads, Path.cwd(), sys.path, self._mailbox)
        self.under_way[task] = job.number

    def stop(self, *, at_once: bool = False) -> None:
        """Stop after the rounds in progress; what waits for a place is not begun."""
        if self._is_stopped and not at_once:
            return
        self._is_stopped = True
        for task in self.under_way:
            self._ray.cancel(task, force=at_once, recursive=False)

    def news(self) -> list[tuple[int, str, ChildMessage]]:
        """What cells tell, and of those whose workers died too often that they failed."""
        over, _ = self._ray.wait(list(self.under_way), timeout=POLL)
        letters: list[tuple[int, str, ChildMessage]] = self._ray.get(self._mailbox.take.remote())
        for task in over:
            number = self.under_way.pop(task)
            try:
                self._ray.get(task)
            except self._ray.exceptions.TaskCancelledError:
                pass
            except self._ray.exceptions.RayError as error:
                letters.append((number, "ray", Ended([], f"in a Ray worker: {reason(error)}")))
        return letters


class Mailbox:
    """Where tasks leave what they tell, until the sweep looks: a Ray actor."""

    def __init__(self) -> None:
        self._letters: list[tuple[int, str, ChildMessage]] = []

    def put(self, *letter: Any) -> None:
        self._letters.append(letter)

    def take(self) -> list[tuple[int, str, ChildMessage]]:
        letters, self._letters = self._letters, []
        return letters


def train_on_ray(job: CellJob, threads: int, folder: Path, path: list[str], mailbox: Any) -> None:
    """Train a cell in a Ray worker; Ray interrupts it as Ctrl-C would to stop it."""
    import ray

    sys.path += [entry for entry in path if entry not in sys.path]
    os.chdir(folder)
    torch.set_num_threads(threads)
    where = f"{job.configs[0].device} of {platform.node()}"

    def send(message: ChildMessage) -> Any:
        return mailbox.put.remote(job.number, where, message)

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: send(Note(str(message)))
        warnings.filterwarnings("ignore", "stopping after this round")  # the sweep says it
        try:
            send(Started())
            ended = train_cell(job, send)
        except KeyboardInterrupt:  # before its first round
            ended = Ended([])
        ray.get(send(ended))  # before the task is over, so that nothing is told of it afterwards


def _placed(job: CellJob, device: str, cores: int) -> CellJob:
    """A job whose runs know their device and, on a CPU, an engine for no more than their cores."""

    def placed(config: Config) -> Config:
        changes = {"device": device}
        if config.engine == "auto" and device == "cpu":
            changes["engine"] = "sequential" if cores == 1 else f"workers(processes={cores})"
        return config.model_copy(update=changes)

    return job._replace(configs=tuple(map(placed, job.configs)), store=job.store.resolve())
