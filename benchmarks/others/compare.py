"""gcfed, the plain loop, Flower and pfl on the published workloads, in turn, as one table.

    python -m benchmarks.others.compare                       both workloads
    python -m benchmarks.others.compare --workloads fashion --tools plain,workers,pfl2
    python -m benchmarks.others.compare --dataset noise       CIFAR-10's shapes, for timing alone

Each tool is a process that has model and data loaded and does rounds when it is told to.  A figure
is the median over the turns; a ratio is the median of the plain loop's time by the tool's own.
"""

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.others.common import MARK
from benchmarks.others.environments import DEFAULT, ToolError, python_of
from benchmarks.others.export import ROUNDS, dataset, export
from benchmarks.workloads import PUBLISHED, Workload

ROOT = Path(__file__).resolve().parents[2]
TWO = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
TOOLS = {  # title, environment, module and its launcher
    "plain": ("plain loop", None, ["benchmarks.others.gcfed_runner", "plain"]),
    "workers": ("gcfed, workers", None, ["benchmarks.others.gcfed_runner", "workers"]),
    "pfl": ("pfl", "pfl", ["benchmarks.others.pfl_runner"]),
    "pfl2": ("pfl, two processes", "pfl", [*TWO, "benchmarks.others.pfl_runner"]),
    "flower": ("Flower", "flower", ["benchmarks.others.flower_runner"]),
}


class Runner:
    """A tool's process.  Between its turns it waits: to stop it for minutes is Ray's death."""

    def __init__(self, tool: str, workload: str, folder: Path, options: argparse.Namespace) -> None:
        self.title, environment, module = TOOLS[tool]
        self.times: list[float] = []
        self.accuracy = 0.0
        python = python_of(environment, options.envs) if environment else Path(sys.executable)
        arguments = [str(folder)] if environment else [workload]
        if not environment and options.dataset:
            arguments += ["--dataset", options.dataset]
        if not environment and options.data_dir:
            arguments += ["--data-dir", str(options.data_dir)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        variables = {"PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
        self._log = folder / f"{tool}.log"
        began = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", *module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **variables},
                start_new_session=True,  # signals that a tool sends to its group stay there
            )
        try:
            self.versions: dict[str, str] = self._read()["versions"]
            self.time(options.warm)
        except ToolError:
            self.close()
            raise
        self.cold = time.perf_counter() - began

    def time(self, rounds: int) -> float:
        """Seconds for some rounds."""
        assert self._process.stdin is not None
        began = time.perf_counter()
        try:
            print(rounds, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise ToolError(self._why()) from None
        self.accuracy = self._read()["accuracy"]
        return time.perf_counter() - began

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                said: dict[str, Any] = json.loads(line[len(MARK) :])
                return said
        raise ToolError(self._why())

    def _why(self) -> str:
        tail = self._log.read_text().strip().splitlines()[-1:]
        return f"ended with {self._process.wait()}: {' '.join(tail)}"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


def measure(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Print the table of one workload."""
    workload = PUBLISHED[name]
    workload = replace(workload, dataset=options.dataset or workload.dataset)
    export(workload, dataset(workload, options.data_dir), folder)
    runners: dict[str, Runner] = {}
    failures: dict[str, ToolError] = {}
    try:
        for tool in options.tools.split(","):
            try:
                runners[tool] = Runner(tool, name, folder, options)
            except ToolError as error:
                failures[tool] = error
        for _ in range(options.repeat):
            for tool, runner in list(runners.items()):
                try:
                    wait_for_quiet(options.quiet)
                    runner.times.append(runner.time(options.rounds) / options.rounds)
                except ToolError as error:
                    failures[tool] = error
                    runners.pop(tool).close()
    finally:
        for runner in runners.values():
            runner.close()
    report(workload, runners, options)
    for tool, why in failures.items():
        print(f"\n{TOOLS[tool][0]} did not run: {why}")


def wait_for_quiet(patience: float) -> None:
    """Wait while others use the cores, all tools being idle, but no longer than ``patience``."""
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        before = _idle_seconds()
        time.sleep(0.5)
        if _idle_seconds() - before > 0.9 * 0.5 * (os.cpu_count() or 1):
            return


def _idle_seconds() -> float:
    """All cores together, since the machine was started (Linux)."""
    return float(Path("/proc/uptime").read_text().split()[1])


def report(workload: Workload, runners: dict[str, Runner], options: argparse.Namespace) -> None:
    """Print what was measured."""
    found = {name: v for runner in runners.values() for name, v in runner.versions.items()}
    print(f"\n{workload.name} ({workload.dataset}): {options.repeat} turns of {options.rounds}")
    print(f"{', '.join(map(' '.join, found.items()))}; load {os.getloadavg()[1]:.1f}\n")
    print("| tool | s a round | least | most | plain loop / it | accuracy | cold s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for r in runners.values():
        plain = runners["plain"].times if "plain" in runners else [math.nan] * len(r.times)
        ratio = statistics.median(p / t for p, t in zip(plain, r.times, strict=True))
        print(
            f"| {r.title} | {statistics.median(r.times):.3f} | {min(r.times):.3f} | "
            f"{max(r.times):.3f} | {ratio:.2f} | {r.accuracy:.3f} | {r.cold:.1f} |",
            flush=True,
        )


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--workloads", default="fashion,pfl")
    parser.add_argument("--tools", default=",".join(TOOLS), help="plain is what ratios are against")
    parser.add_argument("--dataset", choices=["noise"], help="in place of CIFAR-10")
    parser.add_argument("--data-dir", type=Path, help="where cifar-10-batches-py lies")
    parser.add_argument("--envs", type=Path, default=DEFAULT, help="of the tools' environments")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of one turn")
    parser.add_argument("--warm", type=int, default=2, help="rounds before measuring")
    parser.add_argument("--repeat", type=int, default=5, help="turns of each tool")
    parser.add_argument("--quiet", type=float, default=0.0, help="seconds to wait for idle cores")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the tools are ended too
    if options.warm + options.rounds * options.repeat > ROUNDS:
        parser.error(f"cohorts are written for {ROUNDS} rounds")
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores")
    for name in options.workloads.split(","):
        with tempfile.TemporaryDirectory(prefix="gcfed-compare-") as folder:
            measure(name, options, Path(folder))


if __name__ == "__main__":
    main()
