"""Rounds written down, each while a GPU trains the next ones."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch

from gcfed.config.experiment import begin_records
from gcfed.errors import InputError
from gcfed.runs.trackers import Observer
from gcfed.runs.writer import Moment, RunWriter
from gcfed.simulation.side_stream import SideStream
from gcfed.simulation.snapshot import RoundResult

BEHIND = 2
"""How many lines wait for their hashes, which may take longer than a round."""


class Scribe:
    """Writes the rounds of runs that are trained together, in order, and tells an observer.

    A GPU works by itself, so there a model is judged when the next round is under way, and its line
    is written some rounds later; elsewhere both are done at once, and so is what probes measure,
    which takes the device.  At the end of a ``with`` block nothing waits any more.
    """

    def __init__(self, writers: Sequence[RunWriter], observe: Observer) -> None:
        self._writers, self._observe = writers, observe
        self._side = SideStream(writers[0].experiment.setup.device)
        self._judge: Callable[[], Callable[[], None]] | None = None
        self._lines: deque[Callable[[], None]] = deque()

    def __enter__(self) -> "Scribe":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self.finish()
                return
            with suppress(Exception):  # that which ends the block says more
                self.finish()
        finally:
            self._side.rest()

    def take(self, results: Mapping[int, RoundResult]) -> None:
        """Have a round of some runs, by their place among the writers, written down soon."""
        if self._judge is not None:  # no round was under way since
            self.finish()
        experiments, ended = [self._writers[i].experiment for i in results], Moment.now()

        def judge() -> Callable[[], None]:
            try:
                make = begin_records(experiments, list(results.values()), self._side)
            except torch.OutOfMemoryError as error:  # not training's, whose cohorts are halved
                raise InputError(
                    "memory is short where models are judged beside training: train fewer clients "
                    "at once (chunk), or judge by fewer examples"
                ) from error

            def write() -> None:
                try:
                    lines = dict(zip(results, make(), strict=True))
                    for i, result in results.items():
                        self._writers[i].add(result, lines[i], ended)
                except BaseException:
                    self._judge = None  # no line follows one that is missing
                    self._lines.clear()
                    raise
                self._observe(lines)

            return write

        self._judge = judge
        if not self._side.is_beside or any(experiment.probes for experiment in experiments):
            self.finish()

    def go_on(self) -> None:
        """Have judged what was taken, and write down what was judged some rounds ago."""
        self._go_on(BEHIND)

    def finish(self) -> None:
        """Write down all that waits for it."""
        self._go_on(0)

    def _go_on(self, behind: int) -> None:
        if self._judge is not None:
            self._lines.append(self._judge())
            self._judge = None  # now that it is under way
        while len(self._lines) > behind:
            self._lines.popleft()()
