"""gcfed's own runner, and that of the plain loop: ``python -m ... plain|ENGINE WORKLOAD ...``."""

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from benchmarks import plain
from benchmarks.others.common import answer, turns
from benchmarks.others.export import dataset
from benchmarks.workloads import PUBLISHED, Workload
from gcfed import TestSet, evaluate, simulate
from gcfed.data import Dataset


def plain_rounds(workload: Workload, data: Dataset) -> Iterator[float]:
    setup, accuracy = workload.setup("fedavg", data, "sequential", "auto"), 0.0
    for t, model in enumerate(plain.rounds(setup, workload.module(data))):
        if (t + 1) % workload.evaluate_every == 0:
            accuracy = plain.accuracy(model, data)
        yield accuracy


def gcfed_rounds(workload: Workload, data: Dataset, engine: str) -> Iterator[float]:
    setup, accuracy = workload.setup("fedavg", data, engine, "auto"), 0.0
    test = TestSet(*data.test)
    for result in simulate(replace(setup, keep=frozenset())):
        if (result.round + 1) % workload.evaluate_every == 0:
            accuracy = evaluate(setup, result.server, test)["accuracy"]
        yield accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="plain, or an engine of gcfed")
    parser.add_argument("workload", choices=PUBLISHED)
    parser.add_argument("--dataset")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    workload = PUBLISHED[asked.workload]
    workload = replace(workload, dataset=asked.dataset or workload.dataset)
    data = dataset(workload, asked.data_dir)
    if asked.engine == "plain":
        rounds = plain_rounds(workload, data)
    else:
        rounds = gcfed_rounds(workload, data, asked.engine)
    for count in turns("gcfed"):
        *_, accuracy = islice(rounds, count)
        answer(accuracy)


if __name__ == "__main__":
    main()
