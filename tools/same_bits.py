"""Does a refactoring leave the numbers alone?  Record small runs before it, check them after.

    python tools/same_bits.py record             # before: writes .same-bits/
    python tools/same_bits.py check              # after: does them again, compares every byte
    python tools/same_bits.py check --only scaffold

Every registered algorithm, engine, partition, sampler and fault of a CPU is in the battery; the
real data sets are too where ``--data-dir`` names a folder that holds them.  A run is the same if
its ``rounds.jsonl`` and ``model.safetensors`` are, byte for byte.  Bits depend on the machine, so a
record is good where it was made.  The exit code is 1 if a run differs.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import gcfed
from gcfed import Config

FILES = ("rounds.jsonl", "model.safetensors")

BASE: dict[str, Any] = {
    "dataset": "synthetic(train=240, test=60, shape=(1, 8, 8))",
    "model": "mlp(hidden=(16,))",
    "clients": 12,
    "cohort": 4,
    "rounds": 3,
    "epochs": 2,
    "batch_size": 8,
    "device": "cpu",
}
IMAGES = {"dataset": "synthetic(train=200, test=40, shape=(3, 16, 16))", "model": "cnn"}
CHAINS = (
    *("fedlc(tau=0.1) + gcfed", "scaffold + gcfed", "gcfed + fedadam", "fedadam + gcfed"),
    "scaffold + gcfed + clip_update(norm=0.3) + noise(multiplier=0.1)",
)
PARTITIONS = (
    *("iid", "dirichlet(alpha=0.05)", "dirichlet(mode='capped')", "dirichlet(mode='per_client')"),
    *("shards", "classes(k=3)", "quantity(sigma=1.5)"),
)
PARTICIPATION: dict[str, dict[str, Any]] = {
    "examples": {"sampler": "examples"},
    "cyclic": {"sampler": "cyclic(groups=2, rounds=1)"},
    "daily": {"availability": "daily(period=4)"},
    "sessions": {"availability": "sessions(on=2, off=2)"},
    "faulty": {"faults": "random(dropout=0.2, straggling=0.3, corruption=0.2, how='noise')"},
    "dropped": {"faults": "random(corruption=0.3)", "on_nonfinite": "drop"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "lr": 0.001},
    "cosine": {"lr_schedule": "cosine"},
    "decay": {"lr_schedule": "exponential", "lr_decay": 0.9},
    "chunk": {"chunk": 3, "algorithm": "scaffold"},
    "disk": {"memory": "disk", "algorithm": "scaffold"},
    "steps": {"steps": 5, "epochs": None, "fill": "none"},
    "validation": {"validation": 0.2, "evaluate_every": 2},
    "weights": {"weighting": "examples", "server_lr": 0.7},
    "init-seed": {"init_seed": 5, "partition_seed": 6},
}
REAL = ("cifar10", "cifar100", "emnist(split='letters')", "tinyimagenet")


def battery(data_dir: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Settings by name; those of several runs are trained together."""
    runs: dict[str, list[dict[str, Any]]] = {}
    alone = [name for name in gcfed.ALGORITHMS if name != "noise"]  # it needs clip_update
    for algorithm in (*alone, *CHAINS):
        runs[f"algorithm {algorithm}"] = [{**BASE, "algorithm": algorithm}]
    for engine in ("sequential", "vectorized", "workers"):
        for algorithm in ("gcfed", "scaffold", "moon"):
            one = {**BASE, "engine": engine, "algorithm": algorithm}
            runs[f"seeds together {engine} {algorithm}"] = [{**one, "seed": s} for s in range(3)]
        runs[f"images {engine}"] = [{**BASE, **IMAGES, "rounds": 2, "engine": engine}]
    for partition in PARTITIONS:
        runs[f"partition {partition}"] = [{**BASE, "partition": partition}]
    for kind in (PARTICIPATION, VARIANTS):
        for name, changes in kind.items():
            runs[f"setting {name}"] = [{**BASE, "partition": "iid", **changes}]
    tiny = {"model": "cnn", "rounds": 1, "epochs": None, "steps": 2, "clients": 100}
    runs["data fashion10k"] = [{**BASE, **tiny, "dataset": "fashion10k"}]
    for dataset in REAL if data_dir else ():
        chosen = {"dataset": dataset, "data_dir": str(data_dir)}
        runs[f"data {dataset}"] = [{**BASE, **tiny, **chosen}]
    runs["model resnet18"] = [{**BASE, **IMAGES, **tiny, "clients": 8, "model": "resnet18"}]
    runs["model vgg11"] = [
        {**BASE, **tiny, "clients": 8, "dataset": "synthetic(train=80, shape=(3, 32, 32))"}
        | {"model": "vgg11"}
    ]
    return runs


