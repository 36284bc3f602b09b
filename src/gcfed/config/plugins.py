"""Other people's algorithms, models, data sets and partitions."""

import importlib.util
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from gcfed.errors import InputError, reason

GROUP = "gcfed.plugins"
"""The packaging entry point whose modules are imported: each registers what it has."""

_loaded: dict[Path, ModuleType] = {}


def load_plugin(path: str | Path) -> ModuleType:
    """Run a Python file, once, so that it registers what it has."""
    file = Path(path).expanduser().resolve()
    if file in _loaded:
        return _loaded[file]
    if not file.is_file():
        raise InputError(f"there is no plugin {path}")
    name = f"gcfed_plugin_{file.stem}_{len(_loaded)}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"the plugin {path} is not a Python file: its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"the plugin {path} cannot be run: {reason(error)}") from error
    _loaded[file] = module
    return module


def load_plugins(paths: Iterable[str | Path]) -> None:
    """The plugins of installed packages, and these files."""
    load_installed()
    for path in paths:
        load_plugin(path)


@cache
def load_installed() -> None:
    """Import the plugins of installed packages; one that fails is pointed out and left out."""
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            what = f"the plugin {entry.name} ({entry.value})"
            warnings.warn(f"{what} is left out: {reason(error)}", stacklevel=2)
