"""Runs: started, trained together, and written down."""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

from gcfed.config.build import build
from gcfed.config.experiment import Experiment
from gcfed.config.identity import identity
from gcfed.config.settings import Config
from gcfed.errors import DivergedError, InputError
from gcfed.files import create_folder, quoted, refuse_existing
from gcfed.lock import locked
from gcfed.results import directory
from gcfed.runs.interrupt import stop_request
from gcfed.runs.plan import announce
from gcfed.runs.provenance import provenance
from gcfed.runs.scribe import Scribe
from gcfed.runs.trackers import Observer as Observer, Tracking, require
from gcfed.runs.writer import RunWriter
from gcfed.simulation.lines import Record
from gcfed.simulation.loop import simulate_together
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import RoundResult, Snapshot


def run(config: Config, path: str | Path, observe: Observer | None = None) -> dict[str, Any]:
    """Do the run that ``config`` describes and write it to ``path``, a folder to make; its summary.

    A run that diverges keeps its lines and its last finite weights.  Ctrl-C stops one after the
    round in progress; `resume` goes on with it.
    """
    return run_together([config], [Path(path)], observe)[0]


def run_together(
    configs: Sequence[Config], paths: Sequence[Path], observe: Observer | None = None
) -> list[dict[str, Any]]:
    """Do several runs that differ in their seeds, the clients of all trained together."""
    for config in configs:
        if not isinstance(config, Config):
            raise InputError(
                f"a run is of a gcfed.Config, such as Config(rounds=5); not {config!r}"
            )
    for path in paths:
        refuse_existing(path)
    require(configs[0].track)
    experiments = build_together(configs)
    made = _first_missing(paths[0])
    for path in paths:
        create_folder(path)
    with _unmade_unless_begun(paths, made), locked(paths), writing(paths[0]):
        return begin(experiments, paths, observe)


def build_together(configs: Sequence[Config], engine_reason: str = "") -> list[Experiment]:
    """The experiments of several configs, which share what they have in common."""
    experiments: list[Experiment] = []
    for config in configs:
        beside = experiments[0] if experiments else None
        built = build(config, beside=beside, hashed=True, engine_reason=engine_reason)
        experiments.append(built)
    return experiments


def begin(
    experiments: Sequence[Experiment], paths: Sequence[Path], observe: Observer | None = None
) -> list[dict[str, Any]]:
    """Do runs from their first round on, in folders that are locked; their summaries."""
    writers = [RunWriter(e, path) for e, path in zip(experiments, paths, strict=True)]
    together = dict(zip(paths, experiments, strict=True))
    for writer in writers:
        which = identity(writer.experiment)
        writer.describe(provenance(writer.experiment, which, writer.path, together))
    for writer in writers:  # once one of them is a run, the others can be gone on with
        writer.go(writer.beginning)
    return train(writers, observe)


class Rounds(Protocol):
    """What trains runs, from where each stands, and gives their rounds: `simulate_together`."""

    def __call__(
        self,
        setups: Sequence[Setup],
        after: Sequence[Snapshot],
        *,
        meanwhile: Callable[[], None],
    ) -> Generator[dict[int, RoundResult | DivergedError]]: ...


def train(
    writers: Sequence[RunWriter],
    observe: Observer | None = None,
    rounds: Rounds | None = None,
) -> list[dict[str, Any]]:
    """Train runs, which stand after the same round, to their last round, and tell the trackers.

    ``rounds`` trains them, by default a simulation.
    """
    configs = {writer.path: writer.experiment.config for writer in writers}
    announce([writer.experiment for writer in writers])
    with Tracking(writers[0].experiment.config.track, configs) as tracking, _ending(writers):
        try:
            _train(writers, tracking.beside(observe), rounds or simulate_together)
        except KeyboardInterrupt:
            for writer in writers:
                if not writer.is_through:
                    writer.end("stopped", "interrupted")
        summaries = [writer.finish() for writer in writers]
        tracking.finish(summaries)
    return summaries


