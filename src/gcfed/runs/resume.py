"""Recorded runs, gone on with or checked, by the engine and on the device they began with."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from gcfed.config.experiment import Experiment
from gcfed.config.identity import identity
from gcfed.config.settings import Config
from gcfed.config.toml import toml_value
from gcfed.errors import InputError
from gcfed.files import write_json, write_text
from gcfed.lock import locked
from gcfed.processes import threads
from gcfed.results import directory
from gcfed.results.finding import sort_runs
from gcfed.results.run import Run, open_run
from gcfed.results.seal import with_seal
from gcfed.runs.journal import DamagedError
from gcfed.runs.provenance import environment
from gcfed.runs.train import Observer, build_together, renumbered, train, writing
from gcfed.runs.writer import Place, RunWriter


def resume(
    path: str | Path, *, rounds: int | None = None, observe: Observer | None = None
) -> dict[str, Any]:
    """Go on with a run that was stopped or killed, or to more ``rounds``; its summary.

    It ends with the bits it would have ended with, and so do the runs that it is trained together
    with, which go on with it.
    """
    mend_summaries(path)
    runs = open_run(path).together()
    resume_together(runs, rounds, observe)
    return open_run(path).summary


def resume_together(
    runs: Sequence[Run], rounds: int | None = None, observe: Observer | None = None
) -> None:
    """Go on with a set of runs, as `Run.together` gives it."""
    rounds = _agreed(runs, rounds)
    if all(is_done(run, rounds) for run in runs):
        return
    paths = [run.path for run in runs]
    for run in runs:
        if directory.DEPLOYED in run.provenance:
            raise InputError(
                f"{run.path} was trained by nodes, which hold its clients' memory: deploy its app "
                "again with the same folder, and it goes on"
            )
    with locked(paths), recorded_threads(runs[0]), writing(paths[0]):
        runs = list(map(Run, paths))  # read again, now that nobody else writes them
        experiments = rebuild(runs, rounds)
        writers = [RunWriter(e, run.path) for run, e in zip(runs, experiments, strict=True)]
        live = _go_to_checkpoint(runs, writers)
        for i in live:
            _describe(runs[i], writers[i])
            writers[i].keep_chunk()
        train([writers[i] for i in live], renumbered(observe, dict(enumerate(live))))


def mend_summaries(path: str | Path) -> None:
    """`mend_summary` of the run in a folder, or of all runs below it."""
    _, unreadable = sort_runs(path)
    for where in dict.fromkeys([Path(path), *unreadable]):
        mend_summary(Run(where))


def mend_summary(run: Run) -> None:
    """Take a run whose summary is lost or damaged, as a full disk leaves it, for one killed."""
    if not all((run.path / name).is_file() for name in (directory.CONFIG, directory.PROVENANCE)):
        return  # nobody could go on with it
    summary = run.path / directory.SUMMARY
    with suppress(InputError):
        if summary.exists() and run.summary:
            return
    damage = "damaged" if summary.exists() else "missing"
    warnings.warn(f"{summary} is {damage}: the last checkpoint makes it again", stacklevel=3)
    write_json(summary, directory.RUNNING)


def check_rounds(rounds: int | None) -> None:
    if rounds is not None and rounds < 1:
        raise InputError(f"rounds is a positive count; not {rounds}")


def is_done(run: Run, rounds: int) -> bool:
    """Whether a run has this many rounds, or diverged before."""
    summary = run.summary
    finished = summary["status"] == "finished" and summary["rounds"] >= rounds
    return finished or "diverged" in summary


def rebuild(runs: Sequence[Run], rounds: int | None = None) -> list[Experiment]:
    """The experiments of recorded runs; what they are made of must not have changed since."""
    changes = {} if rounds is None else {"rounds": rounds}
    configs = [run.config.model_copy(update=changes) for run in runs]
    experiments = build_together(configs, engine_reason="as the run began")
    for run, experiment in zip(runs, experiments, strict=True):
        refuse_other(run, experiment)
    return experiments


def go_on(run: Run, experiment: Experiment) -> RunWriter:
    """A writer that stands at the last checkpoint of a recorded run, which is to go on."""
    refuse_other(run, experiment)
    writer = RunWriter(experiment, run.path)
    _go_to_checkpoint([run], [writer])
    _describe(run, writer)
    return writer


def refuse_other(run: Run, experiment: Experiment) -> None:
    """Refuse to go on with a run if what it is made of has changed."""
    if not run.identity:
        raise InputError(
            f"{run.path} does not say what it is made of: its {directory.PROVENANCE} is damaged; "
            f"{run.remedy}"
        )
    differing = _differing(identity(experiment), run.identity)
    if differing:
        raise InputError(
            f"{run.path} began with other {' and '.join(differing)} than there is now: "
            "put that back, or start a new run"
        )
    _warn_of_changes(run, experiment)


def recorded_threads(run: Run) -> AbstractContextManager[None]:
    """Use as many threads as the run began with, so that sums are split as they were."""
    return threads(run.provenance["threads"])


def _warn_of_changes(run: Run, experiment: Experiment) -> None:
    here, said = environment(experiment.setup), run.provenance
    began = {what: said[what] for what in ("gcfed", "torch", "device")}
    if here["device"] == "cpu":  # older runs do not say the rest
        began["processor"] = said.get("processor", here["processor"])
        began["products"] = said.get("products", "by torch")
    for what, then in began.items():
        if then != here[what]:
            changed = f"began with {what} {then}, and this is {here[what]}"
            warnings.warn(f"{run.path} {changed}: last bits may differ", stacklevel=2)


def _agreed(runs: Sequence[Run], rounds: int | None) -> int:
    """The number of rounds that runs trained together are taken to."""
    check_rounds(rounds)
    wanted = max(run.config.rounds for run in runs) if rounds is None else rounds
    done = max(run.num_rounds for run in runs)
    if wanted < done:
        raise InputError(f"{runs[0].path} has {done} rounds already, which is more than {wanted}")
    for run in runs:
        if run.config.lr_schedule == "cosine" and wanted != run.config.rounds:
            raise InputError(
                f"{run.path} is a run of {run.config.rounds} rounds, in which its cosine schedule "
                "ends: start a new run for another number"
            )
    return wanted


def _go_to_checkpoint(runs: Sequence[Run], writers: Sequence[RunWriter]) -> list[int]:
    """Take all runs back to the last checkpoint that each of them has; gives those that go on."""
    saved = {n for writer in writers for n in writer.checkpoints.rounds()}
    for num_rounds in sorted(saved, reverse=True):
        places = _load(runs, writers, num_rounds)
        if places is not None:
            break
    else:
        if saved:
            warnings.warn(f"{runs[0].path} starts again from its first round", stacklevel=2)
        places = {i: writer.beginning for i, writer in enumerate(writers)}
    for i, place in places.items():
        writers[i].go(place)
    return list(places)


def _load(
    runs: Sequence[Run], writers: Sequence[RunWriter], num_rounds: int
) -> dict[int, Place] | None:
    """Where runs stood after so many rounds, without those that had diverged; None if unknown."""
    places = {}
    for i, (run, writer) in enumerate(zip(runs, writers, strict=True)):
        if "diverged" in run.summary and run.summary["round"] < num_rounds:
            continue
        if num_rounds not in writer.checkpoints.rounds():
            return None
        try:
            places[i] = writer.load(num_rounds)
        except DamagedError as error:
            damage = f"the checkpoint after {num_rounds} rounds is damaged ({error})"
            warnings.warn(f"{run.path}: {damage}; going back to the one before", stacklevel=2)
            return None
    return places


def _describe(run: Run, writer: RunWriter) -> None:
    """Record that, where and with what a run was resumed, and how many rounds it shall have."""
    made, setup = run.provenance, writer.experiment.setup
    here = {"after_rounds": writer.snapshot.round + 1, **environment(setup)}
    resumed = {"resumed": [*made.get("resumed", []), here]}
    write_json(run.path / directory.PROVENANCE, with_seal({**made, **resumed}))
    config = run.config.model_copy(update={"rounds": setup.schedule.rounds})
    write_text(run.path / directory.CONFIG, config.to_toml())


def _differing(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """What two identities disagree on, as a person would call it."""
    names = {"data_sha256": "data", "code_sha256": "code of its plugins", "init_sha256": "weights"}
    for key, usual in Config().model_dump(mode="json").items():  # an identity leaves these out
        before, here = (_said(values.get(key, usual)) for values in (then, now))
        names[key] = f"{key} ({before} then, {here} now)"
    differing = [names.get(key, key) for key in _keys(now, then) if key != "numerics"]
    parts = _keys(now.get("numerics", {}), then.get("numerics", {}))
    return differing + [f"numerics of {part.split()[-1]}" for part in parts]


def _said(value: Any) -> str:
    return "none" if value is None else toml_value(value)


def _keys(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """The keys that not both have, or have with other values."""
    return [key for key in {**now, **then} if now.get(key, ...) != then.get(key, ...)]
