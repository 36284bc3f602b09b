"""The command that does a table or figure of the GC-Fed paper again."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gcfed.cli import console
from gcfed.cli.options import (
    DataDir,
    Devices,
    DryRun,
    PerDevice,
    Plugins,
    StoreOption,
    changes_given,
    check_positive,
    setting_option,
)
from gcfed.cli.reports import OutOption, PivotOption, PlotOption, Report, SizeOption
from gcfed.display import counted
from gcfed.errors import InputError
from gcfed.results.directory import STORE
from gcfed.values import between_commas

if TYPE_CHECKING:
    from gcfed.paper.extent import Extent
    from gcfed.sweeps.sweep import Sweep

MUCH = "How much of it"


def reproduce(
    item: Annotated[str | None, typer.Argument(metavar="ITEM", hidden=True)] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the tables and figures; with ITEM, its cells.")
    ] = False,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'cifar10 5/100'",
            help="Those with all these words; may be repeated.",
            show_default="all",
            rich_help_panel=MUCH,
        ),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            metavar="fedavg,gcfed,...",
            help="Methods of the item.",
            show_default="all",
            rich_help_panel=MUCH,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Runs of each cell.", show_default="3, or 1 if reduced", rich_help_panel=MUCH
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Of each run.", show_default="the paper's, or few if reduced", rich_help_panel=MUCH
        ),
    ] = None,
    reduced: Annotated[
        bool,
        typer.Option(
            "--reduced",
            help="Embedded data, a small model and few rounds, for a laptop.",
            rich_help_panel=MUCH,
        ),
    ] = False,
    on_nonfinite: Annotated[
        Literal["fail", "drop"] | None,
        setting_option(MUCH, "What an update that is not finite does to a run.", "fail"),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting.", rich_help_panel=MUCH),
    ] = None,
    devices: Devices = None,
    per_device: PerDevice = 1,
    store: StoreOption = STORE,
    data_dir: DataDir = None,
    dry_run: DryRun = False,
    found: Annotated[
        bool, typer.Option("--found", help="Show what the store holds; train nothing.")
    ] = False,
    pivot: PivotOption = False,
    out: OutOption = None,
    plot: PlotOption = None,
    size: SizeOption = None,
    plugin: Plugins = None,
) -> None:
    """Do a table or figure of the GC-Fed paper again, beside what is printed.

    ITEM is a name that --list shows.  Its cells are one sweep: what is done is found in the store,
    and the same command goes on with what was stopped.  Methods are as the paper's authors ran
    them.  The exit code is that of gcfed sweep; a difference to the paper does not change it.

    Examples:

        gcfed reproduce --list
        gcfed reproduce small-scale --reduced --algorithms fedavg,localgc,gcfed
        gcfed reproduce small-scale --cells 'cifar10 5/100 0.1' --dry-run
    """
    from gcfed.config.settings import add_plugins
    from gcfed.paper.extent import extent
    from gcfed.paper.item import paper_item
    from gcfed.sweeps.sweep import Sweep

    if listed and item is None:
        _list_items()
        return
    if item is None:
        raise InputError("name a table or figure of the paper: gcfed reproduce --list shows them")
    check_positive("--rounds", rounds)
    check_positive("--seeds", seeds)
    folder = None if data_dir is None else str(data_dir)
    options = {"rounds": rounds, "data_dir": folder, "on_nonfinite": on_nonfinite}
    changes = add_plugins(changes_given(options, assignments or []), plugin or [])
    for key in ("algorithm", "seed"):
        if key in changes:
            raise InputError(f"--set {key} changes no cell: --{key}s says which are done")
    wanted = extent(
        paper_item(item),
        cells=cells or [],
        methods=[] if algorithms is None else between_commas(algorithms) or [algorithms],
        seeds=seeds or (1 if reduced else 3),
        rounds=changes.pop("rounds", None),
        data_dir=changes.pop("data_dir", None),
        changes=changes,
        is_reduced=reduced,
    )
    if listed:
        _list(wanted)
        return
    report = Report(None, out, plot, size, pivot)
    if dry_run:
        _print_costs(wanted, store, devices, per_device)
    elif not wanted.item.is_trained:
        _divide(wanted, report)
    else:
        _warn_of_parts(wanted)
        sweep = Sweep(wanted.grid(), store, devices, per_device=per_device, quiet=False)
        _train(wanted, report, sweep, only_found=found)


def _divide(wanted: "Extent", report: Report) -> None:
    """Do an item that is about partitions alone."""
    from gcfed.paper.beside import Beside
    from gcfed.paper.doing import divided

    made = Beside(divided(wanted, _command()))
    report.show(made)
    report.write(made)


def _print_costs(wanted: "Extent", store: Path, devices: str | None, per_device: int) -> None:
    """What cells cost; blank images stand for data that are not there."""
    from gcfed.cli.sweep import print_plans
    from gcfed.paper.stand_in import stand_ins
    from gcfed.sweeps.sweep import Sweep

    if not wanted.item.is_trained:
        times = f"{counted(len(wanted.parts), 'time')}, by {counted(wanted.seeds, 'seed')}"
        console.tell(f"{wanted.item.name} trains nothing: it divides data {times}")
        return
    others = stand_ins(wanted)
    for name in others:
        console.say(f"{name} is not at hand, or not all of it: blank images stand for it")
    grid = replace(wanted, stand_ins=others).grid()
    sweep = Sweep(grid, store, devices, per_device=per_device, quiet=False)
    print_plans(sweep, as_json=False)


def _warn_of_parts(wanted: "Extent") -> None:
    """Say of which data sets fewer examples are at hand than the paper trains on."""
    from gcfed.paper.stand_in import parts_at_hand

    for name, (found, whole) in parts_at_hand(wanted).items():
        console.say(
            f"{name} has {found:,} train examples here and {whole:,} in the paper: the numbers "
            "below are not of the same data"
        )


def _train(wanted: "Extent", report: Report, sweep: "Sweep", *, only_found: bool) -> None:
    """Do what is missing as one sweep, unless only what is found is wanted, and compare."""
    from gcfed.cli.board import watched
    from gcfed.cli.sweep import sweep_exit_code
    from gcfed.paper.beside import Beside
    from gcfed.paper.doing import reproduced

    if not only_found:
        with watched(sweep) as observe:
            sweep.run(observe)
    made = Beside(reproduced(wanted, sweep, _command()))
    for state in sweep.of("failed"):
        console.say(f"cell {state.cell.number} ({state.cell.name}) failed: {state.reason}")
    if made.made.numbers:
        report.show(made)
        if only_found or not sweep.is_stopped:
            report.write(made)
    elif only_found:
        raise InputError(
            f"no cell of {wanted.item.name} that was asked for is done in {sweep.store.folder}"
        )
    if only_found:
        return
    if sweep.is_stopped:
        console.say("stopped; the same command goes on")
    sys.exit(sweep_exit_code(sweep))


def _command() -> str:
    return shlex.join(["gcfed", *sys.argv[1:]])


def _list_items() -> None:
    from gcfed.paper.item import item_names, paper_item

    items = map(paper_item, item_names())
    columns = ("item", "what it shows", "source", "cells", "methods")
    rows = [(i.name, i.title, i.source, str(len(i.cells)), str(len(i.methods))) for i in items]
    console.table(columns, rows)


def _list(wanted: "Extent") -> None:
    """The cells and methods that were asked for, and what the paper says of all of them."""
    console.table(
        ("cell", "settings"),
        [
            (cell.name, ", ".join(f"{k}={v}" for k, v in wanted.said(cell).items()))
            for cell in wanted.distinct
        ],
    )
    console.tell(f"methods: {', '.join(wanted.methods)}")
    if wanted.item.note:
        console.tell(wanted.item.note)
    for claim in wanted.item.claims:
        console.tell(f"claim: {claim.text}")
