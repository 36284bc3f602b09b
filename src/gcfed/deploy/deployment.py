"""A run whose clients are nodes, written to a run directory as a simulation is."""

import json
import secrets
from pathlib import Path
from typing import Any

from gcfed.config.experiment import Experiment
from gcfed.config.identity import identity
from gcfed.deploy.nodes import Nodes
from gcfed.deploy.serving import RoundTerms, Serving
from gcfed.errors import InputError
from gcfed.files import append, create_folder
from gcfed.lock import locked
from gcfed.results import directory
from gcfed.results.run import Run
from gcfed.runs.provenance import provenance
from gcfed.runs.resume import go_on, is_done, recorded_threads, refuse_other
from gcfed.runs.train import Observer, train, writing
from gcfed.runs.writer import RunWriter


def deploy(
    experiment: Experiment,
    path: Path,
    nodes: Nodes,
    terms: RoundTerms,
    observe: Observer | None = None,
) -> dict[str, Any]:
    """Do a run with nodes, or go on with it where its folder has a checkpoint; its summary."""
    cohort = experiment.config.cohort
    if terms.minimum > cohort:
        raise InputError(f"deploy.minimum={terms.minimum} is more than cohort={cohort}")
    if (path / directory.SUMMARY).is_file():
        run = Run(path)
        if directory.DEPLOYED not in run.provenance:
            raise InputError(f"{path} holds a run of another kind: name another folder")
        refuse_other(run, experiment)
        if is_done(run, experiment.config.rounds):
            return run.summary
        with locked([path]), recorded_threads(run), writing(path):
            return _train(go_on(run, experiment), nodes, terms, observe)
    create_folder(path, exist_ok=True)
    with locked([path]), writing(path):
        writer = RunWriter(experiment, path)
        name = {directory.DEPLOYED: secrets.token_hex(8)}
        which = identity(experiment)
        writer.describe({**provenance(experiment, which, path, {path: experiment}), **name})
        writer.go(writer.beginning)
        return _train(writer, nodes, terms, observe)


def _train(
    writer: RunWriter, nodes: Nodes, terms: RoundTerms, observe: Observer | None
) -> dict[str, Any]:
    def note(t: int, missing: dict[int, str]) -> None:
        lines = [{"round": t, "client": i, "why": why} for i, why in sorted(missing.items())]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        append(writer.path / directory.LEFT_OUT, text.encode())

    name = str(Run(writer.path).provenance[directory.DEPLOYED])
    (summary,) = train([writer], observe, Serving(nodes, terms, name, note).rounds)
    return summary
