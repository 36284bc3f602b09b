"""Exit codes: what a command ends with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcfed.results.run import Run

FAILED, DIFFERS, INVALID, DIVERGED, INTERRUPTED = 1, 1, 2, 3, 130


def exit_code(runs: Sequence["Run"]) -> int:
    """What a command ends with that did these runs."""
    statuses = {run.summary["status"] for run in runs}
    return DIVERGED if "failed" in statuses else INTERRUPTED if "stopped" in statuses else 0
