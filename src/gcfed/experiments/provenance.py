"""Where a run came from: what it was made with, and on what."""

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcfed.experiments.experiment import Experiment


def provenance(experiment: Experiment) -> dict[str, Any]:
    """What besides its config may change a run's last bits, or explain them."""
    setup, device = experiment.setup, experiment.setup.data.y.device
    return {
        "gcfed": version("gcfed"),
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "engine": setup.chosen.name,
        "engine_reason": setup.chosen.reason,
        "command": sys.argv,
        "partition": experiment.statistics.to_json(),
    }


def _commit() -> str | None:
    """The commit of the source this code runs from, with a plus where it was changed since."""
    source = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(source), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", __file__)
        return git("rev-parse", "HEAD") + ("+" if tracked and git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
