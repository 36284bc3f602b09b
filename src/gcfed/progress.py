"""How far something is: a bar where a line can be drawn again, elsewhere plain lines."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

Tick = Callable[[int, str], None]
"""Told how much is done by now, and a note to show beside it."""

Unit = Literal["round", "byte", "cell"]

SECONDS = 0.1
"""The least time between two drawings of a bar."""

err = Console(stderr=True, highlight=False, emoji=False)
"""Standard error; what is written elsewhere while a bar is drawn would tear the bar."""


def say(text: str) -> None:
    """Write a line on what goes on to standard error."""
    err.print(text, markup=False, soft_wrap=True)


@contextmanager
def progress(
    label: str, total: int, *, unit: Unit = "round", quiet: bool = False
) -> Iterator[Tick]:
    """Show on standard error how much of ``total`` is done, as the tick given here is told."""
    if quiet:
        yield lambda done, note: None
    elif not _can_draw():
        yield _plain_lines(label, total, unit)
    else:
        with _bar(label, total, unit) as tick:
            yield tick


@contextmanager
def _bar(label: str, total: int, unit: Unit) -> Iterator[Tick]:
    """Draw a bar, anew when it is told something and never by a thread: an engine may fork."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if unit == "byte" else MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=err, auto_refresh=False) as bar:
        task, drawn = bar.add_task(escape(label), total=total, note=""), -math.inf

        def tick(done: int, note: str) -> None:
            nonlocal drawn
            bar.update(task, completed=done, note=note)
            if done == total or time.monotonic() - drawn > SECONDS:
                bar.refresh()
                drawn = time.monotonic()

        try:
            yield tick
            bar.live.transient = drawn < 0  # there was nothing to do: a bar at 0 would mislead
        except BaseException:
            bar.live.transient = True  # an error message stands alone
            raise


def _can_draw() -> bool:
    """Whether there is a terminal, or a notebook with the widgets that rich draws by."""
    return err.is_terminal or (err.is_jupyter and find_spec("ipywidgets") is not None)


def _plain_lines(label: str, total: int, unit: Unit) -> Tick:
    """Write a line at the first tick and at every further tenth."""
    last_tenth, first = -1, (0, 0.0)

    def tick(done: int, note: str) -> None:
        nonlocal last_tenth, first
        tenth, now = 10 * done // max(total, 1), time.monotonic()
        if last_tenth < 0:
            first = done, now
        if tenth == last_tenth:
            return
        last_tenth = tenth
        if unit == "byte":
            words = [f"{10 * tenth} % of {total / 1e6:.1f} MB"]
        else:
            words = [f"{unit} {done} of {total}"]
        words += [note] if note else []
        if first[0] < done < total:
            pace = (now - first[1]) / (done - first[0])
            words.append(f"{duration(pace * (total - done))} left")
        print(f"{label}: {'  '.join(words)}", file=err.file, flush=True)

    return tick


def duration(seconds: float | None) -> str:
    """Seconds, as a person reads them.

    >>> duration(8.31), duration(75), duration(7400)
    ('8.3 s', '1:15', '2:03:20')
    """
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
