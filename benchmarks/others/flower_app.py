"""Flower's client: one virtual node trains one client.

A module of its own, so that Ray's workers import it, and keep data and model between messages.
"""

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from benchmarks.others.common import Export

app = ClientApp()


@lru_cache(maxsize=1)
def loaded(folder: str) -> tuple[Export, nn.Module]:
    work = Export(folder)
    return work, work.module()


@app.train()
def train(message: Message, context: Context) -> Message:
    """FedAvg's local epochs."""
    work, net = loaded(str(message.content["config"]["folder"]))
    s, (x, y) = work.settings, work.train
    rows = work.rows[int(context.node_config["partition-id"])]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), s.lr, **s.sgd)
    for _ in range(s.epochs):
        for batch in rows[torch.randperm(len(rows))].split(s.batch_size):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    one = MetricRecord({"num-examples": 1})  # all count alike
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": one})
    return Message(content=content, reply_to=message)


@app.query()
def who(message: Message, context: Context) -> Message:
    """Which client this node is: node ids are drawn at random."""
    client = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(content=RecordDict({"who": client}), reply_to=message)
