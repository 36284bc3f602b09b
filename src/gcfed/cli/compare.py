"""The command that sets runs side by side."""

from typing import Annotated

import typer

from gcfed.cli.options import Plugins, RunPaths, setting_option
from gcfed.cli.reports import (
    COMPARED,
    FILES,
    BaselineOption,
    OutOption,
    PivotOption,
    PlotOption,
    Report,
    SizeOption,
)


def compare(
    runs: RunPaths,
    metric: Annotated[
        str | None,
        setting_option(COMPARED, "Such as loss.", "what the runs are judged by", "metrics"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="A value, such as 0.6 for an accuracy of 60 %: rounds and bytes to it.",
            rich_help_panel=COMPARED,
        ),
    ] = None,
    baseline: BaselineOption = None,
    pivot: PivotOption = False,
    form: Annotated[
        str | None,
        typer.Option("--format", help="markdown, latex, csv, json or text.", rich_help_panel=FILES),
    ] = None,
    out: OutOption = None,
    plot: PlotOption = None,
    size: SizeOption = "two columns",
    plugin: Plugins = None,
) -> None:
    """Compare runs: mean and deviation over seeds, and differences.

    RUNS are run directories, or folders of them.  Runs that differ in their seed alone form a
    group.  The format of a file is that of its name, if none is given.

    Examples:

        gcfed compare runs --baseline fedavg
        gcfed compare runs --target 0.6 --out table.tex --plot curves.pdf
    """
    from gcfed.results.comparison import compare as compare_runs

    report = Report(form, out, plot, size, pivot)
    found = compare_runs(runs, metric=metric, target=target, baseline=baseline)
    report.show(found)
    report.write(found)
