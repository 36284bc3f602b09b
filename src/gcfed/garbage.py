"""Python's search for garbage, put off while much is made that stays.

A search looks at what is new, and ever again at all there is.  While modules are imported and a
step is traced, it finds next to nothing and takes a seventh of the time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unsearched() -> Iterator[None]:
    """Inside, none is searched for; what nothing refers to is freed as ever."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()
