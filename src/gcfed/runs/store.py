"""The run store: a folder of run directories, each found by what its numbers depend on."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gcfed.config.experiment import Experiment
from gcfed.config.identity import digest, identity, num_registered
from gcfed.config.settings import Config
from gcfed.errors import InputError
from gcfed.files import create_folder
from gcfed.lock import locked
from gcfed.results import directory
from gcfed.results.directory import STORE as STORE
from gcfed.results.finding import find_runs
from gcfed.results.run import Run, open_run
from gcfed.runs.resume import is_done, mend_summary, resume_together
from gcfed.runs.trackers import require
from gcfed.runs.train import Observer, begin, build_together, renumbered, writing

LENGTH = 10  # digits of a hash in a folder's name

Stamp = tuple[int, int]
"""When a file was written, and how many names were registered when it was read."""


class RunStore:
    """Runs in a folder.  Asked for twice, a run is found; asked for more rounds, it goes on."""

    def __init__(self, folder: str | Path = STORE) -> None:
        self.folder = Path(folder)
        self._read: dict[Path, tuple[Stamp, str | None]] = {}

    def runs(self) -> list[Run]:
        return find_runs(self.folder)

    def find(self, config: Config) -> Run | None:
        """The run of a config, with however many rounds it has so far."""
        (experiment,) = build_together([config])
        return self.find_sha256(digest(identity(experiment)), config.seed)

    def run(self, config: Config, observe: Observer | None = None) -> Run:
        """Do a run, or find it done."""
        return self.run_together([config], observe)[0]

    def run_together(self, configs: Sequence[Config], observe: Observer | None = None) -> list[Run]:
        """Do several runs that differ in their seeds, or find them done.

        One that has more rounds already is given as it was after those that are asked for.

        New ones are trained together.  Those that are there go on with the runs and the engine that
        they began with.
        """
        require(configs[0].track)
        experiments = build_together(configs)
        hashes = [digest(identity(experiment)) for experiment in experiments]
        if self._go_on(configs, hashes, observe):
            self._begin(configs, experiments, hashes, observe)
        elif None in self._find_all(configs, hashes):
            raise KeyboardInterrupt  # before the first round of new ones
        found = self._find_all(configs, hashes)
        return [_sure(run).until(c.rounds) for run, c in zip(found, configs, strict=True)]

    def _go_on(
        self, configs: Sequence[Config], hashes: Sequence[str], observe: Observer | None
    ) -> bool:
        """Go on with the runs that are there; False if one of them was stopped on the way."""
        for config, sha256 in zip(configs, hashes, strict=True):
            for path in self._folders(sha256, config.seed):
                if (path / directory.ROUNDS).is_file():  # it has begun
                    mend_summary(Run(path))
            run = self.find_sha256(sha256, config.seed)
            if run is None or is_done(run, config.rounds) or _has_more(run, config.rounds):
                continue
            runs = run.together()
            theirs = [digest(other.identity) for other in runs]
            where = {k: hashes.index(its) for k, its in enumerate(theirs) if its in hashes}
            rounds = max(config.rounds, *(other.num_rounds for other in runs))
            resume_together(runs, rounds, renumbered(observe, where))
            if open_run(run.path).summary["status"] == "stopped":
                return False
        return True

    def _begin(
        self,
        configs: Sequence[Config],
        experiments: Sequence[Experiment],
        hashes: Sequence[str],
        observe: Observer | None,
    ) -> None:
        """Do the runs that are not there, together."""
        new = [i for i, run in enumerate(self._find_all(configs, hashes)) if run is None]
        if not new:
            return
        paths = {i: self.folder / _name(configs[i], hashes[i]) for i in new}
        for path in paths.values():
            create_folder(path, exist_ok=True)
        with locked(list(paths.values())), writing(paths[new[0]], "give the same command again"):
            for i, path in paths.items():
                self._refuse_existing(path, hashes[i])
            told = renumbered(observe, dict(enumerate(new)))
            begin([experiments[i] for i in new], list(paths.values()), told)

    def _refuse_existing(self, path: Path, sha256: str) -> None:
        """Refuse a folder for a new run that holds one already."""
        if not (path / directory.SUMMARY).exists():
            return
        if self._sha256(path) == sha256:
            raise InputError(f"another process has just done a run in {self.folder}: ask again")
        raise InputError(
            f"{path} is damaged: its {directory.PROVENANCE} does not say that it is the run that "
            "its name stands for; move it out of the store, and it will be done again"
        )

    def find_sha256(self, sha256: str, seed: int) -> Run | None:
        """The run of this seed whose identity has this hash.

        Its folder is named by the hash; those of old runs are named by another, so they are read.
        """
        for path in self._folders(sha256, seed):
            if (path / directory.SUMMARY).is_file():
                return open_run(path)
        return None

    def _folders(self, sha256: str, seed: int) -> Iterator[Path]:
        """The folders of runs of this seed whose identity has this hash."""
        alike, end = self.folder.glob(f"*-seed-{seed}-*"), sha256[:LENGTH]
        for path in sorted(alike, key=lambda path: (not path.name.endswith(end), path.name)):
            if self._sha256(path) == sha256:
                yield path

    def _find_all(self, configs: Sequence[Config], hashes: Sequence[str]) -> list[Run | None]:
        return [self.find_sha256(h, c.seed) for c, h in zip(configs, hashes, strict=True)]

    def _sha256(self, path: Path) -> str | None:
        """The hash of a recorded identity; None where it cannot be read.

        It is read once, and again when it was written or more names are known since.
        """
        try:
            written = (path / directory.PROVENANCE).stat().st_mtime_ns
        except OSError:
            return None
        stamp = written, num_registered()
        if self._read.get(path, (None,))[0] != stamp:
            self._read[path] = stamp, _read_sha256(path)
        return self._read[path][1]


def _sure(run: Run | None) -> Run:
    assert run is not None
    return run


def _has_more(run: Run, rounds: int) -> bool:
    """Whether a run that was killed has these rounds, of more that it was asked for."""
    return run.num_rounds >= rounds and run.config.rounds > rounds


def _read_sha256(path: Path) -> str | None:
    try:
        return digest(Run(path).identity)
    except InputError:
        return None


def _name(config: Config, sha256: str) -> str:
    """A folder's name that says what is in it."""
    words = f"{config.algorithm} {config.dataset} {config.model}".lower()
    short = re.sub(r"[^a-z0-9]+", "-", words)[:60].strip("-")
    return f"{short}-seed-{config.seed}-{sha256[:LENGTH]}"