def do(settings: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Do the runs of one entry, and say where they are."""
    configs = [Config(**{k: v for k, v in s.items() if v is not None}) for s in settings]
    found = gcfed.RunStore(folder).run_together(configs)
    return [run.path for run in found]


def first_difference(old: bytes, new: bytes) -> str:
    """Where two files part, by line."""
    lines = list(zip(old.split(b"\n"), new.split(b"\n"), strict=False))
    for number, (a, b) in enumerate(lines, start=1):
        if a != b:
            try:
                was, now = json.loads(a), json.loads(b)
                keys = [key for key in was | now if was.get(key) != now.get(key)]
                return f"line {number}: {', '.join(keys)}"
            except ValueError:
                return f"line {number}"
    return f"{len(old)} and {len(new)} bytes"


def record(folder: Path, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Do the battery, and keep what came out."""
    shutil.rmtree(folder, ignore_errors=True)
    for entry, paths in _done(runs):
        for k, path in enumerate(paths):
            kept = folder / _name(entry) / str(k)
            kept.mkdir(parents=True)
            for file in FILES:
                shutil.copy(path / file, kept / file)


def check(folder: Path, runs: dict[str, list[dict[str, Any]]]) -> int:
    """Do the battery again; how many files differ from what was kept."""
    wrong = 0
    for entry, paths in _done(runs):
        for k, path in enumerate(paths):
            for file in FILES:
                kept = folder / _name(entry) / str(k) / file
                if not kept.is_file():
                    print(f"NEW      {entry}: it is not in the record")
                    break
                old, new = kept.read_bytes(), (path / file).read_bytes()
                if old != new:
                    wrong += 1
                    where = first_difference(old, new) if file.endswith("jsonl") else ""
                    print(f"DIFFERS  {entry}, run {k}, {file} {where}".rstrip(), flush=True)
    return wrong


def _done(runs: dict[str, list[dict[str, Any]]]) -> Any:
    began = time.monotonic()
    for number, (entry, settings) in enumerate(runs.items(), start=1):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield entry, do(settings, Path(folder))
        if number % 10 == 0 or number == len(runs):
            seconds = time.monotonic() - began
            print(f"{number} of {len(runs)} entries, {seconds:.0f} s", file=sys.stderr, flush=True)


def _name(entry: str) -> str:
    return hashlib.sha256(entry.encode()).hexdigest()[:16]


def main() -> int:
    first, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("record", "check"))
    parser.add_argument("--folder", type=Path, default=Path(".same-bits"))
    parser.add_argument("--data-dir", type=Path, help="where the real data sets are")
    parser.add_argument("--only", default="", help="entries whose name holds this text")
    given = parser.parse_args()
    runs = {k: v for k, v in battery(given.data_dir).items() if given.only in k}
    if given.command == "record":
        record(given.folder, runs)
        print(f"recorded {len(runs)} entries in {given.folder}")
        return 0
    if not given.folder.is_dir():
        parser.error(f"there is no record in {given.folder}: record one before the change")
    wrong = check(given.folder, runs)
    print(f"{wrong} files differ" if wrong else f"{len(runs)} entries: the same bits")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
