"""The files of a Flower app that is ready to run, for people to make their own."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcfed.config.toml import read, toml_value
from gcfed.errors import InputError
from gcfed.files import create_folder, refuse_existing, write_text

SETTINGS: Mapping[str, Any] = {
    **{"algorithm": "gcfed", "dataset": "fashion10k", "model": "cnn", "clients": 4, "cohort": 2},
    **{"rounds": 10, "epochs": 1, "alpha": 0.5},
}
"""What an app trains, where nothing else is asked for."""

APP = '''"""The data of this federation, and the two halves of its training as Flower apps."""

from gcfed.deploy.apps import client_app, server_app


def load(client):
    """Your own data, as a gcfed.Dataset; None stands for the data set that pyproject.toml names.

    A node is given its number and trains on the train examples of what it gives here.  The server
    is given None and judges the model on the test examples; it never sees a train example.
    """
    return None


client = client_app(load)
server = server_app(load)
'''

PYPROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = "Federated learning by gcfed, over Flower"
license = "Apache-2.0"
dependencies = ["gcfed[flower]"]

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
clientapp = "app:client"
serverapp = "app:server"

# What is trained: the settings that `gcfed list settings` shows.
[tool.flwr.app.config]
{settings}
# The run directory; seconds that a node has to answer; answers that a round needs, and how often
# it is tried before the run fails.
[tool.flwr.app.config.deploy]
out = {out}
timeout = 600.0
minimum = 1
tries = 3
"""


def write_app(folder: Path, settings: Mapping[str, Any], out: Path) -> None:
    """Make a folder with an app that trains by these settings and writes a run to ``out``."""
    refuse_existing(folder)
    create_folder(folder)
    name = re.sub("[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "federation"
    lines = "".join(f"{key} = {_plain(key, value)}\n" for key, value in settings.items())
    where = toml_value(str(out.expanduser().absolute()))
    pyproject = PYPROJECT.format(name=name, settings=lines, out=where)
    write_text(folder / "pyproject.toml", pyproject)
    write_text(folder / "app.py", APP)


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run in an app's pyproject."""
    path = folder / "pyproject.toml"
    found: Any = read(path)
    for name in ("tool", "flwr", "app", "config"):
        found = found.get(name)
        if not isinstance(found, dict):
            raise InputError(f"{path} has no [tool.flwr.app.config]: gcfed deploy init writes one")
    return {key: value for key, value in found.items() if key != "deploy"}


def _plain(key: str, value: Any) -> str:
    """A setting as Flower takes it: it knows no lists, and a config reads names with commas."""
    if isinstance(value, dict):
        raise InputError(f"{key} is a table, and a setting is a number or a text")
    return toml_value(", ".join(value) if isinstance(value, list | tuple) else value)
