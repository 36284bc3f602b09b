"""Names that a shell completes; they are looked up when they are asked for."""

from collections.abc import Callable


def names_of(kind: str) -> Callable[[str], list[str]]:
    """What completes the names that ``gcfed list KIND`` shows, in a sum the last one."""

    def complete(incomplete: str) -> list[str]:
        from gcfed.cli.list import registry_of
        from gcfed.config.plugins import load_installed

        load_installed()
        last = incomplete.rpartition("+")[2].lstrip()
        before = incomplete.removesuffix(last)
        return [before + name for name in registry_of(kind) if name.startswith(last)]

    return complete


def list_names(incomplete: str) -> list[str]:
    """What completes the word after ``gcfed list``."""
    from gcfed.cli.list import LISTS

    return [name for name in LISTS if name.startswith(incomplete)]
