"""Where a run came from: what it was made with, and on what."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcfed.config.experiment import Experiment
from gcfed.config.identity import digest
from gcfed.cpu import processor
from gcfed.simulation.lines import weights_sha256
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import start

PACKAGE = Path(__file__).parents[1]


def provenance(
    experiment: Experiment,
    identity: Mapping[str, Any],
    path: Path,
    together: Mapping[Path, Experiment],
) -> dict[str, Any]:
    """What a run is, and what besides its config may change its last bits, or explain them.

    ``identity`` is the experiment's, and ``together`` are the runs whose clients are trained at
    once, by their folders.
    """
    setup = experiment.setup
    server = start(setup).server
    return {
        **environment(setup),
        "engine": setup.chosen.name,
        "engine_reason": setup.chosen.reason,
        "seeds_together": [e.config.seed for e in together.values()],
        "runs_together": [os.path.relpath(other, path) for other in together],
        "initial_weights_sha256": weights_sha256({**server.params, **server.buffers}),
        "metrics": [asdict(metric) for metric in experiment.metrics.values()],
        "partition": experiment.statistics.to_json(),
        "identity_sha256": digest(identity),
        "identity": identity,
    }


def environment(setup: Setup) -> dict[str, Any]:
    """The versions, the machine and the command that a run is made with."""
    device = setup.device
    on_cpu = {"products": setup.chosen.make().products} if device.type == "cpu" else {}
    return {
        "gcfed": version("gcfed"),
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        **on_cpu,
        "command": sys.argv,
    }


def _commit() -> str | None:
    """The commit of the source this code runs from, with a plus where it was changed since."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(PACKAGE), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # fails where a package is only installed
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
