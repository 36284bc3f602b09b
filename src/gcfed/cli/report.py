"""The command that makes a page of runs for a browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcfed.cli import console
from gcfed.cli.options import Plugins, RunPaths, path_option
from gcfed.cli.pictures import PICTURES, save
from gcfed.cli.reports import FILES, BaselineOption, MetricOption, TargetOption
from gcfed.errors import InputError
from gcfed.files import write_text

if TYPE_CHECKING:
    from gcfed.results.comparison import Comparison

PAGE = Path("report.html")
SERVED = "A running sweep"
PORT = 8642
DPI = 300  # what journals ask for


def report(
    runs: RunPaths,
    out: Annotated[
        Path | None,
        path_option(
            "--out",
            "-o",
            metavar="FILE.html",
            help="The page to make.",
            show_default=str(PAGE),
            rich_help_panel=FILES,
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        path_option(
            metavar="DIR", help="Also write figures for a paper here.", rich_help_panel=FILES
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files.", rich_help_panel=FILES)
    ] = False,
    metric: MetricOption = None,
    target: TargetOption = None,
    baseline: BaselineOption = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Show the page on this machine, and keep it up to date.",
            rich_help_panel=SERVED,
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(help="Where; 0 for any that is free.", rich_help_panel=SERVED)
    ] = PORT,
    plugin: Plugins = None,
) -> None:
    """Make one page of runs: tables, curves, clients, data, costs.

    RUNS are run directories, or folders of them.  The page is a single file that a browser shows
    without a network.  --figures writes the main curves as .png, .pdf and .svg too.

    Examples:

        gcfed report runs -o report.html
        gcfed report runs --baseline fedavg --figures figures
        gcfed report runs --serve
    """
    if serve and (out or figures):
        raise InputError("--serve writes no files: leave out --out and --figures, or --serve")
    page = out or PAGE
    if not serve:
        _check_page(page, force)
        _check_figures(figures, force)
    from gcfed.report.page import check_installed

    check_installed()
    options = {"metric": metric, "target": target, "baseline": baseline}
    if serve:
        _serve(runs, options, port)
    else:
        _write(runs, options, page, figures)


def _write(runs: list[Path], options: dict[str, Any], page: Path, figures: Path | None) -> None:
    from gcfed.report.contents import compare_warned, gather
    from gcfed.report.page import render_page

    found = compare_warned(runs, **options)
    write_text(page, render_page(gather(found)))
    console.say(f"page  {page}")
    if figures is not None:
        _write_figures(found.comparison, figures)


def _write_figures(found: "Comparison", folder: Path) -> None:
    from gcfed.report.paper_figures import paper_figures

    for name, figure in paper_figures(found):
        for suffix in PICTURES:
            save(figure, folder / f"{name}{suffix}", dpi=DPI)
        console.say(f"figure  {folder / name}{{{','.join(PICTURES)}}}")


def _serve(runs: list[Path], options: dict[str, Any], port: int) -> None:
    from gcfed.report.contents import compare_warned, gather
    from gcfed.report.live import ReportServer

    for path in runs:
        if not path.is_dir():
            raise InputError(f"{path} is no folder: name the folder that a sweep writes runs to")
    with ReportServer(runs, lambda: gather(compare_warned(runs, **options)), port) as server:
        console.say(f"report  {server.address} (on this machine alone; Ctrl+C stops it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.say("stopped")


def _check_page(page: Path, force: bool) -> None:
    """Refuse, before any work is done, a file that cannot be meant."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out makes a page, such as report.html; not {page}")
    if page.is_dir() or (page.exists() and not force):
        raise InputError(f"{page} is there already: name another file by --out, or give --force")
    if not page.absolute().parent.is_dir():
        raise InputError(f"{page} cannot be made: there is no folder {page.absolute().parent}")


def _check_figures(folder: Path | None, force: bool) -> None:
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--figures names a folder; {folder} is a file")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InputError(f"{folder} holds files already: name another folder, or give --force")
