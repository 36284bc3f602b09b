"""How long a start takes: to the end of the first round, of the paper's CNN on noise.

    python -m benchmarks.start --device cuda --again 3

The first start finds nothing compiled, for its cache is new; those after it find what it left.  The
floor is a process that imports torch and puts a number on the device.

Python's own bytecode is there, as it is where packages were installed by pip.  Some images of
machines have none and forbid to write it (PYTHONDONTWRITEBYTECODE): each start then compiles two
thousand modules anew.  So one start that is not counted, with a cache of its own, writes it first.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.workloads import load

UNSET = ("PYTHONDONTWRITEBYTECODE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def seconds(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """When a command began, and how long it took."""
    began = time.time()
    subprocess.run([sys.executable, *command], env=env, check=True, stdout=subprocess.DEVNULL)
    return began, time.time() - began


def save_noise(path: Path) -> None:
    """CIFAR-10's shapes, and no meaning."""
    noise = load("noise")
    x_train, y_train, x_test, y_test = (x.numpy() for x in (*noise.train, *noise.test))
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--algorithm", default="gcfed")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--again", type=int, default=3, help="starts after the first")
    parser.add_argument("--where", action="store_true", help="show where each spends its time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_noise(noise := folder / "noise.npz")
        env = {k: v for k, v in os.environ.items() if k not in UNSET}
        floor = ["-c", f"import torch; torch.zeros(1, device={options.device!r}).tolist()"]
        (_, first), (_, again) = seconds(floor, env), seconds(floor, env)
        print(f"floor            {first:6.1f} s, again {again:.1f}")
        for i in range(-1, 1 + options.again):
            out = folder / f"run{i}"
            env["GCFED_CACHE"] = str(folder / ("first" if i < 0 else "cache"))
            program = "benchmarks.where" if options.where and i >= 0 else "gcfed"
            command = ["-m", program, "run", "--rounds", "1", "--out", str(out)]
            command += ["--dataset", f"npz(path={str(noise)!r})"]
            for key in ("device", "algorithm", "model"):
                command += [f"--{key}", getattr(options, key)]
            command += ["--set", f"precision={options.precision}"]
            began, whole = seconds(command, env)
            if i < 0:  # which wrote Python's bytecode
                continue
            name = "compiled before" if i else "nothing compiled"
            line = (out / "rounds.jsonl").stat().st_mtime - began
            print(f"{name:16} {line:6.1f} s to the line of round 1, {whole:.1f} to the end")


if __name__ == "__main__":
    main()
