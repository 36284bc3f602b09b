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

PREFIX = "gcfed_plugin_"
"""How the names of modules begin that are made of plugins here."""

ONE_FILE = (
    ". A plugin is one file, which imports what is installed and not what lies beside it: put both "
    "into one file, or into a package that is installed"
)

_loaded: dict[Path, ModuleType] = {}


def load_plugin(path: str | Path) -> ModuleType:
    """Run a Python file, once, so that it registers what it has.

    One that the program has imported, or that is the program itself, has done so already.
    """
    file = Path(path).expanduser().resolve()
    if file in _loaded:
        return _loaded[file]
    for name, imported in list(sys.modules.items()):
        if not name.startswith(PREFIX) and _is_of(imported, file):
            return imported
    if not file.is_file():
        place = "" if Path(path).is_absolute() else f" in {Path.cwd()}, the working directory"
        raise InputError(
            f"there is no plugin {path}{place}: put it there, a link will do; or name where it is, "
            "in plugins of the TOML file or by --set 'plugins=[\"/PATH/FILE.py\"]'"
        )
    name = f"{PREFIX}{file.stem}_{len(_loaded)}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"the plugin {path} is not a Python file: its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        advice = ONE_FILE if _is_beside(file, error) else ""
        raise InputError(f"the plugin {path} cannot be run: {reason(error)}{advice}") from error
    _loaded[file] = module
    return module


def _is_of(module: object, file: Path) -> bool:
    """Whether a module was made of a file; some that load lazily have no attributes to ask for."""
    found = getattr(module, "__dict__", {}).get("__file__")
    return (
        isinstance(found, str) and Path(found).name == file.name and Path(found).resolve() == file
    )


def _is_beside(file: Path, error: BaseException) -> bool:
    """Whether a module that was not found lies in the folder of a plugin."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    beside = file.parent / error.name.partition(".")[0]
    return beside.is_dir() or beside.with_suffix(".py").is_file()


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
