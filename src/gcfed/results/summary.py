"""What came out of a run, in a few numbers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from gcfed.config.settings import Config
from gcfed.core.metrics import METRICS, Scale, named
from gcfed.simulation.lines import Record

SMOOTHED = 10  # the paper's tables average the last ten rounds

ChosenOn = Literal["test", "validation"]


def chosen_on(config: Config) -> ChosenOn:
    """The examples on which a run's best round is chosen."""
    return "validation" if config.validation else "test"


def say_averaged(evaluations: Iterable[int]) -> str:
    """Which evaluations the final values of runs that have so many are the means of.

    >>> say_averaged([100, 80]), say_averaged([3]), say_averaged([3, 100])
    ('the last 10 evaluations', 'all 3 evaluations', 'the last 10 evaluations, or of all if fewer')
    """
    match sorted({min(count, SMOOTHED) for count in evaluations if count}):
        case [1]:
            return "the one evaluation"
        case [count] if count < SMOOTHED:
            return f"all {count} evaluations"
        case [] | [_]:
            return f"the last {SMOOTHED} evaluations"
        case _:
            return f"the last {SMOOTHED} evaluations, or of all if fewer"


def say_chosen_on(configs: Iterable[Config]) -> str:
    """A sentence on what the best values of these runs were chosen on."""
    match sorted({chosen_on(config) for config in configs}):
        case ["validation"]:
            return "best: chosen on validation examples"
        case ["test"]:
            return "best: chosen on the test set"
        case _:
            return "best: chosen on validation examples where a run has some, else on the test set"


def judged_by(config: Config, line: Mapping[str, Any]) -> Scale:
    """What a run is judged by, as its settings and any line of its rounds tell.

    Where the settings name nothing it is the accuracy, or the loss if there is no accuracy.
    """
    has_accuracy = line.get("test_accuracy") is not None or line.get("test_loss") is None
    names = config.metrics or ("accuracy" if has_accuracy else "loss",)
    return named(names[0]).scale(METRICS.canonical(names[0]))


def summarize(config: Config, lines: Sequence[Record], metric: Scale) -> dict[str, Any]:
    """What came out of a run that is judged by ``metric``; percentages are fractions.

    ``test_accuracy``, or what else the metric is called, is the mean of the last ten evaluations;
    the best one is chosen on the validation examples where there are any.
    """
    test, by = f"test_{metric.name}", f"{chosen_on(config)}_{metric.name}"
    tested = [line for line in lines if line["tested"] is not None]
    scored = [line for line in tested if line[test] is not None]
    candidates = [line for line in scored if line[by] is not None]
    best: Mapping[str, Any] = max(candidates, key=lambda line: metric.sign * line[by], default={})
    summary = {
        "algorithm": config.algorithm,
        "dataset": config.dataset,
        "model": config.model,
        "seed": config.seed,
        "rounds": len(lines),
        "metric": metric.name,
        "test_loss": tested[-1]["test_loss"] if tested else None,  # where it is not the metric
        test: _mean_of_last(scored, test),
        f"{test}_last": scored[-1][test] if scored else None,
        f"{test}_best": best.get(test),
        "best_round": best.get("round"),
        "chosen_on": chosen_on(config),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "weights_sha256": lines[-1]["weights_sha256"] if lines else None,
    }
    if config.validation:
        summary[f"validation_{metric.name}"] = _mean_of_last(scored, f"validation_{metric.name}")
    return summary


def _mean_of_last(lines: Sequence[Record], name: str) -> float | None:
    values = [line[name] for line in lines[-SMOOTHED:] if line[name] is not None]
    return sum(values) / len(values) if values else None