def _train(writers: Sequence[RunWriter], observe: Observer, rounds: Rounds) -> None:
    """Train round after round; write each down, and a checkpoint when one is due."""
    live = [i for i, writer in enumerate(writers) if not writer.diverged]
    setups = [writers[i].experiment.setup for i in live]
    places = [writers[i].snapshot for i in live]
    if not live:
        return
    clock = CheckpointClock(writers[0].experiment.config)
    with (
        stop_request() as request,
        Scribe(writers, observe) as scribe,
        closing(rounds(setups, places, meanwhile=scribe.go_on)) as trained,
    ):
        for outcomes in trained:
            for k, outcome in outcomes.items():
                if isinstance(outcome, DivergedError):
                    scribe.finish()
                    writers[live[k]].diverge(outcome)
            done = {live[k]: o for k, o in outcomes.items() if isinstance(o, RoundResult)}
            if not done:
                continue
            scribe.take(done)
            is_due = clock.is_due(max(result.round for result in done.values()) + 1)
            if is_due or request.made:
                scribe.finish()  # a checkpoint names no round whose lines are not on the disk
            if is_due:
                for i in live:
                    writers[i].save()
            if request.made:
                raise KeyboardInterrupt


@contextmanager
def _ending(writers: Sequence[RunWriter]) -> Iterator[None]:
    """If training fails inside, write into every run's summary why, as far as that is possible."""
    try:
        yield
    except Exception as error:
        disk = isinstance(error, OSError)
        reason = _reason(error) if isinstance(error, OSError) else str(error)
        for writer in writers:
            writer.end("stopped" if disk else "failed", reason or type(error).__name__)
            with suppress(OSError):
                writer.summarize()
        raise
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def writing(path: Path, start_again: str = "start again") -> Iterator[None]:
    """Turn an error of the disk into advice: what was saved, and how to go on.

    ``start_again``: what to do if nothing was saved that could be gone on with.
    """
    try:
        yield
    except OSError as error:
        if (path / directory.SUMMARY).is_file():
            advice = (
                f"what was saved is whole: mend this, then go on with gcfed resume {quoted(path)}"
            )
        else:
            advice = f"the run has not begun: mend this, then {start_again}"
        raise InputError(f"{_reason(error)}; {advice}") from error


@contextmanager
def _unmade_unless_begun(paths: Sequence[Path], made: Path) -> Iterator[None]:
    """Where the block fails before one of its runs has begun, delete the folders made for them.

    So the same command works again, after Ctrl-C too.  ``made`` is the uppermost of the folders.
    """
    try:
        yield
    except BaseException:
        begun = (path / name for path in paths for name in (directory.SUMMARY, directory.ROUNDS))
        if not any(file.exists() for file in begun):
            for path in paths:
                rmtree(path, ignore_errors=True)
            for above in takewhile(made.parent.__ne__, paths[0].parents):
                with suppress(OSError):  # somebody else put something there
                    above.rmdir()
        raise


def _first_missing(path: Path) -> Path:
    """The uppermost folder that has to be made for ``path``."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    return missing[-1] if missing else path


def _reason(error: OSError) -> str:
    return f"{error.filename or 'a file'}: {error.strerror or error}"


def renumbered(observe: Observer | None, where: Mapping[int, int]) -> Observer | None:
    """An observer of some of the runs, by the numbers that ``where`` gives them."""
    if observe is None:
        return None

    def tell(found: Mapping[int, Record]) -> None:
        if shown := {where[k]: line for k, line in found.items() if k in where}:
            observe(shown)

    return tell


class CheckpointClock:
    """When the next checkpoint is due."""

    def __init__(self, config: Config) -> None:
        self._every = config.checkpoint_every or math.inf
        self._seconds = 60 * config.checkpoint_minutes
        self._since = time.monotonic()

    def is_due(self, num_rounds: int) -> bool:
        """Whether a checkpoint is due now; to be asked after every round."""
        now = time.monotonic()
        if num_rounds % self._every and now - self._since < self._seconds:
            return False
        self._since = now
        return True
