"""Exit codes: what a command ends with."""

from collections.abc import Sequence
from typing import Any

DIFFERS, INVALID, DIVERGED, INTERRUPTED = 1, 2, 3, 130


def exit_code(summaries: Sequence[dict[str, Any]]) -> int:
    """What a command ends with that did these runs."""
    statuses = {summary["status"] for summary in summaries}
    return DIVERGED if "failed" in statuses else INTERRUPTED if "stopped" in statuses else 0
