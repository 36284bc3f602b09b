"""Runs from the command line: started with a progress bar, shown as tables."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcfed.cli import console
from gcfed.errors import InputError
from gcfed.evaluation import Record
from gcfed.experiments import directory
from gcfed.experiments.config import Config
from gcfed.experiments.plots import curves
from gcfed.experiments.run import Run, load_run, run_together
from gcfed.files import write_atomically, write_json
from gcfed.models import MODELS, count

CIFAR = (3, 32, 32)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    name: str
    paths: Sequence[Path]
    summaries: list[dict[str, Any]]

    @property
    def runs(self) -> list[Run]:
        return [load_run(path) for path in self.paths]

    def mean_and_std(self, key: str) -> tuple[float | None, float | None]:
        """Over the runs that finished."""
        found = [s[key] for s in self.summaries if s["status"] != "failed" and s[key] is not None]
        if not found:
            return None, None
        return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None

    def to_json(self) -> dict[str, Any]:
        mean, std = self.mean_and_std("test_accuracy")
        return {"test_accuracy_mean": mean, "test_accuracy_std": std, "runs": self.summaries}


def run_group(name: str, configs: Sequence[Config], paths: Sequence[Path], quiet: bool) -> Group:
    """Do the runs of a group, showing how far they are."""
    total = sum(config.rounds for config in configs)
    with console.progress(name, total, quiet) as tick:

        def observe(i: int, line: Record, seconds: float) -> None:
            score = line["test_accuracy"]
            shown = "" if score is None else f"seed {configs[i].seed}: {100 * score:.1f} %"
            tick(shown)

        summaries = run_together(configs, paths, observe)
    if not quiet:
        made = load_run(paths[0]).provenance
        console.say(f"engine: {made['engine']} ({made['engine_reason']}), on {made['device']}")
    if len(paths) > 1:
        write_json(paths[0].parent / directory.SUMMARY, Group(name, paths, summaries).to_json())
    return Group(name, paths, summaries)


def print_comparison(groups: Sequence[Group]) -> None:
    """Mean and deviation of each group, and what sets it apart from the first, seed by seed."""
    rows = []
    for group in groups:
        final, best = group.mean_and_std("test_accuracy"), group.mean_and_std("test_accuracy_best")
        rows.append((group.name, percent(*final), percent(*best), _paired(group, groups[0])))
    console.table(
        ("algorithm", "final accuracy (%)", "best (%)", f"against {groups[0].name}"), rows
    )
    console.out.print("mean ± std over seeds; final is the mean of the last 10 rounds", style="dim")


def _paired(group: Group, base: Group) -> str:
    pairs = [
        100 * (s["test_accuracy"] - b["test_accuracy"])
        for s, b in zip(group.summaries, base.summaries, strict=True)
        if s["test_accuracy"] is not None and b["test_accuracy"] is not None
    ]
    return "" if group is base or not pairs else ", ".join(f"{gap:+.1f}" for gap in pairs)


def print_runs(group: Group) -> None:
    """A line for each run, and where it is."""
    rows = [
        (
            str(summary["seed"]),
            summary["status"],
            str(summary["rounds"]),
            percent(summary["test_accuracy"], None),
            percent(summary["test_accuracy_best"], None),
            str(path),
        )
        for summary, path in zip(group.summaries, group.paths, strict=True)
    ]
    console.table(("seed", "status", "rounds", "final (%)", "best (%)", "run"), rows)
    if len(rows) > 1:
        mean = percent(*group.mean_and_std("test_accuracy"))
        console.out.print(f"final accuracy, mean ± std over seeds: {mean} %")
    for summary in group.summaries:
        if "reason" in summary:
            where = f"seed {summary['seed']}: {summary['status']} in round {summary['round']}"
            console.say(f"{where}: {summary['reason']}")


def show(path: Path) -> None:
    """A run, or every run below a folder."""
    if (path / directory.CONFIG).is_file():
        _show_run(load_run(path))
        return
    found = sorted(config.parent for config in path.glob(f"*/**/{directory.CONFIG}"))
    if not found:
        raise InputError(f"{path} is neither a run nor a folder of runs")
    runs = [load_run(p) for p in found]
    rows = [
        (
            str(run.path.relative_to(path)),
            run.config.algorithm,
            str(run.config.seed),
            run.summary["status"],
            percent(run.summary.get("test_accuracy"), None),
        )
        for run in runs
    ]
    console.table(("run", "algorithm", "seed", "status", "final (%)"), rows)


def _show_run(run: Run) -> None:
    config, summary = run.config, run.summary
    made = run.provenance
    console.table(
        ("", ""),
        [
            ("algorithm", config.algorithm),
            ("data", f"{config.dataset}, {config.partition}, {config.cohort} of {config.clients}"),
            ("model", config.model),
            ("status", " ".join(str(summary[k]) for k in ("status", "reason") if k in summary)),
            ("rounds", f"{len(run.records)} of {config.rounds}"),
            ("final accuracy", f"{percent(summary.get('test_accuracy'), None)} %"),
            ("best accuracy", f"{percent(summary.get('test_accuracy_best'), None)} %"),
            ("engine", f"{made['engine']} on {made['device']}, torch {made['torch']}"),
            ("seconds a round", _pace(run)),
        ],
    )
    columns = ("round", "test_accuracy", "test_loss", "train_loss", "update_norm")
    last = [[_short(line[c]) for c in columns] for line in run.records[-5:]]
    console.table(columns, last)


def _pace(run: Run) -> str:
    seconds = [timing["seconds"] for timing in run.timings]
    return f"{statistics.median(seconds):.3g} (median)" if seconds else "-"


def save_curves(groups: Sequence[Group], folder: Path, title: str) -> Path:
    """The test accuracy of each group over the rounds, as a PNG."""
    figure = curves({g.name: [run.records for run in g.runs] for g in groups}, title=title)
    path = folder / "accuracy.png"
    write_atomically(path, lambda p: figure.savefig(p, format="png", dpi=150))
    return path


def model_rows() -> list[tuple[str, str, str, str]]:
    """What each model costs on the images of CIFAR-10."""
    rows = []
    for name in MODELS:
        cost = count(MODELS[name](CIFAR, 10), CIFAR)
        flops = f"{cost.flops / 1e6:,.1f}"
        rows.append((name, f"{cost.parameters:,}", flops, MODELS.describe(name)))
    return rows


def slug(config: Config) -> str:
    """A folder's name that says what is in it."""
    return re.sub(r"[^a-z0-9]+", "-", f"{config.algorithm} {config.dataset}".lower()).strip("-")[
        :60
    ]


def percent(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "-"
    return f"{100 * mean:.2f}" + ("" if std is None else f" ± {100 * std:.2f}")


def _short(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"
