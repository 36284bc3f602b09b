"""pfl's runner, in one process or, under torchrun, in several: ``python -m ... EXPORT``."""

import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain, cycle

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.others.common import Export, answer, turns

NEVER = 10**9
SCORE = StringMetricName("Central val | accuracy")


class Net(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.net.train()
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        self.net.eval()
        right = (self.net(x).argmax(1) == y).sum().item()
        return {"accuracy": Weighted(right, len(y))}


class Turns(TrainingProcessCallback):
    """Holds the run between turns; the first process reads them and tells the others."""

    def __init__(self) -> None:
        self._several = torch.distributed.is_initialized()
        self._first = not self._several or torch.distributed.get_rank() == 0
        self._turns: Iterator[int] = turns("pfl") if self._first else iter(())
        self._left, self._accuracy = 0, 0.0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._left = self._next()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if SCORE in aggregate_metrics:
            self._accuracy = aggregate_metrics[SCORE].overall_value
        self._left -= 1
        if self._left == 0:
            if self._first:
                answer(self._accuracy)
            self._left = self._next()
        return self._left == 0, Metrics()

    def _next(self) -> int:
        """Rounds to do now; 0 ends the run."""
        count = next(self._turns, 0)
        if not self._several:
            return count
        told = torch.tensor([count])
        torch.distributed.broadcast(told, src=0)
        return int(told)


def main() -> None:
    work = Export(sys.argv[1])
    s, (x, y) = work.settings, work.train
    np.random.seed(0)  # processes draw the same users
    torch.manual_seed(0)
    net = Net(work.module())
    model = PyTorchModel(
        net,
        local_optimizer_create=partial(torch.optim.SGD, **s.sgd),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    # in memory and cut into batches once; weights balance the processes
    users = [PyTorchTensorDataset((x[rows], y[rows])) for rows in work.rows]
    order = cycle(chain.from_iterable(work.cohorts))
    data = FederatedDataset(
        users.__getitem__, order.__next__, {i: len(user) for i, user in enumerate(users)}
    )
    evaluation = NNEvalHyperParams(local_batch_size=1000)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=NEVER,
            evaluation_frequency=NEVER,  # of clients on their own data: nobody else does that
            train_cohort_size=s.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(data, data, postprocessors=[WeightByUser()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=s.batch_size,
            local_num_epochs=s.epochs,
            local_learning_rate=s.lr,
        ),
        model_eval_params=evaluation,
        callbacks=[
            CentralEvaluationCallback(
                PyTorchTensorDataset(work.test), evaluation, frequency=s.evaluate_every
            ),
            Turns(),
        ],
    )


if __name__ == "__main__":
    main()
