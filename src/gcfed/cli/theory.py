"""The command that checks the theory of the GC-Fed paper in numbers."""

from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.errors import InputError
from gcfed.results.tables import Entry, Section, Table

if TYPE_CHECKING:
    from torch import Tensor

    from gcfed.analysis.cases import Case, Step

LARGEST = 50_000  # draws whose steps fit into the memory of a laptop
ROUNDS, RUNS = 50, 50
EXACT = 1e-12

Blocks = dict[str, list[tuple[str, ...]]]


def theory(
    draws: Annotated[int, typer.Option(help="How often the batches of a step are drawn.")] = 2000,
) -> None:
    """Check the theory of the GC-Fed paper in numbers: Lemma 1, Theorem 1, the discrepancy.

    On a federated least-squares and a federated logistic problem, with all that the theorem assumes
    and without.  Takes a few seconds; docs/theory.md explains what is printed.

    Example:

        gcfed theory --draws 20000
    """
    if not 2 <= draws <= LARGEST:
        raise InputError(f"--draws is between 2 and {LARGEST}; not {draws}")
    import torch

    from gcfed.analysis.cases import METHODS, draw_batches, draw_cases, take_step

    torch.set_num_threads(1)  # on matrices this small, threads only wait for each other
    cases = draw_cases()
    steps = []
    for case in cases:
        index = draw_batches(case.problem, draws, 0)
        steps.append({name: take_step(case, method, index) for name, method in METHODS.items()})
    _show_lemma(cases, steps)
    _show_theorem(cases, steps)
    _show_runs([case for case in cases if case.begins_a_round])
    _show_discrepancy([case for case in cases if not case.is_centred])


def _show_lemma(cases: list["Case"], steps: list[dict[str, "Step"]]) -> None:
    from gcfed.analysis.theory import terms_of

    blocks: Blocks = {}
    errors, printed = [], []
    for case, step in zip(cases, steps, strict=True):
        for method, taken in step.items():
            terms = terms_of(taken, case.problem.optimum)
            errors.append(terms.error)
            printed.append(terms.error_as_printed)
            row = (method, *map(_mean, terms))
            blocks.setdefault(f"{case.problem.name}, {case.name}", []).append(row)
    columns = ("Lemma 1", "gap before", "B1", "B2", "A1", "A2", "A3", "gap after")
    _show(
        columns,
        blocks,
        "In brackets: the standard error of a mean over draws.",
        f"In every draw: A1 = gap before + B1 + B2 and gap after = A1 + A2 - A3 {_within(errors)}.",
        f"With A3 added, as the paper prints it, the gap after is wrong by up to "
        f"{max(printed):.4g}.",
    )


def _show_theorem(cases: list["Case"], steps: list[dict[str, "Step"]]) -> None:
    from gcfed.analysis.theory import advantage_of

    blocks: Blocks = {}
    errors = []
    for case, step in zip(cases, steps, strict=True):
        gained = advantage_of(step["fedavg"], step["projected"], case.problem.optimum)
        errors.append(gained.error)
        row = (
            case.name,
            *map(_mean, (gained.measured, gained.measured - gained.proved)),
            _mean(gained.measured - gained.printed),
            *map(_mean, (gained.stochastic, gained.off_centre)),
            f"{(gained.measured > 0).double().mean().item():.1%}",
        )
        blocks.setdefault(case.problem.name, []).append(row)
    columns = ("Theorem 1", "measured", "less proved", "less printed", "lr^2|e'G|^2", "off centre")
    _show(
        (*columns, "projected is nearer"),
        blocks,
        "measured: the gap of FedAvg after the step less that of the projected method.",
        f"In every draw: measured = lr^2|e'G|^2 + off centre {_within(errors)}.",
    )


def _show_runs(cases: list["Case"]) -> None:
    from gcfed.analysis.cases import METHODS, take_rounds
    from gcfed.analysis.theory import gaps

    blocks: Blocks = {}
    for case in cases:
        fedavg, projected = (
            gaps(take_rounds(case, method, ROUNDS, RUNS), case.problem.optimum)
            for method in METHODS.values()
        )
        row = (case.name, *map(_mean, (fedavg, projected, fedavg - projected)))
        blocks.setdefault(case.problem.name, []).append(row)
    columns = (f"After {ROUNDS} steps", "gap of fedavg", "gap of projected", "difference")
    _show(columns, blocks, f"Over {RUNS} runs, a round being one step of all clients.")


def _show_discrepancy(cases: list["Case"]) -> None:
    from gcfed.analysis.theory import discrepancy_of

    blocks: Blocks = {}
    for case in cases:
        row = (case.name, *(f"{value:#.4g}" for value in discrepancy_of(case)))
        blocks.setdefault(case.problem.name, []).append(row)
    columns = ("Excess of F", "at the nearest point", "at the limit", "distance of the two")
    _show((*columns, "(L/2)|Delta|^2"), blocks)


def _show(columns: tuple[str, ...], blocks: Blocks, *notes: str) -> None:
    sections = (
        Section(title, tuple(tuple(map(Entry, row)) for row in rows))
        for title, rows in blocks.items()
    )
    console.show(Table(columns, tuple(sections), notes))
    console.tell()


def _mean(values: "Tensor") -> str:
    """A mean over draws, with its standard error in brackets where there is one."""
    from gcfed.analysis.theory import estimate

    if values.ndim == 0:
        return f"{values.item():#.4g}"
    mean, error = estimate(values)
    if max(abs(mean), error) < EXACT:
        return "0"
    return f"{mean:#.4g} ({error:.1g})"


def _within(errors: list[float]) -> str:
    """Whether an identity holds as exactly as float64 lets it."""
    return f"to {EXACT:.0e}" if max(errors) < EXACT else f"fails by {max(errors):.1e}"
