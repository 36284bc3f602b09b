"""The protocol of the paper's experiments: every setting but the algorithm, rounds and seeds."""

from typing import Any

PLAIN = ("emnist",)
"""The data that the authors divided by a plain Dirichlet partition, without their cap on sizes."""


def paper_protocol(
    dataset: str, model: str, *, cohort: int, clients: int, alpha: float
) -> dict[str, Any]:
    """The settings of a cell of the paper's tables, as a config file or a sweep has them.

    Augmentation and normalisation come with the data sets, initial weights and the head with the
    models.  Nothing is left to a default, so that no later default changes the protocol.

    >>> cell = paper_protocol("cifar10", "cnn", cohort=5, clients=100, alpha=0.1)
    >>> cell["partition"]
    "dirichlet(alpha=0.1, mode='capped')"
    """
    mode = "per_class" if dataset.partition("(")[0].strip() in PLAIN else "capped"
    return {
        "dataset": dataset,
        "model": model,
        "partition": f"dirichlet(alpha={float(alpha)}, mode={mode!r})",
        "clients": clients,
        "cohort": cohort,
        "sampler": "uniform",
        "epochs": 5,
        "batch_size": 50,
        "fill": "repeat",
        "optimizer": "sgd",
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "lr_schedule": "constant",
        "server_lr": 1.0,
        "weighting": "uniform",
        "evaluate_every": 1,
    }
