"""Runs followed elsewhere while they go: TensorBoard, MLflow, Weights & Biases.

A tracker is a class with the three methods of `Tracker`, made of a run directory; a plugin adds its
own with ``TRACKERS.register``.  One that fails is pointed out and left out: it never stops a run.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gcfed.config.settings import Config
from gcfed.errors import InputError
from gcfed.files import write_json
from gcfed.registry import Registry
from gcfed.results.captions import short
from gcfed.simulation.lines import Record

IDS = "trackers.json"
"""A file in the run directory: the names of its trackers, and what each calls the run."""

PROJECT = "gcfed"

Observer = Callable[[Mapping[int, Record]], None]
"""Told of each round as it ends: the lines of the runs that got through it."""


class TrackerWarning(UserWarning):
    """A tracker failed, and is left out."""


class Tracker(Protocol):
    """Follows one run.  ``start`` gives its own name for the run, and is told it on resuming."""

    def start(self, config: Config, known: str | None) -> str | None: ...

    def log(self, line: Record) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...


TRACKERS: Registry[Callable[[Path], Tracker]] = Registry("tracker")


class Tracking:
    """The trackers of runs that go together: told of lines, and of how the runs ended.

    Each begins with the first line of its run.  Left by an error, it says that the runs failed.
    """

    def __init__(self, names: Sequence[str], configs: Mapping[Path, Config]) -> None:
        self._configs = configs
        self._lost: set[str] = set()
        self._trackers: list[dict[str, Tracker]] = []
        self._started: set[int] = set()
        for path in configs:
            made = {
                name: self._try(name, lambda n, p: TRACKERS[n](p), name, path) for name in names
            }
            self._trackers.append({n: made[n] for n in names if made[n] is not None})

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish([{"status": "failed", "reason": str(error)}] * len(self._configs))

    def beside(self, observe: Observer | None) -> Observer:
        """An observer that tells the trackers, and then another."""

        def tell(lines: Mapping[int, Record]) -> None:
            self(lines)
            if observe is not None:
                observe(lines)

        return tell

    def __call__(self, lines: Mapping[int, Record]) -> None:
        for run, line in lines.items():
            self._start(run)
            for name, tracker in self._trackers[run].items():
                self._try(name, tracker.log, line)

    def finish(self, summaries: Sequence[Mapping[str, Any]]) -> None:
        """Say how the runs ended; what comes later is not followed."""
        for run, summary in enumerate(summaries):
            self._start(run)  # one that failed in its first round had no line
            for name, tracker in self._trackers[run].items():
                self._try(name, tracker.finish, summary)
        self._trackers = [{} for _ in self._configs]

    def _start(self, run: int) -> None:
        path, config = list(self._configs.items())[run]
        if run in self._started or not self._trackers[run]:
            return
        self._started.add(run)
        ids = tracked(path)
        for name, tracker in self._trackers[run].items():
            known = self._try(name, tracker.start, config, ids.get(name))
            if name not in self._lost:
                ids[name] = known
        self._try(IDS, write_json, path / IDS, ids)

    def _try(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a tracker, unless it failed before."""
        if name in self._lost:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of packages among themselves
            warnings.simplefilter("always", TrackerWarning)  # never an error, which ends a run
            try:
                return call(*arguments)
            except Exception as error:
                self._lost.add(name)
                what = f"{name} is left out from here on, while the run goes on"
                warnings.warn(f"{what}: {type(error).__name__}: {error}", TrackerWarning, 2)
        return None


def require(names: Sequence[str]) -> None:
    """Refuse a tracker that does not exist, or whose package is missing, before any work."""
    for name in names:
        TRACKERS[name](Path())


