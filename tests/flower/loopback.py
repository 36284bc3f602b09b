"""Nodes within the test's own process, which can be made to die, to be late and to lie."""

from types import SimpleNamespace

from flwr.app import Context, Error, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from gcfed.deploy.apps import client_app


def honest(client, sent, reply):
    return reply


def failed(number, error):
    """The reply to a message at which a node failed."""
    return SimpleNamespace(
        metadata=SimpleNamespace(reply_to_message_id=number),
        error=Error(1, str(error)),
        has_error=lambda: True,
    )


class LoopbackGrid:
    """A grid whose nodes answer at once, and whose replies come in a wrong order.

    ``tamper`` is called with the client, the message and the reply, and gives the reply that
    arrives, or None if none does.
    """

    def __init__(self, num_nodes, settings, folder, load, tamper=honest):
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # of its messages
        self.app, self.tamper = client_app(load), tamper
        self.contexts = {
            100 - i: Context(
                run_id=1,
                node_id=100 - i,
                node_config={"partition-id": i, "folder": str(folder / "nodes")},
                state=RecordDict(),
                run_config=settings,
            )
            for i in range(num_nodes)
        }
        self.replies, self.count = {}, 0

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        self.count += 1
        number = f"message-{self.count}"
        message.metadata.__dict__["_message_id"] = number
        context = self.contexts[message.metadata.dst_node_id]
        try:
            reply = self.app(message, context)
        except Exception as error:
            reply = failed(number, error)
        reply = self.tamper(context.node_config["partition-id"], message, reply)
        if reply is not None:
            self.replies[number] = reply
        return number

    def pull_messages(self, numbers):
        return [self.replies.pop(n) for n in reversed(list(numbers)) if n in self.replies]
