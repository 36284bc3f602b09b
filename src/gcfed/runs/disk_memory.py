"""Clients' rows in files, for those that do not fit in memory."""

import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import torch

from gcfed.config.experiment import Experiment
from gcfed.core import tree
from gcfed.core.memory import Row, Trie, apart
from gcfed.files import naming
from gcfed.runs.tensor_files import from_bytes, to_bytes
from gcfed.simulation.snapshot import Clients, Snapshot, start

PREFIX = ".spill-"


class SpillFolder:
    """A folder that is deleted when no store refers to it any more."""

    def __init__(self, parent: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._numbers = itertools.count()
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def new(self) -> Path:
        return self.path / f"{next(self._numbers)}.safetensors"


class Spilled:
    """A row in a file, which is deleted when no version of a store holds it any more."""

    def __init__(self, path: Path, row: Any) -> None:
        self.path = path
        with naming(path):
            path.write_bytes(to_bytes(row))
        weakref.finalize(self, path.unlink, missing_ok=True).atexit = False

    def read(self) -> Any:
        return from_bytes(self.path.read_bytes())


@dataclass(frozen=True)
class DiskStore(Generic[Row]):
    """Rows in files of a folder; memory holds only which file is whose."""

    folder: SpillFolder
    rows: Trie[Spilled] = field(default_factory=Trie)

    def gather(self, ids: Sequence[int], init: Callable[[], Row], device: torch.device) -> Row:
        found = [self.rows.find(i) for i in ids]
        rows = [init() if spilled is None else spilled.read() for spilled in found]
        return tree.stack([tree.map(lambda x: x.to(device), row) for row in rows])

    def scatter(self, ids: Sequence[int], stacked: Row) -> "DiskStore[Row]":
        rows = {i: Spilled(self.folder.new(), row) for i, row in apart(ids, stacked)}
        return DiskStore(self.folder, self.rows.replace(rows)) if rows else self

    def items(self) -> Iterator[tuple[int, Row]]:
        return self.changed(DiskStore(self.folder))

    def changed(self, since: "DiskStore[Row]") -> Iterator[tuple[int, Row]]:
        return ((client, spilled.read()) for client, spilled in self.rows.changed(since.rows))


def delete_spilled(folder: Path) -> None:
    """Delete the files of clients' rows that a run left in its folder, killed or not."""
    for path in folder.glob(f"{PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def first_snapshot(experiment: Experiment, folder: Path | None = None) -> Snapshot:
    """Where a run begins; clients' memory that goes to disk goes into ``folder``."""
    server, clients = start(experiment.setup)
    if experiment.config.memory == "disk":
        spilled = SpillFolder(folder)
        clients = Clients(DiskStore(spilled), DiskStore(spilled), DiskStore(spilled))
    return Snapshot(-1, server, clients)
