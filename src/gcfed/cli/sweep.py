"""The command that trains a grid of settings."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.exits import DIVERGED, FAILED, INTERRUPTED
from gcfed.cli.options import Devices, DryRun, PerDevice, Plugins, StoreOption, path_argument
from gcfed.cli.reports import (
    BaselineOption,
    OutOption,
    PivotOption,
    PlotOption,
    Report,
    SizeOption,
)
from gcfed.errors import InputError, unknown
from gcfed.progress import duration
from gcfed.results.directory import STORE

if TYPE_CHECKING:
    from gcfed.results.comparison import Comparison
    from gcfed.results.run import Run
    from gcfed.sweeps.planning import CellPlan
    from gcfed.sweeps.sweep import Sweep
    from gcfed.sweeps.tuning import Selection

PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def sweep(
    grid: Annotated[Path, path_argument("GRID.toml")],
    devices: Devices = None,
    per_device: PerDevice = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train the cells on a Ray cluster: its address, auto for the one of this machine, "
            "local to start one here. The store lies where all its machines have it.",
        ),
    ] = None,
    store: StoreOption = STORE,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record alone.")] = False,
    baseline: BaselineOption = None,
    pivot: PivotOption = False,
    out: OutOption = None,
    plot: PlotOption = None,
    size: SizeOption = None,
    plugin: Plugins = None,
) -> None:
    """Train a grid of settings, several seeds each, on several devices.

    GRID.toml holds settings as for gcfed run, seeds = [0, 1, 2], a table [grid] with a list of
    values for each setting that is varied, and may hold a table [tune] of settings that are
    selected on validation examples.  Asked again, it goes on: what is done is found.  The exit code
    is 0; 1 if a cell failed; 3 if one diverged (with [tune]: if nothing could be selected); 130 if
    the sweep was stopped.  The files of --out and --plot are made when no cell is left to do.

    Examples:

        gcfed sweep grid.toml --dry-run
        gcfed sweep grid.toml --devices cuda:0,cuda:1 --per-device 3
        gcfed sweep grid.toml --ray head:6379 --devices cuda
    """
    from gcfed.cli.board import watched
    from gcfed.sweeps.sweep import Sweep

    report = Report(None, out, plot, size, pivot)
    made = Sweep(
        grid, store, devices, per_device=per_device, plugins=plugin or [], ray=ray, quiet=False
    )
    _check(made, report, baseline)
    if dry_run:
        print_plans(made, as_json)
        return
    if (done := len(made.of("done")) + len(made.of("diverged"))) and not as_json:
        console.say(f"{done} of {len(made.cells)} cells are done already")
    with watched(made, quiet=as_json) as observe:
        made.run(observe)
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
    else:
        _print(made, report, baseline)
    if made.runs and not made.is_stopped and (out or plot):
        report.write(_compared(made.runs, baseline))
    sys.exit(sweep_exit_code(made))


def sweep_exit_code(made: "Sweep") -> int:
    """A sweep that was stopped is not over; a candidate may diverge, if another is selected."""
    if made.is_stopped:
        return INTERRUPTED
    if made.of("failed"):
        return FAILED
    tuned = made.grid.is_tuned
    lost = [s for s in made.selected if s.best is None] if tuned else made.of("diverged")
    return DIVERGED if lost else 0


def _check(made: "Sweep", report: Report, baseline: str | None) -> None:
    """Refuse, before anything is trained, what could not be made of the runs afterwards."""
    from gcfed.results.captions import short as short_name, written

    metrics = {state.metric.name for state in made.cells}
    if (report.out or report.plot) and len(metrics) > 1:
        raise InputError(
            f"the cells are judged by different metrics ({', '.join(sorted(metrics))}): "
            "compare them by one that all have, with gcfed compare --metric"
        )
    algorithms = {short_name(state.cell.configs[0].algorithm) for state in made.cells}
    if baseline is not None and not any(
        written(baseline) == written(name) or baseline.startswith(f"{name}, ")
        for name in algorithms
    ):
        raise unknown("baseline", baseline, algorithms)


def _compared(runs: list["Run"], baseline: str | None) -> "Comparison":
    """The runs side by side; a baseline whose cells failed leaves the others without one."""
    from gcfed.results.comparison import compare

    try:
        return compare(runs, baseline=baseline)
    except InputError as error:
        if baseline is None:
            raise
        console.say(f"no differences to the baseline: {error}")
        return compare(runs)


def _print(made: "Sweep", report: Report, baseline: str | None) -> None:
    from gcfed.results.summary import SMOOTHED

    for metric in dict.fromkeys(run.metric.name for run in made.runs):
        runs = [run for run in made.runs if run.metric.name == metric]
        report.show(_compared(runs, baseline))
    if made.grid.is_tuned:
        console.tell()
        console.table(("settings", "selected", "by", "value"), map(_selected, made.selected))
        console.tell(f"mean over seeds of the last {SMOOTHED} evaluations on validation examples")
    for state in (*made.of("failed"), *made.of("diverged")):
        name = f"cell {state.cell.number} ({state.cell.name})"
        console.say(f"{name} {state.status}: {state.reason}")
    console.say(f"record  {made.path}")
    if made.is_stopped:
        over = len(made.cells) - len(made.of("stopped")) - len(made.of("waiting"))
        console.say(f"stopped with {over} of {len(made.cells)} cells; the same command goes on")


def _selected(selection: "Selection") -> tuple[str, str, str, str]:
    from gcfed.sweeps.grid import describe

    best, metric = selection.best, selection.metric
    settings = "none yet" if best is None else describe(best.cell.candidate)
    by = f"validation {metric.name}"
    return selection.name, settings, by, metric.quantity(selection.score)


def print_plans(made: "Sweep", as_json: bool) -> None:
    """What every cell will cost, and all of them together."""
    lines = [plan.to_json() for plan in made.plans]
    if as_json:
        print(json.dumps(lines, indent=2))
        return
    keys = list(made.cells[0].cell.settings)
    columns = ("cell", *keys, "seeds", "status", "rounds", "examples", "FLOP", "bytes", "time")
    rows = [_row(plan, keys) for plan in made.plans]
    console.table(columns, [*rows, _total(made, len(keys))])
    console.tell("what is left to do: rounds of all seeds, training examples, 3 times the forward")
    console.tell(
        "products, bytes up and down; time by runs in the store, ? if there are none alike"
    )


def _row(plan: "CellPlan", keys: list[str]) -> list[str]:
    line, seeds = plan.to_json(), len(plan.cell.configs)
    values = [str(plan.cell.settings[key]) for key in keys]
    first = [str(plan.cell.number), *values, str(seeds), plan.status, str(line["rounds"])]
    return [*first, *_costs(line["examples"], line["flops"], line["bytes"], line["seconds"])]


def _total(made: "Sweep", num_keys: int) -> list[str]:
    """The sum; time is divided among GPUs, and not among cells that share a device."""
    lines = [plan.to_json() for plan in made.plans]
    sums = []
    for key in ("examples", "flops", "bytes", "seconds"):
        values = [line[key] for line in lines]
        sums.append(None if None in values else sum(values))
    gpus = len({device for device in made.devices if device != "cpu"})
    if sums[-1] is not None:
        sums[-1] /= max(gpus, 1)
    rounds = str(sum(line["rounds"] for line in lines))
    return ["all", *[""] * num_keys, str(len(made.grid.seeds)), "", rounds, *_costs(*sums)]


def _costs(
    examples: float | None, flops: float | None, num_bytes: float | None, seconds: float | None
) -> list[str]:
    return [short(examples), short(flops), short(num_bytes), duration(seconds)]


def short(value: float | None) -> str:
    """A number by three digits and a prefix.

    >>> short(0), short(4600), short(1.234e12)
    ('0', '4.6 k', '1.23 T')
    """
    if value is None:
        return "?"
    value = float(f"{value:.3g}")
    power = min(int(math.log10(value)) // 3, len(PREFIXES) - 1) if value >= 1 else 0
    return f"{value / 1000**power:.3g} {PREFIXES[power]}".rstrip()
