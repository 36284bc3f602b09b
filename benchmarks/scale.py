"""What a round costs by the number of clients there are and of those that take part.

    python benchmarks/scale.py
    python benchmarks/scale.py --clients 1000,1000000 --cohorts 5 --algorithms scaffold

A client holds four examples and takes one step of a model of 170 weights, so what is seen is the
work of the library: drawing, batches, label counts, memory, the mean.  Every number of clients is
measured in a process of its own.  Times are medians of CPU time on one thread, which others who use
the machine disturb less than they disturb a clock; memory is the most that the process held.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import torch
from torch import nn

from gcfed import SGD, FederatedData, Model, Partition, Schedule, Setup, parse, simulate
from gcfed.population.availability import AVAILABILITIES
from gcfed.population.samplers import SAMPLERS

EXAMPLES, FEATURES, CLASSES = 4, 16, 10
WARM = 3  # rounds that are not counted
WAYS = {
    "uniform": {},
    "sampler=cyclic": {"sampler": SAMPLERS.parse("cyclic")},
    "sampler=examples": {"sampler": SAMPLERS.parse("examples")},
    "availability=daily": {"availability": AVAILABILITIES.parse("daily")()},
    "availability=sessions": {"availability": AVAILABILITIES.parse("sessions")()},
}


def federation(num_clients: int) -> FederatedData:
    """Clients of a few examples each, whose x is one tensor without memory of its own."""
    size = EXAMPLES * num_clients
    x = torch.zeros(1, FEATURES).expand(size, -1)
    parts = Partition(torch.arange(size), torch.arange(num_clients + 1) * EXAMPLES)
    return FederatedData(x, torch.arange(size) % CLASSES, parts, CLASSES)


def setup(data: FederatedData, algorithm: str, cohort: int, rounds: int, engine: str) -> Setup:
    torch.manual_seed(0)
    return Setup(
        algorithm=parse(algorithm),
        model=Model(nn.Linear(FEATURES, CLASSES)),
        data=data,
        optimizer=SGD(lr=0.01),
        schedule=Schedule(rounds=rounds, cohort_size=cohort, batch_size=EXAMPLES, epochs=1),
        engine=engine,
        keep=frozenset(),
    )


def seconds_of_each(work: object) -> list[float]:
    """The CPU time that each item of an iterable takes."""
    times, before = [], time.process_time()
    for _ in work:
        now = time.process_time()
        times.append(now - before)
        before = now
    return times[WARM:]


def measure(num_clients: int, asked: argparse.Namespace) -> dict:
    """The median seconds of a round by algorithm and cohort, of a draw by its way, and the peak."""
    torch.set_num_threads(1)
    data = federation(num_clients)
    rounds = {
        f"{algorithm} {cohort}": statistics.median(
            seconds_of_each(
                simulate(setup(data, algorithm, cohort, asked.rounds + WARM, asked.engine))
            )
        )
        for algorithm in asked.algorithms
        for cohort in asked.cohorts
    }
    population = setup(data, "fedavg", asked.cohorts[0], 1, asked.engine).population
    draws = {
        way: statistics.median(
            seconds_of_each(map(replace(population, **changes).draw, range(asked.rounds + WARM)))
        )
        for way, changes in WAYS.items()
    }
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rounds": rounds, "draws": draws, "peak": peak}


def table(title: str, rows: dict[str, list[float]], counts: list[int]) -> None:
    """Milliseconds for each number of clients, and the last beside the first."""
    print(f"\n{title:24}", *(f"{n:>10,}" for n in counts), "     ratio")
    for name, values in rows.items():
        times = (f"{1e3 * value:10.2f}" for value in values)
        print(f"{name:24}", *times, f"{values[-1] / values[0]:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("--clients", type=numbers, default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--cohorts", type=numbers, default=[5, 50, 500])
    parser.add_argument("--algorithms", type=lambda t: t.split(","), default=["gcfed", "scaffold"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--engine", default="vectorized")
    parser.add_argument("--here", action="store_true", help="in this process, as JSON")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(measure(asked.clients[0], asked)))
        return
    found = []
    for n in asked.clients:
        command = [sys.executable, *sys.argv, "--clients", str(n), "--here"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(answer.stdout))
    for title, key in (("ms of CPU, a round", "rounds"), ("ms of CPU, a draw", "draws")):
        rows = {name: [each[key][name] for each in found] for name in found[0][key]}
        table(title, rows, asked.clients)
    print(f"\n{'peak memory, MB':24}", *(f"{each['peak'] / 1e6:10.0f}" for each in found))


if __name__ == "__main__":
    main()
