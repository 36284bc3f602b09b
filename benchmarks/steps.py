"""Where a training step's time goes on a GPU: all clients' step, replayed, and its kernels.

    python -m benchmarks.steps --models cnn,resnet18 --clients 5,20,60 --precision bf16
    python -m benchmarks.steps --clients 5 --profile 40     the forty kernels that take longest
    python -m benchmarks.steps --algorithms all             every algorithm, at its defaults

Data are noise of CIFAR-10's shapes.  A figure is the mean of replays in one go, by the device's
clock; ``cold`` is the first round: tracing, compiling and recording.
"""

import argparse
import time
from dataclasses import replace

import torch

from benchmarks.workloads import Workload, load
from gcfed import ALGORITHMS, start
from gcfed.data import Dataset
from gcfed.engines.graphs import GraphEngine
from gcfed.simulation.round import prepare


def measure(workload: Workload, data: Dataset, algorithm: str, options: argparse.Namespace) -> None:
    """Print how long a step of all clients takes, and its kernels if asked."""
    setup = workload.setup(algorithm, data, options.engine, options.precision)
    setup = replace(setup, schedule=replace(setup.schedule, epochs=None, steps=2))
    began = time.perf_counter()
    at = start(setup)
    with setup.chosen.make() as engine, setup.arithmetic():
        assert isinstance(engine, GraphEngine)
        drawn = setup.population.draw(0)
        ids = list(drawn.plans)
        job = prepare(setup, at.server, at.clients, 0, ids, [drawn.plans[i] for i in ids])
        engine([job])
        torch.cuda.synchronize()
        cold = time.perf_counter() - began
        replay = engine.recorded(workload.cohort)
        seconds = _seconds(replay, options.replays)
        samples = workload.cohort * workload.batch_size
        print(
            f"{workload.model:9} {algorithm:12} {setup.chosen.name:11} {options.precision:5} "
            f"{workload.cohort:4} clients {seconds * 1e6:9.1f} us a step "
            f"{samples / seconds:12,.0f} samples/s   cold {cold:5.1f} s",
            flush=True,
        )
        if options.profile:
            _profile(replay, options.profile)


def _seconds(replay, replays: int) -> float:
    for _ in range(10):
        replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(replays):
        replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / replays


def _profile(replay, count: int) -> None:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(10):
            replay()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in rows)
    print(f"      {total / 10:8.1f} us in {sum(e.count for e in rows) // 10} kernels")
    for event in rows[:count]:
        each = event.self_device_time_total / 10
        print(f"      {each:8.1f} us  x{event.count // 10:<3} {event.key[:110]}")


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--models", default="cnn")
    parser.add_argument("--algorithms", default="gcfed")
    parser.add_argument("--clients", default="5,20,60")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--engine", default="fused")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--replays", type=int, default=50)
    parser.add_argument("--profile", type=int, default=0, metavar="KERNELS")
    options = parser.parse_args()
    data = load("noise").to(torch.device("cuda"))
    algorithms = list(ALGORITHMS) if options.algorithms == "all" else options.algorithms.split(",")
    for model in options.models.split(","):
        for algorithm in algorithms:
            for clients in map(int, options.clients.split(",")):
                batch = options.batch_size
                workload = Workload("steps", model, "noise", clients, clients, batch, 1)
                measure(workload, data, algorithm, options)


if __name__ == "__main__":
    main()
