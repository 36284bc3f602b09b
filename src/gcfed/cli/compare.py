"""The command that sets runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli.options import Plugins, RunPaths
from gcfed.cli.reports import (
    COMPARED,
    BaselineOption,
    DrawOption,
    FormatOption,
    MetricOption,
    OutOption,
    PivotOption,
    PlotOption,
    Report,
    SizeOption,
    TableReport,
    TargetOption,
)
from gcfed.errors import InputError


def compare(
    runs: RunPaths,
    metric: MetricOption = None,
    target: TargetOption = None,
    baseline: BaselineOption = None,
    pivot: PivotOption = False,
    dynamics: Annotated[
        bool,
        typer.Option(
            "--dynamics",
            help="How the metric moved from evaluation to evaluation.",
            rich_help_panel=COMPARED,
        ),
    ] = False,
    at: Annotated[
        int | None,
        typer.Option(
            help="With --dynamics, a round to look at.",
            show_default="the last",
            rich_help_panel=COMPARED,
        ),
    ] = None,
    form: FormatOption = None,
    out: OutOption = None,
    plot: PlotOption = None,
    draw: DrawOption = None,
    size: SizeOption = None,
    plugin: Plugins = None,
) -> None:
    """Compare runs: mean and deviation over seeds, and differences.

    RUNS are run directories, or folders of them.  Runs that differ in their seed alone form a
    group.  The format of a file is that of its name, if none is given.

    Examples:

        gcfed compare runs --baseline fedavg
        gcfed compare runs --target 0.6 --out table.tex --plot curves.pdf
        gcfed compare runs --plot layers.pdf --draw cka.new
        gcfed compare runs --dynamics --at 200
    """
    if at is not None and not dynamics:
        raise InputError("--at goes with --dynamics")
    if dynamics:
        if pivot or baseline is not None:
            raise InputError("--dynamics goes with neither --pivot nor --baseline")
        picture = Report(plot=plot, size=size, draw=draw)
        _show_dynamics(runs, metric, target, at, TableReport(form, out), picture)
        return
    from gcfed.results.comparison import compare as compare_runs

    report = Report(form, out, plot, size, pivot, draw)
    found = compare_runs(runs, metric=metric, target=target, baseline=baseline)
    report.write(found)  # first, since what is to be drawn may not be there
    report.show(found)


def _show_dynamics(
    runs: list[Path],
    metric: str | None,
    target: float | None,
    at: int | None,
    table: TableReport,
    picture: Report,
) -> None:
    from gcfed.results.dynamics import dynamics

    found = dynamics(runs, metric=metric, target=target, at=at)
    picture.write(found.comparison)  # first, since what is to be drawn may not be there
    table.write(found)
    table.show(found)
