"""A client on a machine of its own: it trains on what it is sent, and remembers."""

from dataclasses import dataclass
from pathlib import Path

from flwr.app import MetricRecord, RecordDict

from gcfed.core import keys, tree
from gcfed.core.batches import Batches
from gcfed.core.client import Facts, Job, Trained, cohort_of
from gcfed.core.hook_checks import naming_hooks
from gcfed.core.tree import State, Tree
from gcfed.deploy.node_memory import NodeMemory
from gcfed.deploy.records import from_arrays, text, to_arrays, whole_number
from gcfed.engines import Sequential
from gcfed.population.population import plan_round
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import start


@dataclass(frozen=True)
class Node:
    """One client: its number, a setup that has no other client, and where it keeps its memory."""

    client: int
    setup: Setup
    folder: Path

    def answer(self, content: RecordDict) -> RecordDict:
        """Train as a message of the server says; the reply."""
        server = start(self.setup).server
        anchor, message = self.setup.server_task.broadcast(server)
        anchor = from_arrays(content, "anchor", anchor)
        message = from_arrays(content, "message", message)
        buffers = from_arrays(content, "buffers", server.buffers)
        t, accepted = whole_number(content, "task", "round"), whole_number(content, "task", "after")
        kept = NodeMemory.of(self.folder, text(content, "task", "experiment"), self.client)
        memory = kept.read(accepted, self.setup.algorithm.init_client(anchor))
        trained = self.train(t, anchor, message, buffers, memory)
        kept.write(t, trained.upload.memory, accepted)
        return RecordDict(
            {
                "delta": to_arrays(trained.upload.delta),
                "message": to_arrays(trained.upload.message),
                "buffers": to_arrays(trained.buffers),
                "trained": MetricRecord({"round": t, "loss": trained.loss.item()}),
            }
        )

    def train(self, t: int, anchor: Tree, message: State, buffers: Tree, memory: State) -> Trained:
        """This client's part of round ``t``."""
        setup, data = self.setup, self.setup.data
        plan = plan_round(setup.schedule, data.parts.of_client(0), t, self.client)
        cohort = cohort_of(
            anchor,
            message,
            lr=setup.lr(t),
            t=t,
            memory=tree.expand(tree.map(lambda x: x.to(setup.device), memory), 1),
            buffers=tree.expand(buffers, 1),
            facts=Facts.of(
                label_counts=data.label_counts([0]),
                filled_counts=setup.population.filled_counts([0]),
                num_examples=data.num_examples([0]),
                plans=[plan],
                key=keys.of_clients(setup.schedule.seed, t, [self.client]),
                like=next(iter(anchor.values())),
            ),
        )
        job = Job(setup.client_task, cohort, Batches(data.handle, [plan]), 1)
        with naming_hooks(setup.algorithm), keys.untouched(), setup.arithmetic():
            (trained,) = Sequential()([job])
        return tree.take(trained, 0)
