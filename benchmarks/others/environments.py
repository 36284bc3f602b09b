"""A virtual environment for each of the other tools, of pinned versions, outside this tree."""

import os
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"  # first and alone, so that nothing else chooses a build with CUDA
PINNED = {"flower": "flwr[simulation]==1.41.0", "pfl": "pfl[pytorch]==0.6.0"}
DEFAULT = Path("~/.cache/gcfed-bench").expanduser()


class ToolError(Exception):
    """A tool that cannot be installed or run, and why."""


def python_of(tool: str, envs: Path) -> Path:
    """The interpreter of a tool's environment, which is made if it is not there."""
    home, wanted = envs / tool, f"{TORCH} {PINNED[tool]}"
    python, ready = home / "bin" / "python", home / ".ready"
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing {PINNED[tool]} in {home}", file=sys.stderr, flush=True)
    venv.create(home, with_pip=True, clear=True)
    constraints = Path(__file__).with_name(f"constraints-{tool}.txt")
    for packages in ([TORCH], [TORCH, PINNED[tool]]):
        _pip(python, "install", "-q", "-c", str(constraints), *packages)
    ready.write_text(wanted)
    return python


def _pip(python: Path, *arguments: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ToolError("pip: " + " ".join(done.stderr.strip().splitlines()[-3:]))
