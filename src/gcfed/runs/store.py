"""The run store: a folder of run directories, each found by what its numbers depend on."""

import re
from collections.abc import Sequence
from pathlib import Path

from gcfed.config.build import Experiment
from gcfed.config.identity import digest, identity
from gcfed.config.settings import Config
from gcfed.errors import InputError
from gcfed.files import create_folder
from gcfed.results import directory
from gcfed.results.run import Run, find_runs, load_run
from gcfed.runs.lock import locked
from gcfed.runs.resume import is_done, resume_together
from gcfed.runs.trackers import require
from gcfed.runs.train import Observer, begin, build_together, renumbered, writing

STORE = Path("runs")
LENGTH = 10  # digits of a hash in a folder's name


class RunStore:
    """Runs in a folder.  Asked for twice, a run is found; asked for more rounds, it goes on."""

    def __init__(self, folder: str | Path = STORE) -> None:
        self.folder = Path(folder)

    def runs(self) -> list[Run]:
        return find_runs(self.folder)

    def find(self, config: Config) -> Run | None:
        """The run of a config, with however many rounds it has so far."""
        (experiment,) = build_together([config])
        return self.find_sha256(digest(identity(experiment)))

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
        elif any(self.find_sha256(sha256) is None for sha256 in hashes):
            raise KeyboardInterrupt  # before the first round of new ones
        asked = zip(configs, hashes, strict=True)
        return [self._sure(sha256).until(config.rounds) for config, sha256 in asked]

    def _go_on(
        self, configs: Sequence[Config], hashes: Sequence[str], observe: Observer | None
    ) -> bool:
        """Take the runs that are there to their last round, set by set, unless one is stopped."""
        for config, sha256 in zip(configs, hashes, strict=True):
            run = self.find_sha256(sha256)
            if run is None or is_done(run, config.rounds):
                continue
            runs = run.together()
            where = {
                k: hashes.index(other.provenance["identity_sha256"])
                for k, other in enumerate(runs)
                if other.provenance["identity_sha256"] in hashes
            }
            rounds = max(config.rounds, *(other.num_rounds for other in runs))
            resume_together(runs, rounds, renumbered(observe, where))
            if load_run(run.path).summary["status"] == "stopped":
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
        new = [i for i, sha256 in enumerate(hashes) if self.find_sha256(sha256) is None]
        if not new:
            return
        paths = [self.folder / _name(configs[i], hashes[i]) for i in new]
        for path in paths:
            create_folder(path, exist_ok=True)
        with locked(paths), writing(paths[0]):
            if any((path / directory.SUMMARY).exists() for path in paths):
                raise InputError(f"another process has just done a run in {self.folder}: ask again")
            told = renumbered(observe, dict(enumerate(new)))
            begin([experiments[i] for i in new], paths, told)

    def find_sha256(self, sha256: str) -> Run | None:
        """The run whose identity has this hash."""
        for path in sorted(self.folder.glob(f"*-{sha256[:LENGTH]}")):
            if (path / directory.SUMMARY).is_file():
                run = load_run(path)
                if run.provenance["identity_sha256"] == sha256:
                    return run
        return None

    def _sure(self, sha256: str) -> Run:
        run = self.find_sha256(sha256)
        assert run is not None
        return run


def _name(config: Config, sha256: str) -> str:
    """A folder's name that says what is in it."""
    words = f"{config.algorithm} {config.dataset} {config.model}".lower()
    short = re.sub(r"[^a-z0-9]+", "-", words)[:60].strip("-")
    return f"{short}-seed-{config.seed}-{sha256[:LENGTH]}"
