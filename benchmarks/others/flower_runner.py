"""Flower's runner, by its simulation runtime over Ray: ``python -m ... EXPORT``."""

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.others.common import Export, answer, turns
from benchmarks.others.flower_app import app as client_app

FOLDER = sys.argv[1]


class SameCohorts(FedAvg):
    """FedAvg with the cohorts of the other tools, and evaluation by the server at intervals."""

    def __init__(self, work: Export, nodes: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._work, self._nodes, self._net = work, nodes, work.module()
        self._round, self.accuracy = 0, 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        content = RecordDict({"arrays": arrays, "config": config})
        cohort = self._work.cohorts[self._round]
        self._round += 1
        return [Message(content, self._nodes[i], MessageType.TRAIN) for i in cohort]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        return super().aggregate_train(server_round, replies)

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 0 or self._round % self._work.settings.evaluate_every:
            return None
        self._net.load_state_dict(arrays.to_torch_state_dict())
        self.accuracy = self._work.accuracy(self._net)
        return MetricRecord({"accuracy": self.accuracy})


def clients(grid: Grid, count: int) -> dict[int, int]:
    """The node of each client."""
    while len(nodes := list(grid.get_node_ids())) < count:
        time.sleep(0.1)
    asked = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
    replies = grid.send_and_receive(asked)
    return {int(r.content["who"]["client"]): r.metadata.src_node_id for r in replies}


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    work = Export(FOLDER)
    strategy = SameCohorts(work, clients(grid, work.settings.clients))
    arrays = ArrayRecord(work.module().state_dict())
    config = ConfigRecord({"folder": FOLDER})
    for count in turns("flwr", "ray"):
        arrays = strategy.start(
            grid, arrays, num_rounds=count, train_config=config, evaluate_fn=strategy.evaluate
        ).arrays
        answer(strategy.accuracy)


if __name__ == "__main__":
    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app,
        client_app,
        num_supernodes=Export(FOLDER).settings.clients,
        backend_config={
            "init_args": {"num_cpus": cores},
            "client_resources": {"num_cpus": 1},  # as many clients at once as there are cores
        },
    )
