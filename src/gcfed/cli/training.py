"""Runs started from the command line: with a progress bar, and a table at the end."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from gcfed.cli import console
from gcfed.config.settings import Config
from gcfed.display import counted
from gcfed.errors import DIVERGED_ADVICE
from gcfed.files import quoted, write_json
from gcfed.progress import progress
from gcfed.results import directory
from gcfed.results.captions import short
from gcfed.results.comparison import compare
from gcfed.results.facts import probe_shares, round_note, status_of
from gcfed.results.listing import run_table
from gcfed.results.outcomes import outcome, spread
from gcfed.results.run import Run, load_run
from gcfed.results.summary import judged_by
from gcfed.runs.resume import resume_together
from gcfed.runs.store import RunStore
from gcfed.runs.train import Observer, run_together
from gcfed.simulation.lines import Record


def run_seeds(configs: Sequence[Config], folder: Path, quiet: bool = False) -> list[Run]:
    """Do runs that differ in their seeds, one folder each, showing how far they are."""
    paths = [folder / f"seed-{config.seed}" for config in configs]
    runs = _run(configs, paths, quiet)
    write_json(folder / directory.SUMMARY, summarize(runs))
    return runs


def run_one(config: Config, folder: Path, quiet: bool = False) -> list[Run]:
    """Do a run, showing how far it is."""
    return _run([config], [folder], quiet)


def _run(configs: Sequence[Config], paths: Sequence[Path], quiet: bool) -> list[Run]:
    with _watched(configs[0], configs[0].rounds, quiet) as observe:
        run_together(configs, paths, observe)
    runs = list(map(load_run, paths))
    _say_what_probes_took(runs[0], quiet)
    return runs


def run_in_store(store: RunStore, configs: Sequence[Config], quiet: bool = False) -> list[Run]:
    """Do runs that differ in their seeds, or find them done, showing how far they are."""
    before, first = set(store.folder.glob("*")), dict[int, int]()
    with _watched(configs[0], configs[0].rounds, quiet) as observe:

        def watch(lines: Mapping[int, Record]) -> None:
            for i, line in lines.items():
                first.setdefault(i, line["round"])
            observe(lines)

        runs = store.run_together(configs, watch)
    for i, run in enumerate(runs):
        if run.path in before and not quiet:
            went_on = f"went on after {first[i]} rounds" if i in first else "found"
            more = (
                "" if run.rounds is None else f" (it has more than {counted(run.rounds, 'round')})"
            )
            console.say(f"{went_on}: {run.path}{more}{_otherwise(configs[i], run)}")
    _say_what_probes_took(runs[0], quiet)
    return runs


def _otherwise(config: Config, run: Run) -> str:
    """How a run was trained that was asked for in another way, which makes it no other run."""
    asked = {key: getattr(config, key) for key in ("engine", "precision")}
    was = {key: getattr(run.config, key) for key, value in asked.items() if value != "auto"}
    differing = [f"{key}={value}" for key, value in was.items() if value != asked[key]]
    return f" (trained with {', '.join(differing)})" if differing else ""


def resume(runs: Sequence[Run], rounds: int | None, quiet: bool = False) -> list[Run]:
    """Go on with runs that are trained together, showing how far they are."""
    total = rounds or max(run.config.rounds for run in runs)
    if not quiet and all(run.summary["status"] == "finished" for run in runs) and not rounds:
        console.say(f"{runs[0].path} has no round left to do: --rounds gives it more")
    with _watched(runs[0].config, total, quiet) as observe:
        resume_together(runs, rounds, observe)
    runs = [load_run(run.path) for run in runs]
    folder = runs[0].path.parent
    if (folder / directory.SUMMARY).is_file() and all(run.path.parent == folder for run in runs):
        write_json(folder / directory.SUMMARY, summarize(runs))
    return runs


def is_stopped(runs: Sequence[Run]) -> bool:
    return any(run.summary["status"] == "stopped" for run in runs)


def summarize(runs: Sequence[Run]) -> dict[str, Any]:
    """The summaries of runs that differ in their seeds; the mean is over those that finished."""
    metric = runs[0].metric
    finals = spread(outcome(run, metric).final for run in runs)
    return {
        "metric": metric.name,
        f"test_{metric.name}_mean": finals.mean,
        f"test_{metric.name}_std": finals.std,
        "runs": [run.summary for run in runs],
    }


@contextmanager
def _watched(config: Config, rounds: int, quiet: bool) -> Iterator[Observer]:
    notes = nullcontext() if quiet else console.showing_notes()
    with notes, progress(short(config.algorithm), rounds, quiet=quiet) as tick:

        def observe(lines: Mapping[int, Record]) -> None:
            gc.enable()  # which `gcfed run` put off
            for line in list(lines.values())[:1]:
                try:
                    tick(line["round"] + 1, round_note(judged_by(config, line), lines.values()))
                except BrokenPipeError:  # nobody reads on, as after | head: stop as by Ctrl-C
                    raise KeyboardInterrupt from None

        yield observe


def _say_what_probes_took(run: Run, quiet: bool) -> None:
    """The share of the time that each probe took, if there were any."""
    if not quiet and (shares := probe_shares(run)):
        console.say(f"probes: {shares}")


def print_runs(runs: Sequence[Run]) -> None:
    """A line for each run, and what several come to."""
    console.show(run_table(runs))
    if len(runs) > 1:
        console.tell()
        console.show(compare(runs).table())
    for run in runs:
        if "reason" in run.summary:
            console.say(f"seed {run.config.seed}: {status_of(run)}")
    if any("diverged" in run.summary for run in runs):
        console.say(DIVERGED_ADVICE)
    if is_stopped(runs):
        console.say(f"to go on: gcfed resume {quoted(runs[0].path)}")
