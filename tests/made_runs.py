"""Run directories made by hand, so that what should come out of them is known.

Test modules import its functions, so pytest is told to leave its assertions alone:
PYTEST_DONT_REWRITE
"""

import json
import shutil
from dataclasses import asdict

from running import tiny

import gcfed
from gcfed.core.metrics import Scale
from gcfed.results.summary import summarize

ACCURACY, LOSS = Scale("accuracy", "higher", True), Scale("loss", "lower")


def make_run(
    path,
    values,
    *,
    metric=ACCURACY,
    status="finished",
    ended=None,
    classes=10,
    identity=None,
    **settings,
):
    """A run with these values of a metric, one a round; 60 bytes go up and 40 down in each."""
    settings = {"rounds": max(len(values), 1), **settings}
    config = tiny(**settings)
    lines = [
        {
            "round": t,
            "test_accuracy": None,
            "test_loss": 1.0,
            f"test_{metric.name}": value,
            "tested": None if value is None else "global",
            "train_loss": 2.0,
            "clients": [1, 2, 3],
            "dropped": [],
            "update_norm": 0.5,
            "bytes_up": 60,
            "bytes_down": 40,
            "weights_sha256": "0" * 64,
        }
        for t, value in enumerate(values)
    ]
    ended = {"status": status, **(ended or {})}
    metrics = {metric.name: metric, "loss": LOSS}
    made = {"partition": {"classes": classes}, "identity": identity or {}}
    made["metrics"] = [asdict(each) for each in metrics.values()]
    summary = ended if status == "running" else {**ended, **summarize(config, lines, metric)}
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config.to_toml())
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "provenance.json").write_text(json.dumps(made))
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def make_runs(folder, finals, **settings):
    """Runs of one round each, that differ in their seed and in what they score."""
    for seed, final in enumerate(finals):
        make_run(folder / f"seed-{seed}", [final], seed=seed, **settings)
    return folder


def as_done_here(old, new):
    """Give an old run the numbers it has on this processor, by doing it again in folder ``new``."""
    path = old.path
    gcfed.run(old.config, new)
    again = gcfed.load_run(new)
    both = zip(old.records, again.records, strict=True)
    lines = [{key: line[key] for key in before} for before, line in both]
    summary = {**old.summary, **summarize(old.config, lines, ACCURACY)}
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "summary.json").write_text(json.dumps(summary))
    for weights in path.rglob("*.safetensors"):
        shutil.copy(new / weights.relative_to(path), weights)
