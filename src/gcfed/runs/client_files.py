"""What clients keep, on disk: a file for each client and version, and a journal that names them."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gcfed.core import tree
from gcfed.files import naming, sync
from gcfed.runs.journal import DamagedError, Journal, Mark
from gcfed.runs.tensor_files import from_bytes, to_bytes
from gcfed.simulation.snapshot import Clients

FOLDER, JOURNAL = "clients", "clients.jsonl"


class Version(NamedTuple):
    """A row as it was saved after so many rounds."""

    rounds: int
    sha256: str


Index = dict[tuple[str, int], Version]
"""The version of each client's memory, buffers and row."""


class ClientFiles:
    """Keeps the rows of clients in a folder.

    A checkpoint writes those that changed since the last one and a line that names them, so what it
    costs does not grow with the clients there are.  Versions that no kept checkpoint needs go.
    """

    def __init__(self, folder: Path, empty: Clients) -> None:
        self._folder = folder / FOLDER
        self._journal = Journal(folder / JOURNAL)
        self._empty = self._saved = empty
        self._index: Index = {}
        self._replaced: set[Path] = set()
        self._unneeded: set[Path] = set()

    def save(self, clients: Clients, rounds: int) -> Mark:
        """Write the rows that changed since the last checkpoint; gives the place in the journal."""
        written: Index = {}
        line: dict[str, Any] = {"rounds": rounds, **{kind: {} for kind in Clients._fields}}
        for kind in Clients._fields:
            now, before = getattr(clients, kind), getattr(self._saved, kind)
            for client, row in now.changed(before):
                version = written[kind, client] = self._write(kind, client, rounds, row)
                line[kind][str(client)] = version.sha256
        if written:
            self._journal.append(line)
        known = written.keys() & self._index.keys()
        self._unneeded = self._replaced
        self._replaced = self._files({key: self._index[key] for key in known})
        self._index |= written
        self._saved = clients
        return self._journal.mark()

    def prune(self) -> None:
        """Delete files of clients that only older checkpoints than the last two used."""
        self._drop(self._unneeded)

    def load(self, mark: Mark) -> Clients:
        """The clients of a checkpoint; a `DamagedError` if they are not what was saved."""
        clients: dict[str, Any] = self._empty._asdict()
        for (kind, client), version in self._versions(mark).items():
            row = tree.map(lambda x: x[None], self._read(kind, client, version))
            clients[kind] = clients[kind].scatter([client], row)
        return Clients(**clients)

    def rewind(self, mark: Mark, clients: Clients, before: Mark | None) -> None:
        """Go back to a checkpoint whose clients were loaded; the one before it keeps its files."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._index, self._saved = self._versions(mark), clients
        try:
            older = {} if before is None else self._versions(before)
        except DamagedError:
            older = {}
        needed = self._files(self._index)
        self._replaced = self._files(older) - needed
        self._drop(set(self._folder.iterdir()) - needed - self._replaced)
        self._journal.cut(mark)

    def _versions(self, mark: Mark) -> Index:
        found: Index = {}
        for line in self._journal.read(mark):
            for kind in Clients._fields:
                for client, sha256 in line[kind].items():
                    found[kind, int(client)] = Version(line["rounds"], sha256)
        return found

    def _write(self, kind: str, client: int, rounds: int, row: Any) -> Version:
        data, path = to_bytes(row), self._path(kind, client, rounds)
        with naming(path):
            path.write_bytes(data)
            sync(path)
        return Version(rounds, hashlib.sha256(data).hexdigest())

    def _read(self, kind: str, client: int, version: Version) -> Any:
        return read_tree(self._path(kind, client, version.rounds), version.sha256)

    def _path(self, kind: str, client: int, rounds: int) -> Path:
        return self._folder / f"{kind}-{client}-{rounds}.safetensors"

    def _files(self, index: Index) -> set[Path]:
        return {self._path(*key, version.rounds) for key, version in index.items()}

    def _drop(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


def read_tree(path: Path, sha256: str, device: Any = None) -> Any:
    """Read the tree in a file; a `DamagedError` if it is not what was written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedError(f"{path.name} is not what was written")
    return from_bytes(data, device)
