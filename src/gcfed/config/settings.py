"""Everything a run needs, as a flat table of keys: a TOML file, flags, keyword arguments."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gcfed.config.toml import toml_value
from gcfed.core.batches import Fill
from gcfed.core.optimizer import SGD, AdamW, Optimizer
from gcfed.core.schedule import LrSchedule, OnNonfinite, Schedule, Weighting
from gcfed.core.server import BufferPolicy
from gcfed.data.partitions.ways import PARTITIONS, dirichlet
from gcfed.engines import Precision
from gcfed.errors import InputError
from gcfed.values import between_commas, shown, unwritable


def _key(default: Any, description: str, **limits: Any) -> Any:
    return Field(default, description=description, **limits)


Memory = Literal["host", "disk"]

COUNT = {"ge": 1, "lt": 2**63}
SEED = {"ge": 0, "lt": 2**32}
POSITIVE = {"gt": 0, "allow_inf_nan": False}

RIVALS = {"partition": "alpha", "epochs": "steps", "steps": "epochs"}
"""What a key displaces when it is given later."""


class Config(BaseModel):
    """What a run is; the defaults are the protocol of the GC-Fed paper, on the embedded data.

    ``seed`` draws the partition, the initial weights, the cohorts and the batches, each under a key
    of its own, so that two algorithms with one seed share all four.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    algorithm: str = _key("gcfed", "what to train with, such as 'fedlc(tau=0.1) + gcfed'")
    dataset: str = _key("fashion10k", "what to train on")
    data_dir: str | None = _key(None, "where data sets are; GCFED_DATA, or a cache of yours")
    validation: float = _key(0.0, "share of the train examples kept for tuning", ge=0, lt=1)
    model: str = _key("cnn", "what to train")
    loss: str = _key("cross_entropy", "what clients minimise; mse where labels are numbers")
    init: str | None = _key(None, "a safetensors file of weights to start from")
    partition: str = _key("dirichlet(alpha=0.1)", "who holds which examples")
    clients: int | None = _key(None, "number of clients; 100, or as many as the data has", **COUNT)
    cohort: int = _key(5, "clients that take part in a round", **COUNT)
    sampler: str = _key("uniform", "who takes part in a round")
    availability: str = _key("always", "who can be drawn at all, such as 'daily(least=0.2)'")
    faults: str = _key("none", "what goes wrong with clients, such as 'random(dropout=0.1)'")
    rounds: int = _key(100, "number of rounds", **COUNT)
    epochs: int | None = _key(None, "a client's passes over its examples in a round; 5", **COUNT)
    steps: int | None = _key(None, "a client's steps in a round, instead of epochs", **COUNT)
    batch_size: int = _key(50, "examples in a batch", **COUNT)
    fill: Fill = _key("repeat", "repeat a client's first examples until batches are full, or not")
    optimizer: Literal["sgd", "adamw"] = _key("sgd", "how a client steps along its gradient")
    lr: float = _key(0.01, "a client's learning rate", **POSITIVE)
    momentum: float | None = _key(None, "of sgd; 0.9", ge=0, lt=1)
    weight_decay: float = _key(1e-5, "of the optimizer", ge=0, allow_inf_nan=False)
    lr_schedule: LrSchedule = _key("constant", "a client's learning rate from round to round")
    lr_decay: float = _key(1.0, "what an exponential schedule multiplies it by", **POSITIVE)
    server_lr: float = _key(1.0, "what the step of the global weights is multiplied by", **POSITIVE)
    weighting: Weighting = _key("uniform", "how clients count in the mean")
    buffers: BufferPolicy = _key("average", "BatchNorm's statistics: averaged, or kept local")
    on_nonfinite: OnNonfinite = _key("fail", "what an update that is not finite does to the run")
    seed: int = _key(0, "draws partition, initial weights, cohorts and batches", **SEED)
    partition_seed: int | None = _key(None, "draws the partition instead", **SEED)
    init_seed: int | None = _key(None, "draws the initial weights instead", **SEED)
    metrics: tuple[str, ...] = _key(
        (), "what a run is judged by, the first above all; accuracy, or what suits the loss"
    )
    evaluate_every: int = _key(1, "rounds from one evaluation to the next", **COUNT)
    probes: tuple[str, ...] = _key((), "what is measured of every round, such as 'drift'")
    engine: str = _key("auto", "how a cohort is trained")
    precision: Precision = _key("auto", "of products: float32 is strict, auto is tf32 on a GPU")
    device: str = _key("auto", "where: cpu, cuda, cuda:1; auto takes a GPU if there is one")
    chunk: int | None = _key(None, "clients of a cohort trained and held at once; all", **COUNT)
    memory: Memory = _key("host", "where clients' memory is kept: in the host's, or on disk")
    checkpoint_every: int | None = _key(None, "rounds from one checkpoint to the next", **COUNT)
    checkpoint_minutes: float = _key(5.0, "minutes from one checkpoint to the next", **POSITIVE)
    track: tuple[str, ...] = _key((), "what follows the run: tensorboard, mlflow, wandb")
    plugins: tuple[str, ...] = _key((), "Python files that register what the keys above name")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            wrong = error.errors(include_url=False)
            raise InputError("\n".join(map(_explain, wrong))) from None

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: Any) -> Any:
        """Let ``alpha`` stand for a Dirichlet partition, and lists for tuples."""
        values = dict(values)
        if (alpha := values.pop("alpha", None)) is not None:
            values["partition"] = _dirichlet(values.get("partition", "dirichlet"), alpha)
        for key in ("metrics", "plugins", "probes", "track"):
            if isinstance(text := values.get(key), str):
                values[key] = _listed(key, text)
        return values | {key: tuple(v) for key, v in values.items() if isinstance(v, list)}

    @property
    def seed_of_partition(self) -> int:
        """What the partition and the validation examples are drawn by."""
        return self.seed if self.partition_seed is None else self.partition_seed

    @property
    def seed_of_weights(self) -> int:
        """What the initial weights are drawn by."""
        return self.seed if self.init_seed is None else self.init_seed

    @field_validator("*")
    @classmethod
    def _hold_no_odd_text(cls, value: Any, info: ValidationInfo) -> Any:
        for part in value if isinstance(value, tuple) else [value]:
            if isinstance(part, str) and (wrong := unwritable(part)):
                raise ValueError(f"{info.field_name} holds {wrong}")
        return value

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps: give one of them, not both")
        if self.optimizer == "adamw" and self.momentum is not None:
            raise ValueError("momentum belongs to sgd, and the optimizer is adamw")
        if self.lr_decay != 1 and self.lr_schedule != "exponential":
            raise ValueError(f"lr_decay={self.lr_decay} goes with lr_schedule = 'exponential'")
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError(f"metrics names one twice: {', '.join(self.metrics)}")
        if self.clients is not None and self.cohort > self.clients:
            raise ValueError(f"cohort={self.cohort} is more than clients={self.clients}")
        return self

    def schedule(self) -> Schedule:
        return Schedule(
            rounds=self.rounds,
            cohort_size=self.cohort,
            batch_size=self.batch_size,
            epochs=self.epochs or (5 if self.steps is None else None),
            steps=self.steps,
            fill=self.fill,
            seed=self.seed,
            lr_schedule=self.lr_schedule,
            lr_decay=self.lr_decay,
            server_lr=self.server_lr,
            weighting=self.weighting,
            on_nonfinite=self.on_nonfinite,
        )

    def local_optimizer(self) -> Optimizer:
        if self.optimizer == "adamw":
            return AdamW(self.lr, weight_decay=self.weight_decay)
        momentum = 0.9 if self.momentum is None else self.momentum
        return SGD(self.lr, momentum, self.weight_decay)

    def to_toml(self) -> str:
        """The config as a TOML file, which `read` reads; keys without a value are left out."""
        values = self.model_dump(mode="json", exclude_none=True)
        return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())


