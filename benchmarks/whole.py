"""Whole runs as the commands do them, lines and hashes written: rounds and samples a second.

    python -m benchmarks.whole --clients 5,60 --precision bf16       gcfed run, on a GPU
    python -m benchmarks.whole --models resnet18 --cells 7           gcfed sweep, cells on one GPU
    python -m benchmarks.whole --device cpu --rounds 8 --models mlp --busy 2

Data are noise of CIFAR-10's shapes.  Each of 100 clients holds 500 images, of which it trains on 50
at a time for five epochs, by GC-Fed if nothing else is said.  A figure is read from what the runs
wrote: all rounds while every run was at work and had a quarter of its own behind it.  Samples are
those that clients trained on.  Every round ends with an evaluation, a line and a hash.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.start import save_noise
from gcfed.config.build import build
from gcfed.results.finding import find_runs
from gcfed.results.run import Run

WARM = 0.25  # the part of a run's rounds that is left out: compiling, recording


def steady(runs: list[Run]) -> tuple[float, float, float]:
    """Seconds in which all runs were at work, and the rounds and training samples of these."""
    ends = [[timing["at"] for timing in run.timings] for run in runs]
    began = max(at[int(WARM * len(at))] for at in ends)
    ended = min(at[-1] for at in ends)
    if began >= ended:
        sys.exit("no rounds in which all runs were at work: give more --rounds, or fewer --cells")
    rounds = samples = 0
    for run, at in zip(runs, ends, strict=True):
        seen = range(bisect_right(at, began), bisect_right(at, ended))
        draw = _population(run).draw
        rounds += len(seen)
        samples += sum(int(p.sizes.sum()) for t in seen for p in draw(t).plans.values())
    return ended - began, rounds, samples


def _population(run: Run):
    """Who takes part in a run's rounds, made again without its device."""
    change = {"device": "cpu", "engine": "sequential", "precision": "float32"}
    return build(run.config.model_copy(update=change)).setup.population


def train(settings: dict[str, object], options: argparse.Namespace, store: Path) -> list[Run]:
    """The runs that the command line makes of these settings."""
    seeds = list(range(options.seeds))
    if options.cells == 1:
        words = ["run", "--seeds", ",".join(map(str, seeds))]
        for key, value in settings.items():
            words += ["--set", f"{key}={value}"]
    else:
        table = {**settings, "seeds": seeds}
        lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
        lines += ["[grid]", f"init_seed = {list(range(options.cells))}"]
        (grid := store.parent / f"{store.name}.toml").write_text("\n".join(lines))
        words = ["sweep", str(grid), "--per-device", str(options.cells)]
    command = [sys.executable, "-m", "gcfed", *words, "--store", str(store)]
    done = subprocess.run(command, capture_output=not options.loud, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr or ''}")
    return find_runs(store)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Inside, so many processes have work for a core each, as other programs may."""
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def _toml(value: object) -> str:
    return repr(str(value)) if isinstance(value, str) else str(value)


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--models", default="cnn")
    parser.add_argument("--algorithms", default="gcfed")
    parser.add_argument("--clients", default="5", help="that take part in a round")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1, help="of each cell, trained together")
    parser.add_argument("--cells", type=int, default=1, help="beside each other, by gcfed sweep")
    parser.add_argument("--busy", type=int, default=0, help="processes that use a core each")
    parser.add_argument("--loud", action="store_true", help="show what the commands print")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, busy(options.busy):
        folder = Path(made)
        save_noise(noise := folder / "noise.npz")
        names = (text.split(",") for text in (options.models, options.algorithms, options.clients))
        for i, (model, algorithm, clients) in enumerate(itertools.product(*names)):
            settings = {
                **{"algorithm": algorithm, "model": model, "dataset": f'npz(path="{noise}")'},
                **{"partition": "iid", "clients": 100, "cohort": int(clients)},
                **{"rounds": options.rounds, "epochs": 5, "batch_size": 50},
                **{"device": options.device, "precision": options.precision},
            }
            runs = train(settings, options, folder / f"store{i}")
            seconds, rounds, samples = steady(runs)
            print(
                f"{model:9} {algorithm:12} {runs[0].config.engine:11} {runs[0].config.precision:7} "
                f"{clients:>4} clients, {options.seeds} seeds, {options.cells} cells "
                f"{rounds / seconds:8.2f} rounds/s {samples / seconds:12,.0f} samples/s "
                f"(over {seconds:.1f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
