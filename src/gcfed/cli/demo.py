"""The command that compares FedAvg with GC-Fed on the data that are part of the package."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.exits import exit_code
from gcfed.cli.options import Plugins, path_option
from gcfed.cli.pictures import save
from gcfed.files import quoted, refuse_existing, unused_folder

if TYPE_CHECKING:
    from gcfed.config.settings import Config
    from gcfed.results.run import Run

ROUNDS = 80
SEEDS = (0, 1, 2)
TITLE = "Fashion-MNIST 10k, MLP, 5 of 100 clients a round, Dirichlet(0.05)"


def configs(rounds: int = ROUNDS) -> dict[str, list["Config"]]:
    """The runs by algorithm, in pairs of equal seeds."""
    from gcfed.config.settings import Config

    return {
        name: [
            Config(
                algorithm=name,
                model="mlp",
                partition="dirichlet(alpha=0.05)",
                rounds=rounds,
                seed=seed,
            )
            for seed in SEEDS
        ]
        for name in ("fedavg", "gcfed")
    }


def demo(
    out: Annotated[
        Path | None, path_option(help="Folder to make.", show_default="runs/demo")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = ROUNDS,
    plugin: Plugins = None,
) -> None:
    """Compare FedAvg with GC-Fed: a table and a plot in two minutes.

    On the embedded data, three seeds of each.
    """
    from gcfed.cli import training
    from gcfed.results.comparison import compare

    folder = out or unused_folder(Path("runs"), "demo")
    refuse_existing(folder)
    runs: list[Run] = []
    for name, each in configs(rounds).items():
        runs += training.run_seeds(each, folder / name)
        if training.is_stopped(runs):
            break
    comparison = compare(runs, baseline=runs[0].config.algorithm)
    console.show(comparison.table())
    plot = folder / f"{comparison.metric.name}.png"
    save(comparison.plot(title=TITLE), plot)
    console.tell(f"\nplot  {plot}\nruns  {folder}  (gcfed show {quoted(folder)})")
    if training.is_stopped(runs):
        console.say("stopped: gcfed demo --out FOLDER starts it again, in another folder")
    sys.exit(exit_code(runs))
