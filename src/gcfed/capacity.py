"""How much memory there is and who shares it, so that what cannot fit is refused."""

import os
from contextlib import suppress

from gcfed.errors import InputError


def check_fits(what: str, size: int) -> None:
    """Refuse ``what``, which takes at least ``size`` bytes, if they are more than there are."""
    if size > (limit := memory()):
        raise InputError(
            f"{what} takes {_readable(size)} of memory, and there are {_readable(limit)}; "
            "ask for less"
        )


def memory() -> int:
    """The bytes that this process may have: all of the machine's, or the limit it was given."""
    found = []
    with suppress(OSError, ValueError, AttributeError):  # not every system says
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(ImportError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        found += [] if limit == resource.RLIM_INFINITY else [limit]
    return min(found, default=2**40)


_is_shared = False


def share_device() -> None:
    """Say that other processes of ours use the device of this one too."""
    global _is_shared
    _is_shared = True


def is_device_shared() -> bool:
    """Whether memory that is missing on the device may be another process's."""
    return _is_shared


def _readable(size: int) -> str:
    for power, unit in enumerate(("bytes", "kB", "MB", "GB", "TB")):
        if size < 1000 ** (power + 1):
            return f"{size / 1000**power:.3g} {unit}"
    return "more than 1000 TB"
