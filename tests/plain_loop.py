"""Federated training as a reader would write it with `nn.Module` and `torch.optim.SGD`.

Of the package it uses who takes part when and on which batches, and nothing that computes.
"""

import copy

import torch
from torch import nn


class Reference:
    """FedAvg; a subclass adds its equations.  Weights are lists of tensors."""

    def __init__(self, net, setup):
        self.net, self.setup = net, setup
        self.names = [n for n, _ in net.named_parameters()]
        self.w = [p.detach().clone() for p in net.parameters()]
        self.memory = {}

    def zeros(self):
        return [torch.zeros_like(p) for p in self.w]

    def anchor(self):
        """What the clients receive."""
        return self.w

    def loss(self, k, logits, y):
        return nn.functional.cross_entropy(logits, y)

    def penalty(self, k, model, x, y):
        return 0.0

    def backward(self, k, model, x, y):
        """Leave the gradient of loss and penalties in the parameters of a client's model."""
        (self.loss(k, model(x), y) + self.penalty(k, model, x, y)).backward()

    def correct(self, k, model):
        """Change these gradients, before weight decay and momentum."""

    def end(self, k, delta, steps, lr):
        """After a client's last step."""

    def server(self, deltas):
        self.w = [p + d for p, d in zip(self.w, mean(deltas), strict=True)]

    def train(self):
        """The global weights after the last round, by name."""
        for t in range(self.setup.schedule.rounds):
            self.round(t)
        return dict(zip(self.names, self.w, strict=True))

    def round(self, t):
        settings, schedule = self.setup.optimizer, self.setup.schedule
        lr = settings.lr * schedule.lr_decay**t
        self.received, deltas = self.with_weights(self.anchor()), []
        for k in self.setup.population.sample(t):
            local = self.with_weights(self.anchor())
            optimizer = torch.optim.SGD(
                local.parameters(), lr, settings.momentum, weight_decay=settings.weight_decay
            )
            plan = self.setup.population.plan(t, k)
            for index in plan:
                optimizer.zero_grad()
                self.backward(k, local, self.setup.data.x[index], self.setup.data.y[index])
                self.correct(k, local)
                optimizer.step()
            pairs = zip(local.parameters(), self.anchor(), strict=True)
            deltas.append([p.detach() - a for p, a in pairs])
            self.end(k, deltas[-1], len(plan), lr)
        self.server(deltas)

    def with_weights(self, weights):
        model = copy.deepcopy(self.net)
        for p, w in zip(model.parameters(), weights, strict=True):
            p.data = w.clone()
        return model

    def distance(self, model):
        """The square of how far a client's weights are from what it received."""
        pairs = zip(model.parameters(), self.anchor(), strict=True)
        return sum(((p - a) ** 2).sum() for p, a in pairs)


def mean(deltas):
    return [sum(d) / len(d) for d in zip(*deltas, strict=True)]


class Prox(Reference):
    mu = 0.1

    def penalty(self, k, model, x, y):
        return self.mu / 2 * self.distance(model)


class Control(Reference):
    """SCAFFOLD; ``way`` is how far a constant gradient of one leads."""

    def __init__(self, net, setup):
        super().__init__(net, setup)
        self.c, self.change = self.zeros(), []

    def way(self, steps, lr):
        return lr * effective_steps(steps, self.setup.optimizer.momentum)

    def correct(self, k, model):
        c_k = self.memory.setdefault(k, self.zeros())
        for p, c, ck in zip(model.parameters(), self.c, c_k, strict=True):
            p.grad += c - ck

    def end(self, k, delta, steps, lr):
        way = self.way(steps, lr)
        new = [ck - c - d / way for ck, c, d in zip(self.memory[k], self.c, delta, strict=True)]
        self.change.append([n - ck for n, ck in zip(new, self.memory[k], strict=True)])
        self.memory[k] = new

    def server(self, deltas):
        super().server(deltas)
        share = len(deltas) / self.setup.data.num_clients
        self.c = [c + share * x for c, x in zip(self.c, mean(self.change), strict=True)]
        self.change = []


def effective_steps(steps, rho):
    return sum(sum(rho**j for j in range(i + 1)) for i in range(steps))


class Dynamic(Reference):
    alpha = 0.1

    def __init__(self, net, setup):
        super().__init__(net, setup)
        self.h = self.zeros()

    def weight(self, cohort):
        """How much of the mean delta enters h."""
        return cohort / self.setup.data.num_clients

    def penalty(self, k, model, x, y):
        h_k = self.memory.setdefault(k, self.zeros())
        linear = sum((h * p).sum() for h, p in zip(h_k, model.parameters(), strict=True))
        return self.alpha / 2 * self.distance(model) - linear

    def end(self, k, delta, steps, lr):
        self.memory[k] = [h - self.alpha * d for h, d in zip(self.memory[k], delta, strict=True)]

    def server(self, deltas):
        super().server(deltas)
        moved = [self.weight(len(deltas)) * d for d in mean(deltas)]
        self.h = [h - self.alpha * d for h, d in zip(self.h, moved, strict=True)]
        self.w = [p - h / self.alpha for p, h in zip(self.w, self.h, strict=True)]


class Centralized(Reference):
    """GC-Fed: P on clients for all but the tensors whose name holds the target, then on all."""

    target = "fc2"

    def project(self, x):
        return x - x.mean(tuple(range(1, x.ndim)), keepdim=True) if x.ndim > 1 else x

    def correct(self, k, model):
        for name, p in model.named_parameters():
            if self.target not in name:
                p.grad = self.project(p.grad)

    def server(self, deltas):
        super().server([[self.project(d) for d in mean(deltas)]])
