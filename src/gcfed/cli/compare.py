"""The command that sets runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from gcfed.cli.options import Plugins
from gcfed.cli.reports import (
    BaselineOption,
    OutOption,
    PivotOption,
    PlotOption,
    Report,
    SizeOption,
)
from gcfed.results.comparison import compare as compare_runs


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", hidden=True)],
    metric: Annotated[
        str | None, typer.Option(help="Such as loss; if not given, what the runs are judged by.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="A value, such as 0.6 for an accuracy of 60 %: rounds and bytes to it."),
    ] = None,
    baseline: BaselineOption = None,
    pivot: PivotOption = False,
    form: Annotated[
        str | None, typer.Option("--format", help="markdown, latex, csv, json or text.")
    ] = None,
    out: OutOption = None,
    plot: PlotOption = None,
    size: SizeOption = "two columns",
    plugin: Plugins = None,
) -> None:
    """Compare runs: mean and deviation over seeds, and differences.

    RUNS are run directories, or folders of them.  Runs that differ in their seed alone form a
    group.  The format of a file is that of its name, if none is given.
    """
    report = Report(form, out, plot, size, pivot)
    found = compare_runs(runs, metric=metric, target=target, baseline=baseline)
    report.show(found)
    report.write(found)
