"""Whether memory stays flat over many rounds under Ray: this process, its workers, Ray's store.

    python benchmarks/ray_memory.py
    python benchmarks/ray_memory.py --rounds 200 --workers 2 --algorithm scaffold

Trains an MLP on the embedded data over a Ray on this machine.  What a process holds is counted
without what it shares with others; the object store is where weights and updates travel.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import ray
import torch

from gcfed import Config, RayWorkers, simulate
from gcfed.config.build import build

PAGE = 4096


def private(process: int | str) -> float:
    """The MB that a process has for itself."""
    _, resident, shared, *_ = map(int, Path(f"/proc/{process}/statm").read_text().split())
    return PAGE * (resident - shared) / 1e6


def stored() -> float:
    """The MB that lie in the object store."""
    room, left = ray.cluster_resources(), ray.available_resources()
    return (room["object_store_memory"] - left.get("object_store_memory", 0)) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--block", type=int, default=2)
    parser.add_argument("--algorithm", default="gcfed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    settings = {"dataset": "fashion10k", "model": "mlp", "epochs": 1, "engine": "sequential"}
    config = Config(algorithm=asked.algorithm, rounds=asked.rounds, **settings)
    engine = RayWorkers(workers=asked.workers, block=asked.block)
    setup = replace(build(config).setup, engine=engine)
    print("round   this process, MB   workers, MB   object store, MB")
    for result in simulate(setup):
        done = result.round + 1
        if done in (1, 10) or done % (asked.rounds // 5) == 0:
            processes = ray.get([w.ready.remote() for w in engine._program.crew.workers])
            workers = " ".join(f"{private(p):6.0f}" for p in processes)
            print(f"{done:5}   {private('self'):16.0f}   {workers}   {stored():10.1f}", flush=True)


if __name__ == "__main__":
    main()