def tracked(path: Path) -> dict[str, str | None]:
    """The trackers of a run that has begun, and what each calls it."""
    with suppress(OSError, ValueError):
        found = json.loads((path / IDS).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """What can be drawn of a line; a list, such as the clients that dropped out, by its length."""
    found = {key: value for key, value in line.items() if isinstance(value, int | float)}
    found |= {f"num_{key}": len(value) for key, value in line.items() if isinstance(value, list)}
    return {key: value for key, value in found.items() if key not in ("round", "seed")}


def title(config: Config) -> str:
    return f"{short(config.algorithm)}, {config.dataset}, seed {config.seed}"


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Event files in the run directory: tensorboard --logdir runs"""

    def __init__(self, path: Path) -> None:
        self._path = path / "tensorboard"
        self._module = _package("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None
        self._settings: dict[str, Any] = {}

    def start(self, config: Config, known: str | None) -> None:
        self._settings = {k: str(v) for k, v in config.model_dump(mode="json").items()}
        self._writer = self._module.SummaryWriter(str(self._path))
        self._writer.add_text("config", f"```toml\n{config.to_toml()}```")

    def log(self, line: Record) -> None:
        for name, value in numbers(line).items():
            self._writer.add_scalar(name, value, line["round"] + 1)
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        final = {f"summary/{name}": value for name, value in numbers(summary).items()}
        self._writer.add_hparams(self._settings, final, run_name=".")
        self._writer.close()


@TRACKERS.register("mlflow")
class MLflow:
    """A local SQLite store, mlflow.db, or MLFLOW_TRACKING_URI: mlflow ui"""

    ENDS: Mapping[str, str] = {"finished": "FINISHED", "stopped": "KILLED"}

    def __init__(self, path: Path) -> None:
        self._module = _package("mlflow", "mlflow")
        self._path = path.absolute()
        self._client: Any = None
        self._run = ""

    def start(self, config: Config, known: str | None) -> str:
        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
        self._client = self._module.MlflowClient(tracking_uri=uri)
        if known is not None:
            self._run = known
            self._client.update_run(known, status="RUNNING")
            return known
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        made = self._client.create_run(experiment, run_name=title(config))
        self._run = made.info.run_id
        self._client.set_tag(self._run, "gcfed.run", str(self._path))
        for key, value in config.model_dump(mode="json").items():
            self._client.log_param(self._run, key, value)
        return self._run

    def log(self, line: Record) -> None:
        self._log(numbers(line), line["round"] + 1)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._log({f"summary.{k}": v for k, v in numbers(summary).items()}, 0)
        self._client.set_terminated(self._run, self.ENDS.get(summary["status"], "FAILED"))

    def _log(self, found: Mapping[str, float], step: int) -> None:
        metric = self._module.entities.Metric
        metrics = [metric(key, value, _milliseconds(), step) for key, value in found.items()]
        self._client.log_batch(self._run, metrics=metrics)


@TRACKERS.register("wandb")
class WeightsAndBiases:
    """Weights & Biases, offline unless WANDB_MODE says otherwise: wandb sync wandb/offline-run-*"""

    def __init__(self, path: Path) -> None:
        self._module = _package("wandb", "wandb")
        self._path = path
        self._run: Any = None

    def start(self, config: Config, known: str | None) -> str:
        self._run = self._module.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=title(config),
            config={**config.model_dump(mode="json"), "run": str(self._path.absolute())},
            mode=os.environ.get("WANDB_MODE", "offline"),
            id=known,
            resume="allow" if known else None,
            reinit="create_new",  # seeds go together, a run each
            settings=self._module.Settings(silent=True, console="off"),
        )
        return str(self._run.id)

    def log(self, line: Record) -> None:
        self._run.log(numbers(line), step=line["round"] + 1)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update({f"summary.{k}": v for k, v in numbers(summary).items()})
        self._run.finish(exit_code=0 if summary["status"] == "finished" else 1)


def _package(module: str, package: str) -> Any:
    try:
        found = import_module(module)
    except ImportError:
        found = None
    if (
        getattr(found, "__file__", None) is None
    ):  # a folder of results, such as wandb/, is no package
        hint = "pip install 'gcfed[trackers]'"
        raise InputError(f"tracking with {package} needs its package: {hint}")
    return found


def _milliseconds() -> int:
    return int(1000 * time.time())
