"""One table: gcfed's engines against the plain loop, in the same run.

    python -m benchmarks.run                         the CPU's engines, small models
    python -m benchmarks.run --workload fashion      a published workload: fashion, paper, pfl
    python -m benchmarks.run --device cuda --models cnn,resnet18 --cohorts 5,20 --dataset noise

Each contender does rounds in turn with the others, ``--repeat`` times.  A figure is the median of
its times; a ratio is the median, over the turns, of the plain loop's time by its own.  The first
rounds, in which engines trace and compile, are reported apart: the cold start.
"""

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import plain
from benchmarks.workloads import PUBLISHED, Workload, grid, load
from gcfed import TestSet, evaluate, simulate_together
from gcfed.data import Dataset

PLAIN = "plain loop"


@dataclass
class Contender:
    """Something that does a round at a time and says how many samples it trained on."""

    name: str
    rounds: Iterator[int]
    cold: float = 0.0

    def time(self, count: int, device: torch.device) -> tuple[float, int]:
        """Seconds and training samples of some rounds."""
        _wait(device)
        began = time.perf_counter()
        samples = sum(next(self.rounds) for _ in range(count))
        _wait(device)
        return time.perf_counter() - began, samples


def plain_rounds(workload: Workload, data: Dataset) -> Iterator[int]:
    setup = workload.setup("fedavg", data, "sequential", "auto")
    for t, model in enumerate(plain.rounds(setup, workload.module(data))):
        if (t + 1) % workload.evaluate_every == 0:
            plain.accuracy(model, data)
        yield sum(setup.population.plan(t, i).index.size for i in setup.population.sample(t))


def gcfed_rounds(
    workload: Workload, data: Dataset, engine: str, options: argparse.Namespace
) -> Iterator[int]:
    first = workload.setup(options.algorithm, data, engine, options.precision)
    schedules = [replace(first.schedule, seed=seed) for seed in range(options.seeds)]
    setups = [replace(first, schedule=schedule) for schedule in schedules]
    test = TestSet(*data.test)
    for outcomes in simulate_together([replace(setup, keep=frozenset()) for setup in setups]):
        samples = 0
        for i, result in outcomes.items():
            if isinstance(result, Exception):
                raise result
            if (result.round + 1) % workload.evaluate_every == 0:
                evaluate(setups[i], result.server, test)
            samples += sum(
                setups[i].population.plan(result.round, k).index.size for k in result.ids
            )
        yield samples


def measure(workload: Workload, options: argparse.Namespace) -> None:
    """Print the table of one workload."""
    device = torch.device(options.device)
    if options.precision != "float32":
        torch.set_float32_matmul_precision("high")  # the plain loop's; engines have their own
    data = load(workload.dataset, options.data_dir).to(device)
    contenders = [Contender(PLAIN, plain_rounds(workload, data))]
    for engine in filter(None, options.engines.split(",")):
        contenders.append(Contender(engine, gcfed_rounds(workload, data, engine, options)))
    for contender in contenders:
        contender.cold, _ = contender.time(options.warm, device)
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    samples = dict.fromkeys(times, 0)
    for _ in range(options.repeat):
        for contender in contenders:
            seconds, count = contender.time(options.rounds, device)
            times[contender.name].append(seconds / options.rounds)
            samples[contender.name] += count
    print(f"\n{workload.name}: {options.algorithm}, {options.precision}, {options.seeds} seed(s)")
    print(f"{'':12} {'s/round':>9} {'least':>9} {'samples/s':>11} {'ratio':>6} {'cold s':>7}")
    for contender in contenders:
        found = times[contender.name]
        rate = samples[contender.name] / (sum(found) * options.rounds)
        runs = 1 if contender.name == PLAIN else options.seeds  # of which a round is one of each
        ratio = statistics.median(p / f for p, f in zip(times[PLAIN], found, strict=True)) * runs
        print(
            f"{contender.name:12} {statistics.median(found):9.4f} {min(found):9.4f} "
            f"{rate:11,.0f} {ratio:6.2f} {contender.cold:7.1f}",
            flush=True,
        )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _options() -> argparse.Namespace:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--workload", choices=[*PUBLISHED, "grid"], default="grid")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--cohorts", default="5,20")
    parser.add_argument("--dataset", help="noise: the shapes of CIFAR-10, for timing alone")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engines", default="sequential,workers")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of one measurement")
    parser.add_argument("--warm", type=int, default=2, help="rounds before measuring")
    parser.add_argument("--repeat", type=int, default=5, help="measurements, taken in turn")
    return parser.parse_args()


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore")
    chip = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chip}")
    workloads = (
        [PUBLISHED[options.workload]]
        if options.workload != "grid"
        else grid(
            options.models.split(","),
            [int(cohort) for cohort in options.cohorts.split(",")],
            "fashion10k",
        )
    )
    for workload in workloads:
        measure(replace(workload, dataset=options.dataset or workload.dataset), options)


if __name__ == "__main__":
    main()
