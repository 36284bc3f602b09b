"""Run directories made by hand, so that what should come out of them is known.

Test modules import its functions, so pytest is told to leave its assertions alone:
PYTEST_DONT_REWRITE
"""

import json

from running import tiny

from gcfed.results.summary import summarize


def make_run(
    path, accuracies, *, status="finished", ended=None, classes=10, identity=None, **settings
):
    """A run that scored these accuracies, one a round; 60 bytes go up and 40 down in each."""
    settings = {"rounds": max(len(accuracies), 1), **settings}
    config = tiny(**settings)
    lines = [
        {
            "round": t,
            "test_accuracy": accuracy,
            "test_loss": 1.0,
            "tested": None if accuracy is None else "global",
            "train_loss": 2.0,
            "clients": [1, 2, 3],
            "dropped": [],
            "update_norm": 0.5,
            "bytes_up": 60,
            "bytes_down": 40,
            "weights_sha256": "0" * 64,
        }
        for t, accuracy in enumerate(accuracies)
    ]
    ended = {"status": status, **(ended or {})}
    made = {"partition": {"classes": classes}, "identity": identity or {}}
    summary = ended if status == "running" else {**ended, **summarize(config, lines)}
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
