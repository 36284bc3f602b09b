"""A sweep while it goes: a live table on a terminal, elsewhere plain lines."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Group as Stacked
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from gcfed.cli import console
from gcfed.progress import duration
from gcfed.sweeps.state import OVER, CellState
from gcfed.sweeps.sweep import CellObserver, Sweep

ROOM = 6  # lines of a screen that are not for cells

LEAST_BAR, LONGEST_BAR, LEAST_SETTINGS = 4, 20, 8
"""How narrow and how wide columns may be."""


@contextmanager
def watched(sweep: Sweep, quiet: bool = False) -> Iterator[CellObserver | None]:
    """Show how far a sweep is, on standard error."""
    if quiet:
        yield None
    elif not console.err.is_terminal:
        yield plain_lines(sweep)
    else:
        board = Board(sweep)
        with Live(console=console.err, get_renderable=board.draw) as live:
            try:
                yield lambda state: None
            except BaseException:
                live.transient = True  # an error message stands alone
                raise


def plain_lines(sweep: Sweep) -> Callable[[CellState], None]:
    """A line when a cell starts, at every tenth of its rounds, and when it is over."""
    told: dict[int, int] = {}

    def tell(state: CellState) -> None:
        cell, number = state.cell, state.cell.number
        if state.status == "running" and number not in told:
            told[number] = 0
            text = f"starts on {state.device}"
        elif state.status == "running":
            tenth = 10 * state.rounds // cell.rounds
            if tenth == told[number]:
                return
            told[number] = tenth
            text = f"round {state.rounds} of {cell.rounds}"
            score = f"  {_score_name(sweep, state)} {state.metric.quantity(state.score)}"
            text += "" if state.score is None else score
            text += f"  {duration(state.left)} left" if state.left else ""
        else:
            text = f"{state.status} after {duration(state.seconds)}"
            text += f": {state.reason}" if state.reason else ""
        of = f"cell {number} of {len(sweep.cells)}"
        print(f"{of} ({cell.name}): {text}", file=sys.stderr, flush=True)

    return tell


class Board:
    """The live table; where there are more cells than lines, those that matter most."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        costs = [plan.cost for plan in sweep.plans]
        counted = all(cost.flops is not None for cost in costs)
        self._weights = [(c.flops if counted else c.examples) or 0.0 for c in costs]

    def draw(self) -> Stacked:
        """The table and a line below it; if too wide, the bars shrink first, then settings."""
        names = dict.fromkeys(_score_name(self._sweep, state) for state in self._sweep.cells)
        head = ("cell", "settings", "status", "round", ", ".join(names), "left")
        shown = self._shown()
        rows = [self._row(state) for state in shown]
        widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
        room = console.err.width - sum(widths) - console.GAP * len(widths)
        bar = min(max(room, LEAST_BAR), LONGEST_BAR)
        settings = max(widths[1] + min(room - bar, 0), LEAST_SETTINGS)
        table = Table(box=None, padding=(0, console.GAP, 0, 0), pad_edge=False, header_style="bold")
        for column in (*head[:4], "", *head[4:]):
            table.add_column(escape(column), no_wrap=True, overflow="ellipsis")
        table.columns[1].max_width = settings
        for state, row in zip(shown, rows, strict=True):
            done = ProgressBar(state.cell.rounds, self._rounds(state), width=bar)
            table.add_row(*map(escape, row[:4]), done, *row[4:])
        return Stacked(table, self._footer())

    def _row(self, state: CellState) -> tuple[str, ...]:
        """What a cell has in each column but that of bars."""
        cell = state.cell
        return (
            str(cell.number),
            cell.name,
            f"on {state.device}" if state.status == "running" else state.status,
            f"{self._rounds(state)}/{cell.rounds}",
            state.metric.quantity(state.score),
            duration(state.left) if state.left else "",
        )

    def _shown(self) -> list[CellState]:
        """In order; if they do not fit, first those that run, then failed, waiting, done ones."""
        cells, room = self._sweep.cells, max(console.err.height - ROOM, 1)
        order = ("running", "failed", "diverged", "stopped", "waiting", "done")
        kept = sorted(cells, key=lambda s: (order.index(s.status), s.cell.number))[:room]
        return sorted(kept, key=lambda s: s.cell.number)

    def _rounds(self, state: CellState) -> int:
        return state.cell.rounds if state.status == "done" else state.rounds

    def _footer(self) -> str:
        cells = self._sweep.cells
        over = [state for state in cells if state.status in OVER]
        bad = sum(state.status in ("failed", "diverged") for state in cells)
        text = f"{len(over)} of {len(cells)} cells" + (f", {bad} failed or diverged" if bad else "")
        total, done, seen = 0.0, 0.0, 0.0
        for state, weight in zip(cells, self._weights, strict=True):
            rounds = weight * state.cell.rounds * len(state.cell.configs)
            total += rounds
            done += rounds if state.status in OVER else weight * sum(state.done.values())
            seen += weight * state.seen
        text += f"  {100 * done / total:.0f} %" if total else ""
        since = min((s.first_round for s in cells if s.first_round), default=None)
        if seen and since is not None and self._sweep.of("running"):
            left = (total - done) * (time.time() - since) / seen
            text += f"  {duration(left)} left"
        return text


def _score_name(sweep: Sweep, state: CellState) -> str:
    return f"validation {state.metric.name}" if sweep.grid.is_tuned else state.metric.name
