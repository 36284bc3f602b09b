"""Names that a shell completes; they are looked up when they are asked for."""

from collections.abc import Callable

from gcfed.cli.choices import LISTS, choices
from gcfed.config.plugins import load_installed


def names_of(kind: str) -> Callable[[str], list[str]]:
    """What completes the names that ``gcfed list KIND`` shows, in a sum the last one."""

    def complete(incomplete: str) -> list[str]:
        load_installed()
        last = incomplete.rpartition("+")[2].lstrip()
        before = incomplete.removesuffix(last)
        return [before + name for name, *_ in choices(kind).rows if name.startswith(last)]

    return complete


def list_names(incomplete: str) -> list[str]:
    """What completes the word after ``gcfed list``."""
    return [name for name in LISTS if name.startswith(incomplete)]
