"""The nodes that are connected to a server, by the clients that they are."""

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from gcfed.deploy.records import BadMessageError, text, whole_number

LOG = logging.getLogger("gcfed")

PAUSE = 0.2  # seconds between two looks for replies
QUERY = 60.0  # seconds that a node has, at most, to say which client it is


class Answers(NamedTuple):
    """What came back by client, and why nothing did from others."""

    replies: dict[int, RecordDict]
    missing: dict[int, str]


class Nodes:
    """Finds the node of each client, and asks nodes; each has ``timeout`` seconds to answer.

    ``unable`` says why clients cannot take part whose nodes failed to load their data.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid, self._timeout = grid, timeout
        self._node_of: dict[int, int] = {}
        self._known: set[int] = set()  # nodes that said who they are
        self._asked: dict[int, float] = {}  # nodes that were asked, and until when that counts
        self._queries: dict[str, int] = {}  # to nodes that have not answered yet
        self.num_examples: dict[int, int] = {}
        self.unable: dict[int, str] = {}

    def wait_for(self, clients: Iterable[int]) -> set[int]:
        """Wait until clients are connected, as long as nodes have to answer; those that are not.

        Where all that are not are unable, nothing is waited for.
        """
        wanted, end = set(clients), time.monotonic() + self._timeout
        while missing := wanted - self.find():
            if missing <= self.unable.keys() or time.monotonic() > end:
                return missing
            time.sleep(PAUSE)
        return set()

    def find(self) -> set[int]:
        """Ask nodes that are new which client they are; all clients that are connected.

        A node that does not say is waited for once; its answer counts when it comes, and if none
        comes the node is asked again.  Of two nodes that say the same, the one that came last is
        meant: a node that was killed comes back as another one.
        """
        there, now = set(self._grid.get_node_ids()), time.monotonic()
        self._known &= there
        self._queries = {
            query: node
            for query, node in self._queries.items()
            if node in there and now < self._asked[node]
        }
        found, failed = self._pull(self._queries, 0.0)
        new = sorted(there - self._known - found.keys() - set(self._queries.values()))
        first = {node for node in new if node not in self._asked}
        self._asked |= dict.fromkeys(new, now + self._timeout)
        asked = self._push({node: RecordDict() for node in new}, MessageType.QUERY)
        limit = min(QUERY, self._timeout) if first else 0.0
        more = self._pull(asked, limit)
        self._queries |= asked
        found, failed = found | more[0], failed | more[1]
        for node in sorted(first - found.keys()):
            why = failed.get(node, "it has not answered yet")
            LOG.warning("node %s does not say which client it is: %s", node, why)
        self._known |= found.keys()
        for node, content in found.items():
            with suppress(BadMessageError):
                self._note(node, content)
        self._node_of = {client: node for client, node in self._node_of.items() if node in there}
        return set(self._node_of)

    def _note(self, node: int, content: RecordDict) -> None:
        """Note which client a node is, and what it holds or why it holds nothing."""
        client = whole_number(content, "who", "client")
        self.unable.pop(client, None)
        if "why" in content.config_records.get("who", {}):
            self.unable[client] = text(content, "who", "why")
            LOG.warning("client %d cannot load its data: %s", client, self.unable[client])
            return
        self.num_examples[client] = whole_number(content, "who", "num_examples")
        self._node_of[client] = node

    def ask(self, contents: Mapping[int, RecordDict]) -> Answers:
        """Have clients train; what each of them replies in time."""
        there = self.find()
        node_of = {client: self._node_of[client] for client in contents if client in there}
        sent = {node: contents[client] for client, node in node_of.items()}
        found, failed = self._pull(self._push(sent, MessageType.TRAIN), self._timeout)
        replies = {client: found[node] for client, node in node_of.items() if node in found}
        missing = {
            client: self.unable.get(client, "it is not connected")
            for client in contents
            if client not in there
        }
        for client, node in node_of.items():
            if node not in found:
                late = f"it did not answer within {self._timeout:g} s"
                missing[client] = failed.get(node, late)
        return Answers(replies, missing)

    def _push(self, contents: Mapping[int, RecordDict], kind: str) -> dict[str, int]:
        """Send messages to nodes; the nodes by the number of their message."""
        messages = [
            Message(content, node, kind, ttl=self._timeout) for node, content in contents.items()
        ]
        pushed = self._grid.push_messages(messages) if messages else []
        return {number: node for number, node in zip(pushed, contents, strict=True) if number}

    def _pull(
        self, waiting: dict[str, int], limit: float
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """Wait for replies, some seconds at most; what came back, and what failed, by node.

        What came back is waited for no more.
        """
        found, failed = dict[int, RecordDict](), dict[int, str]()
        end = time.monotonic() + limit
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    failed[node] = f"it failed: {reply.error.reason}"
                else:
                    found[node] = reply.content
            if not waiting or time.monotonic() >= end:
                break
            time.sleep(PAUSE)
        return found, failed
