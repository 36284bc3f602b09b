"""An algorithm of one's own: FedExP, which lets the server step further while clients disagree.

gcfed check examples/own_algorithm.py:FedExP
gcfed run --plugin examples/own_algorithm.py --algorithm 'fedexp + gcfed' --model mlp --rounds 5
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gcfed import DATASETS, MODELS, Algorithm, fit
from gcfed.algorithms import register
from gcfed.core import tree
from gcfed.core.tree import State, Tree
from gcfed.core.types import ClientContext, ServerContext, Upload


@register("fedexp")
@dataclass(frozen=True)
class FedExP(Algorithm):
    r"""FedExP: a server step as long as the clients' deltas are diverse.

    .. math:: w \leftarrow w + \max\left(1, \frac{\operatorname{mean}_k \|\delta_k\|^2}
        {2 (\|\Delta\|^2 + \epsilon)}\right) \Delta

    Jhunjhunwala et al. (2023), its server step size, https://arxiv.org/abs/2301.09604
    Departures: epsilon is constant, and the last model is evaluated; the authors' code multiplies
    epsilon by the cohort's size, lets it decay, and evaluates the mean of the last two models.
    """

    claims: ClassVar[frozenset[str]] = frozenset({"server step"})
    epsilon: float = 1e-3

    def upload(self, delta: Tree, ctx: ClientContext) -> Upload:
        return Upload(delta, {"norm": {"square": tree.dot(delta, delta)}}, ctx.memory)

    def update(self, delta: Tree, ctx: ServerContext) -> tuple[Tree, State]:
        diversity = ctx.message["norm"]["square"] / (2 * (tree.dot(delta, delta) + self.epsilon))
        return tree.map(lambda d: diversity.clamp_min(1) * d, delta), ctx.state


if __name__ == "__main__":
    torch.manual_seed(0)
    module, dataset = MODELS["mlp"]((1, 8, 8), 10, hidden=(32,)), DATASETS["synthetic"](None)
    for name in ("fedavg", "fedexp", "fedexp + gcfed"):
        history = fit(module, dataset, algorithm=name, clients=20, alpha=0.3, rounds=5)
        print(f"{name:15} {100 * history['test_accuracy'][-1]:.1f} %")
