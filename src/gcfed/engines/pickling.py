"""Values as pickles for other processes, with the code that these would not find."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle  # type: ignore[import-untyped]


def pickled(value: Any) -> bytes:
    """A pickle that another process of the same environment can read with `unpickled`."""
    with _unfindable_by_value():
        data: bytes = cloudpickle.dumps(value)
    return data


def unpickled(data: bytes) -> Any:
    """What `pickled` was given."""
    return cloudpickle.loads(data)


@contextmanager
def _unfindable_by_value() -> Iterator[None]:
    """Inside, what modules define that another process would not find is pickled whole.

    So are plugins, which are files anywhere; what ``__main__`` defines always is.
    """
    packages = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    modules = [sys.modules[name] for name in packages & sys.modules.keys() if not _is_found(name)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_found(name: str) -> bool:
    """Whether an import would find a module, had it not been loaded already."""
    return any(finder.find_spec(name, None) is not None for finder in sys.meta_path)
