"""The workers of a Ray engine: each is given the next piece of work when it is idle."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gcfed.engines.block_trainer import BlockTrainer

T = TypeVar("T")

DEATHS = 3  # a run ends after more of them per worker with no piece of work done in between


class RayCrew:
    """Workers that are idle, at a piece of work, or not there yet.

    A worker gets work once it has answered that it is ready, so those that find no room in the
    cluster are not waited for.  In place of one that died another is started, wherever there is
    room.
    """

    def __init__(self, ray: Any, size: int, knowledge: Sequence[Any], num_gpus: int) -> None:
        self._ray, self._knowledge = ray, knowledge
        self._trainer = ray.remote(num_cpus=1, num_gpus=num_gpus)(BlockTrainer)
        self.workers: list[Any] = []
        self._idle: list[Any] = []
        self._asked: dict[Any, tuple[Any, int | None]] = {}
        for _ in range(size):
            self._start()

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            self._ray.kill(worker)

    def run(self, pieces: Sequence[T], work: Callable[[T], tuple[Any, ...]]) -> dict[int, Any]:
        """What workers give for each piece, by its number; ``work`` says what they are sent."""
        waiting, done, deaths = deque(range(len(pieces))), dict[int, Any](), 0
        while len(done) < len(pieces):
            while waiting and self._idle:
                first, worker = waiting.popleft(), self._idle.pop()
                self._asked[worker.train.remote(*work(pieces[first]))] = worker, first
            for number, answer in self._answers():
                if isinstance(answer, self._ray.exceptions.RayError):
                    deaths += 1
                    waiting += [] if number is None else [number]
                    if deaths > DEATHS * len(self.workers):
                        raise RuntimeError(f"Ray's workers end again and again: {answer}")
                elif isinstance(answer, Exception):
                    raise answer
                elif number is not None:
                    deaths, done[number] = 0, answer
        return done

    def _answers(self) -> Iterator[tuple[int | None, Any]]:
        """Wait for an answer: the number of a piece, or None, and what came of it."""
        ready, _ = self._ray.wait(list(self._asked))
        for answer in ready:
            worker, number = self._asked.pop(answer)
            try:
                found = self._ray.get(answer)
                self._idle.append(worker)
            except self._ray.exceptions.RayError as error:
                found = error
                self.workers.remove(worker)
                self._start()
            yield number, found

    def _start(self) -> None:
        worker = self._trainer.remote(*self._knowledge)
        self.workers.append(worker)
        self._asked[worker.ready.remote()] = worker, None
