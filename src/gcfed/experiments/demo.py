"""The demonstration: FedAvg against GC-Fed where few of many differing clients take part."""

from gcfed.experiments.config import Config

ROUNDS = 80
SEEDS = (0, 1, 2)
TITLE = "Fashion-MNIST 10k, MLP, 5 of 100 clients a round, Dirichlet(0.05)"


def configs(rounds: int = ROUNDS) -> dict[str, list[Config]]:
    """The runs by algorithm, in pairs of equal seeds."""
    return {
        name: [
            Config(
                algorithm=name,
                model="mlp",
                partition="dirichlet(alpha=0.05)",
                rounds=rounds,
                seed=seed,
            )
            for seed in SEEDS
        ]
        for name in ("fedavg", "gcfed")
    }