KEYS = (*Config.model_fields, "alpha")
"""What a config may be given."""


def make(values: Mapping[str, Any], where: str = "config") -> Config:
    """A config of these values; what is wrong with them is said key by key, and ``where``."""
    try:
        return Config(**values)
    except InputError as error:
        lines = str(error).splitlines()
        raise InputError("\n".join(f"{where}: {line}" for line in lines)) from None


def override(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with ``changes``, and without what these leave no place for."""
    displaced = {RIVALS[key] for key in changes if key in RIVALS}
    if changes.get("optimizer") == "adamw":
        displaced.add("momentum")
    if changes.get("lr_schedule") in ("constant", "cosine"):
        displaced.add("lr_decay")
    return {k: v for k, v in values.items() if k not in displaced} | dict(changes)


def add_plugins(values: Mapping[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """``values`` with these plugins after those that they name."""
    if not (added := list(map(str, paths))):
        return dict(values)
    named = values.get("plugins", [])
    named = _listed("plugins", named) if isinstance(named, str) else named
    return {**values, "plugins": [*(named if isinstance(named, list) else [named]), *added]}


def _listed(key: str, text: str) -> list[str]:
    """The texts in one that has commas between them; a file's name may have some, too."""
    is_file = key == "plugins" and Path(text).expanduser().is_file()
    return [text] if is_file else between_commas(text)


def describe() -> list[tuple[str, str, str]]:
    """Every key: its default, and what it says."""
    rows = []
    for key, field in Config.model_fields.items():
        choices = get_args(field.annotation) if field.default in get_args(field.annotation) else ()
        says = [field.description or "", f"({', '.join(choices)})" if choices else ""]
        default = "" if field.default is None else toml_value(field.default)
        rows.append((key, default, " ".join(filter(None, says))))
    return rows


def _dirichlet(partition: Any, alpha: Any) -> str:
    """The Dirichlet partition that is meant, with this alpha."""
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not is_number or not 0 < alpha <= sys.float_info.max:
        raise ValueError(f"alpha is a positive number; not {shown(alpha)}")
    bound = PARTITIONS.parse(str(partition))
    if bound.func is not dirichlet:
        raise ValueError(f"alpha is short for dirichlet(alpha=...); partition is {partition!r}")
    values = ", ".join(f"{k}={v!r}" for k, v in {**bound.keywords, "alpha": float(alpha)}.items())
    return f"dirichlet({values})"


def unknown_key(key: str, others: Sequence[str] = ()) -> str:
    """That there is no such setting, and which are called much like it; all would be too many.

    ``others`` are keys that there are beside settings.
    """
    near = get_close_matches(key, [*KEYS, *others], n=3)
    if near:
        guess = " or ".join(map(repr, near))
        return f"unknown key: {key!r}; did you mean {guess}? gcfed list settings shows all"
    return (
        f"unknown key: {key!r}. gcfed list settings shows all; a hyper-parameter stands in the "
        "text of what it belongs to, as in algorithm = 'fedprox(mu=0.1)'"
    )


def _explain(error: Any) -> str:
    key = ".".join(map(str, error["loc"][:1]))
    match error["type"]:
        case "extra_forbidden":
            return unknown_key(key)
        case "value_error":
            return str(error["ctx"]["error"])
        case "literal_error":
            choices = get_args(Config.model_fields[key].annotation)
            near = get_close_matches(str(error["input"]), choices, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            return f"{key} is one of {', '.join(choices)}; not {shown(error['input'])}{guess}"
        case _:
            wanted = error["msg"].removeprefix("Input should be ")
            return f"{key} should be {wanted}; not {shown(error['input'])}"
