"""How long a partition of many clients takes, and how much memory.

    python benchmarks/partition_scale.py
    python benchmarks/partition_scale.py --partition iid --clients 100000 --examples 5000000

Draws labels, divides them, and computes the statistics: 1,000,000 clients over 50,000,000 labels
unless said otherwise.  The peak is that of the whole process, Python and torch included.
"""

import argparse
import resource
import sys
import time

import numpy as np

from gcfed.data import Pool
from gcfed.data.partitions.skew import partition_statistics
from gcfed.data.partitions.ways import divide


def peak_bytes() -> int:
    """The most memory this process has held; Linux counts in kilobytes, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partition", default="dirichlet(alpha=0.1)")
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--examples", type=int, default=50_000_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()

    rng = np.random.default_rng(asked.seed)
    labels = rng.integers(0, asked.classes, asked.examples)
    pool, before = Pool(labels, {}, len(labels)), peak_bytes()
    began = time.perf_counter()
    partition = divide(asked.partition, pool, asked.clients, asked.seed)
    divided = time.perf_counter()
    found = partition_statistics(partition, pool)
    distance = found.distance.mean()
    ended = time.perf_counter()

    print(f"{asked.partition}: {asked.clients:,} clients, {asked.examples:,} labels")
    print(f"divide      {divided - began:6.1f} s")
    print(f"statistics  {ended - divided:6.1f} s  (mean label distance {distance:.3f})")
    print(f"peak memory {peak_bytes() / 1e9:6.2f} GB, of which {before / 1e9:.2f} before")


if __name__ == "__main__":
    main()
