"""What came out of a run, in a few numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from gcfed.config.settings import Config
from gcfed.simulation.evaluation import Record

SMOOTHED = 10  # the paper's tables average the last ten rounds


def chosen_by(config: Config) -> str:
    """What rounds are chosen by."""
    return "validation_accuracy" if config.validation else "test_accuracy"


def summarize(config: Config, lines: Sequence[Record]) -> dict[str, Any]:
    """What came out of a run; accuracies are fractions.

    ``test_accuracy`` is the mean of the last ten evaluations; the best one is chosen on the
    validation examples where there are any.
    """
    tested = [line for line in lines if line["tested"] is not None]
    scored = [line for line in tested if line["test_accuracy"] is not None]
    best: Mapping[str, Any] = max(scored, key=lambda line: line[chosen_by(config)], default={})
    summary = {
        "algorithm": config.algorithm,
        "dataset": config.dataset,
        "model": config.model,
        "seed": config.seed,
        "rounds": len(lines),
        "test_accuracy": _mean_of_last(scored, "test_accuracy"),
        "test_accuracy_last": scored[-1]["test_accuracy"] if scored else None,
        "test_accuracy_best": best.get("test_accuracy"),
        "best_round": best.get("round"),
        "test_loss": tested[-1]["test_loss"] if tested else None,
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "weights_sha256": lines[-1]["weights_sha256"] if lines else None,
    }
    if config.validation:
        summary["validation_accuracy"] = _mean_of_last(scored, "validation_accuracy")
    return summary


def _mean_of_last(lines: Sequence[Record], name: str) -> float | None:
    values = [line[name] for line in lines[-SMOOTHED:]]
    return sum(values) / len(values) if values else None
