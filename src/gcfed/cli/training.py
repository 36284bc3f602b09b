"""Runs started from the command line: with a progress bar, and a table at the end."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcfed.cli import console
from gcfed.config.settings import Config
from gcfed.files import write_atomically, write_json
from gcfed.progress import progress
from gcfed.results import directory
from gcfed.results.facts import FINAL, percent, round_note, status_of
from gcfed.results.run import Run, load_run
from gcfed.runs.resume import resume_together
from gcfed.runs.store import RunStore
from gcfed.runs.train import Observer, run_together
from gcfed.simulation.evaluation import Record


@dataclass(frozen=True)
class RunSet:
    """Runs that differ in their seed alone."""

    name: str
    paths: Sequence[Path]
    summaries: list[dict[str, Any]]

    @property
    def runs(self) -> list[Run]:
        return [load_run(path) for path in self.paths]

    @property
    def stopped(self) -> bool:
        return any(summary["status"] == "stopped" for summary in self.summaries)

    def mean_and_std(self, key: str) -> tuple[float | None, float | None]:
        """Over the runs that finished."""
        finished = (s[key] for s in self.summaries if s["status"] == "finished")
        found = [value for value in finished if value is not None]
        if not found:
            return None, None
        return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None

    def score(self, key: str) -> str:
        """Mean and deviation in percent, and how many runs they leave out."""
        finished = sum(summary["status"] == "finished" for summary in self.summaries)
        of = f" ({finished} of {len(self.summaries)} seeds)"
        return percent(*self.mean_and_std(key)) + (of if finished < len(self.summaries) else "")

    def to_json(self) -> dict[str, Any]:
        mean, std = self.mean_and_std("test_accuracy")
        return {"test_accuracy_mean": mean, "test_accuracy_std": std, "runs": self.summaries}


def run_group(name: str, configs: Sequence[Config], folder: Path, quiet: bool = False) -> RunSet:
    """Do runs that differ in their seeds, one folder each, showing how far they are."""
    paths = [folder / f"seed-{config.seed}" for config in configs]
    with _watched(name, configs[0].rounds, quiet) as observe:
        group = RunSet(name, paths, run_together(configs, paths, observe))
    _say_engine(paths[0], quiet)
    write_json(folder / directory.SUMMARY, group.to_json())
    return group


def run_one(config: Config, folder: Path, quiet: bool = False) -> RunSet:
    """Do a run, showing how far it is."""
    with _watched(config.algorithm, config.rounds, quiet) as observe:
        summaries = run_together([config], [folder], observe)
    _say_engine(folder, quiet)
    return RunSet(config.algorithm, [folder], summaries)


def run_in_store(store: RunStore, configs: Sequence[Config], quiet: bool = False) -> RunSet:
    """Do runs that differ in their seeds, or find them done, showing how far they are."""
    name, before, first = configs[0].algorithm, set(store.folder.glob("*")), dict[int, int]()
    with _watched(name, configs[0].rounds, quiet) as observe:

        def watch(lines: Mapping[int, Record]) -> None:
            for i, line in lines.items():
                first.setdefault(i, line["round"])
            observe(lines)

        runs = store.run_together(configs, watch)
    for i, run in enumerate(runs):
        if run.path in before and not quiet:
            went_on = f"went on after {first[i]} rounds" if i in first else "found"
            more = "" if run.rounds is None else f" (it has more than {run.rounds} rounds)"
            console.say(f"{went_on}: {run.path}{more}")
    _say_engine(runs[0].path, quiet)
    return RunSet(name, [run.path for run in runs], [run.summary for run in runs])


def resume(runs: Sequence[Run], rounds: int | None, quiet: bool = False) -> RunSet:
    """Go on with runs that are trained together, showing how far they are."""
    name, total = runs[0].config.algorithm, rounds or max(run.config.rounds for run in runs)
    with _watched(name, total, quiet) as observe:
        resume_together(runs, rounds, observe)
    paths = [run.path for run in runs]
    group = RunSet(name, paths, [load_run(path).summary for path in paths])
    folder = paths[0].parent
    if (folder / directory.SUMMARY).is_file() and all(path.parent == folder for path in paths):
        write_json(folder / directory.SUMMARY, group.to_json())
    return group


@contextmanager
def _watched(name: str, rounds: int, quiet: bool) -> Iterator[Observer]:
    with progress(name, rounds, quiet=quiet) as tick:

        def observe(lines: Mapping[int, Record]) -> None:
            for line in list(lines.values())[:1]:
                tick(line["round"] + 1, round_note(lines.values()))

        yield observe


def _say_engine(path: Path, quiet: bool) -> None:
    if not quiet:
        made = load_run(path).provenance
        console.say(f"engine: {made['engine']} on {made['device']} ({made['engine_reason']})")


def print_comparison(groups: Sequence[RunSet]) -> None:
    """Mean and deviation of each group, and what sets it apart from the first, seed by seed."""
    base = groups[0]
    rows = [
        (g.name, g.score("test_accuracy"), g.score("test_accuracy_best"), _paired(g, base))
        for g in groups
    ]
    columns = ("algorithm", "final accuracy (%)", "best (%)", f"minus {base.name}, by seed")
    console.table(columns, rows)
    console.tell(f"mean ± standard deviation over seeds; {FINAL}")


def _paired(group: RunSet, base: RunSet) -> str:
    pairs = [
        100 * (s["test_accuracy"] - b["test_accuracy"])
        for s, b in zip(group.summaries, base.summaries, strict=True)
        if s["test_accuracy"] is not None and b["test_accuracy"] is not None
    ]
    return "" if group is base or not pairs else ", ".join(f"{gap:+.1f}" for gap in pairs)


def print_runs(group: RunSet) -> None:
    """A line for each run, and where it is."""
    rows = [
        (
            str(summary["seed"]),
            summary["status"],
            str(summary["rounds"]),
            percent(summary["test_accuracy"]),
            percent(summary["test_accuracy_best"]),
            str(path),
        )
        for summary, path in zip(group.summaries, group.paths, strict=True)
    ]
    console.table(("seed", "status", "rounds", "final (%)", "best (%)", "run"), rows)
    console.tell(FINAL)
    if len(rows) > 1:
        console.tell(f"mean ± standard deviation over seeds: {group.score('test_accuracy')}")
    for summary in group.summaries:
        if "reason" in summary:
            console.say(f"seed {summary['seed']}: {status_of(summary)}")
    if group.stopped:
        console.say(f"to go on: gcfed resume {group.paths[0]}")


def save_curves(groups: Sequence[RunSet], folder: Path, title: str) -> Path:
    """The test accuracy of each group over the rounds, as a PNG."""
    from gcfed.results.plots import curves  # matplotlib takes a second to import

    figure = curves({g.name: [run.records for run in g.runs] for g in groups}, title=title)
    path = folder / "accuracy.png"
    write_atomically(path, lambda p: figure.savefig(p, format="png", dpi=150))
    return path
