"""What a client keeps between rounds, in files of its own machine."""

import re
from dataclasses import dataclass
from pathlib import Path

from gcfed.core import tree
from gcfed.core.tree import State
from gcfed.errors import InputError
from gcfed.files import write_bytes
from gcfed.runs.tensor_files import from_bytes, to_bytes

NEVER = -1
"""The round of a client whose work never entered one."""


@dataclass(frozen=True)
class NodeMemory:
    """The memory of one client in one experiment: a file for each of the last two rounds.

    A client cannot know whether its reply entered a round.  So it keeps the memory that it began a
    round with beside the one that it ended with, until the server names the round that counts.
    """

    folder: Path

    @classmethod
    def of(cls, folder: Path, experiment: str, client: int) -> "NodeMemory":
        """The memory of a client, in a folder that may hold those of others."""
        if not re.fullmatch("[0-9a-f]{16}", experiment):  # it becomes the name of a folder
            raise InputError(f"{experiment!r} is no experiment: it has 16 digits of 0-9 and a-f")
        return cls(folder / experiment / f"client-{client}")

    def read(self, accepted: int, fresh: State) -> State:
        """The memory after the round that was accepted last; ``fresh`` before the first."""
        if accepted == NEVER or not tree.holds_tensors(fresh):
            return fresh
        path = self._file(accepted)
        if not path.is_file():
            raise InputError(f"{path} is gone: this client cannot go on from round {accepted + 1}")
        found: State = from_bytes(path.read_bytes())
        return found

    def write(self, t: int, memory: State, accepted: int) -> None:
        """Keep the memory after round ``t`` beside the one that was accepted, and no other."""
        if not tree.holds_tensors(memory):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._file(t), to_bytes(memory))
        needed = {self._file(t), self._file(accepted)}
        for path in self.folder.iterdir():
            if path not in needed:
                path.unlink()

    def _file(self, t: int) -> Path:
        return self.folder / f"round-{t}.safetensors"
