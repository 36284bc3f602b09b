"""What is kept of each client between rounds, made on its first visit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch

from gcfed.core import tree
from gcfed.core.tree import State, Tree

Row = TypeVar("Row", State, Tree)
Leaf = TypeVar("Leaf")

BITS, DEPTH = 5, 6  # a trie of 32 branches, deep enough for 2^30 clients


class Store(Protocol[Row]):
    """Rows by client, as a value: `scatter` gives a new store and leaves the old one as it was."""

    def gather(self, ids: Sequence[int], init: Callable[[], Row], device: torch.device) -> Row:
        """The rows of a cohort, stacked on a leading client axis; ``init`` makes a missing one."""

    def scatter(self, ids: Sequence[int], stacked: Row) -> "Store[Row]":
        """This store with the rows of a cohort replaced."""

    def items(self) -> Iterator[tuple[int, Row]]:
        """Every client that has a row, and the row."""

    def changed(self, since: Any) -> Iterator[tuple[int, Row]]:
        """The rows that are not those of ``since``, an earlier version of this store."""


@dataclass(frozen=True)
class Trie(Generic[Leaf]):
    """Leaves by client, as a value.

    A new version shares all but the paths to what it replaces, so neither a change nor the
    difference of two versions costs more where there are more clients.
    """

    root: dict[int, Any] = field(default_factory=dict)

    def find(self, client: int) -> Leaf | None:
        node: Any = self.root
        for level in range(DEPTH, -1, -1):
            node = node.get(_branch(client, level))
            if node is None:
                return None
        return node  # type: ignore[no-any-return]

    def replace(self, leaves: dict[int, Leaf]) -> "Trie[Leaf]":
        root = self.root
        for client, leaf in leaves.items():
            root = _with(root, client, leaf, DEPTH)
        return Trie(root)

    def changed(self, since: "Trie[Leaf]") -> Iterator[tuple[int, Leaf]]:
        """What ``since`` does not hold, by client; what both share is not looked at."""
        return _changed(self.root, since.root, 0, DEPTH)


@dataclass(frozen=True)
class HostStore(Generic[Row]):
    """Rows in the host's memory, each in storage of its own."""

    rows: Trie[Row] = field(default_factory=Trie)

    def gather(self, ids: Sequence[int], init: Callable[[], Row], device: torch.device) -> Row:
        fresh = init()
        if not self.rows.root and not tree.holds_tensors(fresh):  # most algorithms keep nothing
            return fresh
        rows = [fresh if (row := self.find(i)) is None else row for i in ids]
        return tree.stack([tree.map(lambda x: x.to(device), row) for row in rows])

    def scatter(self, ids: Sequence[int], stacked: Row) -> "HostStore[Row]":
        rows = {i: tree.map(torch.clone, row) for i, row in apart(ids, stacked)}
        return HostStore(self.rows.replace(rows)) if rows else self

    def find(self, client: int) -> Row | None:
        """The row of one client, or None before its first visit."""
        return self.rows.find(client)

    def items(self) -> Iterator[tuple[int, Row]]:
        return self.changed(HostStore())

    def changed(self, since: "HostStore[Row]") -> Iterator[tuple[int, Row]]:
        return self.rows.changed(since.rows)


def apart(ids: Sequence[int], stacked: Row) -> Iterator[tuple[int, Row]]:
    """A cohort's rows one by one, on the host; none where they hold nothing."""
    host = tree.map(lambda x: x.cpu(), stacked)
    if tree.holds_tensors(host):
        yield from ((i, tree.take(host, k)) for k, i in enumerate(ids))


def _branch(client: int, level: int) -> int:
    return client >> (BITS * level) & (1 << BITS) - 1 if level < DEPTH else client >> BITS * DEPTH


def _with(node: dict[int, Any], client: int, leaf: Any, level: int) -> dict[int, Any]:
    branch = _branch(client, level)
    child = leaf if level == 0 else _with(node.get(branch, {}), client, leaf, level - 1)
    return {**node, branch: child}


def _changed(
    node: dict[int, Any], before: dict[int, Any], prefix: int, level: int
) -> Iterator[tuple[int, Any]]:
    for branch in sorted(node):
        client, child, old = prefix << BITS | branch, node[branch], before.get(branch)
        if child is old:
            continue
        if level == 0:
            yield client, child
        else:
            yield from _changed(child, old or {}, client, level - 1)
