"""Where a run stands, on disk: saved whole or not at all, and checked when it is read.

A folder holds the last two checkpoints.  Each is ``00000020.json`` (the manifest, written last),
``00000020.safetensors`` (the server, after 20 rounds), the model of the best round so far, and what
clients keep (see `client_files`).
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gcfed.core import keys
from gcfed.core.server import Server
from gcfed.files import write_atomically, write_bytes, write_json
from gcfed.results.directory import manifests
from gcfed.runs.client_files import ClientFiles, read_tree
from gcfed.runs.journal import DamagedError, Mark
from gcfed.runs.tensor_files import to_bytes
from gcfed.simulation.snapshot import Clients, Snapshot

KEPT = 2
FORMAT = 1
MARKS = ("clients", "lines", "probes")  # the last is not in manifests of before there were probes


class Best(NamedTuple):
    """The best round so far, and what writes its model to a file."""

    round: int
    write: Callable[[Path], object]


class Checkpoint(NamedTuple):
    """What a manifest says: the files, and how far the lines and the probes' rows had come."""

    rounds: int
    key: list[int]
    server: str
    clients: Mark
    lines: Mark
    best: dict[str, Any] | None
    probes: Mark = Mark()

    def to_json(self) -> dict[str, Any]:
        marks = {name: getattr(self, name)._asdict() for name in MARKS}
        return {"format": FORMAT, **self._asdict(), **marks}


class Checkpoints:
    """The checkpoints of a run; ``empty`` says where clients are kept once they are loaded."""

    def __init__(self, folder: Path, seed: int, empty: Clients) -> None:
        self._folder, self._seed = folder, seed
        self._clients = ClientFiles(folder, empty)
        self._best: dict[str, Any] | None = None

    def rounds(self) -> list[int]:
        """The rounds after which there is a checkpoint, the last first."""
        return [int(path.stem) for path in manifests(self._folder)]

    def save(self, snapshot: Snapshot, best: Best | None, lines: Mark, probes: Mark) -> None:
        """Write a checkpoint, then delete all but the last two."""
        rounds = snapshot.round + 1
        clients = self._clients.save(snapshot.clients, rounds)
        data = to_bytes(snapshot.server._asdict())
        write_bytes(self._file(rounds, "safetensors"), data)
        self._save_best(best)
        sha256 = hashlib.sha256(data).hexdigest()
        key = self._key(rounds)
        checkpoint = Checkpoint(rounds, key, sha256, clients, lines, self._best, probes)
        write_json(self._file(rounds, "json"), checkpoint.to_json())
        self._clients.prune()
        self._prune(self.rounds()[:KEPT])

    def read(self, rounds: int) -> Checkpoint:
        """Read the manifest of the checkpoint after so many rounds."""
        path = self._file(rounds, "json")
        try:
            found = json.loads(path.read_bytes())
            if found.pop("format") != FORMAT:
                raise DamagedError(f"{path.name} was written by another version of gcfed")
            marks = {name: Mark(**found[name]) for name in MARKS if name in found}
            checkpoint = Checkpoint(**{**found, **marks})
        except OSError as error:
            raise DamagedError(f"{path.name}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DamagedError(f"{path.name} is not what was written") from None
        if checkpoint.rounds != rounds or checkpoint.key != self._key(rounds):
            raise DamagedError(f"{path.name} is of another run or round")
        return checkpoint

    def load(self, checkpoint: Checkpoint, device: torch.device) -> Snapshot:
        """Read where the run stood at a checkpoint."""
        path = self._file(checkpoint.rounds, "safetensors")
        server = Server(**read_tree(path, checkpoint.server, device))
        return Snapshot(checkpoint.rounds - 1, server, self._clients.load(checkpoint.clients))

    def rewind(self, checkpoint: Checkpoint | None, clients: Clients) -> None:
        """Go on from a checkpoint whose clients were loaded; None is the beginning of the run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if checkpoint is None:
            self._prune([])
            self._clients.rewind(Mark(), clients, None)
            return
        older = [n for n in self.rounds() if n < checkpoint.rounds][: KEPT - 1]
        try:
            before = self.read(older[0]).clients if older else None
        except DamagedError:
            before = None
        self._best = checkpoint.best
        self._clients.rewind(checkpoint.clients, clients, before)
        self._prune([checkpoint.rounds, *older])

    def _save_best(self, best: Best | None) -> None:
        if best is None or (self._best and self._best["round"] == best.round):
            return
        file = f"best-{best.round + 1:08d}.safetensors"
        write_atomically(self._folder / file, best.write)
        self._best = {"round": best.round, "file": file}

    def _best_of(self, rounds: int) -> dict[str, Any] | None:
        try:
            return self.read(rounds).best
        except DamagedError:
            return None

    def _prune(self, kept: list[int]) -> None:
        """Delete all checkpoints but these: first the manifests, then the files they name."""
        names = {
            self._file(rounds, kind).name for rounds in kept for kind in ("json", "safetensors")
        }
        for path in manifests(self._folder):
            if path.name not in names:
                path.unlink()
        names |= {best["file"] for best in map(self._best_of, kept) if best}
        for path in self._folder.glob("*.safetensors"):
            if path.name not in names:
                path.unlink()
        for path in self._folder.glob(".*.part"):  # of a process that was killed
            path.unlink()

    def _file(self, rounds: int, kind: str) -> Path:
        return self._folder / f"{rounds:08d}.{kind}"

    def _key(self, rounds: int) -> list[int]:
        """The random key of the next round, which tells one run and round from another."""
        key: list[int] = keys.key(self._seed, rounds).tolist()
        return key
