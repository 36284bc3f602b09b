"""The least a round can cost: operations, and bytes of weights and activations.

    python -m benchmarks.others.floors            this machine, whose rates it measures
    python -m benchmarks.others.floors --h200     the rates of the card's data sheet

Counted are multiplications and additions of convolutions and linear layers.  A training step has
them three times (output, gradients of weights and of inputs), less the first layer's gradient of
its input.  Weights are read twice and their gradient is written; an optimiser that does all in one
pass reads weights, gradients and momentum and writes weights and momentum.  Activations count five
times: written, read, and read again in the backward pass, whose gradients are written and read.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from benchmarks.workloads import PUBLISHED, Workload, load
from gcfed.core.torch_internals import onednn_linear
from gcfed.data import Dataset
from gcfed.kernels.onednn import is_faster

H200 = {"tf32": 494e12, "bf16": 989e12}  # dense operations a second
H200_MEMORY = 4.8e12  # bytes a second


@dataclass(frozen=True)
class Cost:
    """Of a model: parameters, and per sample forward operations, a step's, and activations."""

    parameters: int
    forward: int
    step: int
    activations: int

    @classmethod
    def of(cls, module: nn.Module, shape: torch.Size) -> "Cost":
        operations: list[int] = []
        outputs: list[int] = []

        def count(layer: nn.Module, _: object, out: Tensor) -> None:
            weight = layer.weight
            assert isinstance(weight, Tensor)
            operations.append(2 * out[0].numel() * weight[0].numel())
            outputs.append(out[0].numel())

        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(count)
        module.eval()(torch.zeros(1, *shape))
        forward = sum(operations)
        size = sum(p.numel() for p in module.parameters())
        return cls(size, forward, 3 * forward - operations[0], sum(outputs))

    def weight_bytes(self, momentum: bool) -> int:
        """What one step reads and writes of weights, gradients and momentum, in float32."""
        return 4 * self.parameters * (3 + (5 if momentum else 3))

    def activation_bytes(self, width: int = 4) -> int:
        return 5 * width * self.activations


def best(run: Callable[[], object], amount: float, tries: int = 500) -> float:
    """The highest rate seen, of ``amount`` a run."""
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return amount / min(times)


def here() -> tuple[float, float]:
    """All cores' operations a second in a product, and bytes a second of adding out of cache.

    One core is measured, in pieces so short that one of them is likely to have it for itself.
    """
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    a, (p, g) = torch.randn(512, 512), torch.randn(2, 2**19)
    products = [lambda: a @ a]
    if is_faster():
        products.append(lambda: onednn_linear()(a, a, None, "none", [], ""))
    product = max(best(run, 2 * 512**3) for run in products)
    return cores * product, cores * best(lambda: p.add_(g, alpha=1e-9), 3 * 4 * 2**19)


def steps(workload: Workload, data: Dataset, rounds: int = 50) -> float:
    """Steps a round, all clients together, on average."""
    setup = workload.setup("fedavg", data, "sequential", "auto")
    return (
        sum(
            len(setup.population.plan(t, i))
            for t in range(rounds)
            for i in setup.population.sample(t)
        )
        / rounds
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--h200", action="store_true")
    card = parser.parse_args().h200
    rates = {"float32": (rate := here())[0]} if not card else H200
    memory = rate[1] if not card else H200_MEMORY
    print(", ".join(f"{n} {r / 1e9:,.0f} Gop/s" for n, r in rates.items()), end=", ")
    print(f"memory {memory / 1e9:,.0f} GB/s")
    resnet = replace(PUBLISHED["paper"], name="the same with ResNet18-GN", model="resnet18")
    for workload in (*PUBLISHED.values(), resnet):
        data = load("fashion10k" if workload.dataset == "fashion10k" else "noise")
        assert isinstance(data.train.x, Tensor)
        cost = Cost.of(workload.module(data), data.train.x.shape[1:])
        count, batch = steps(workload, data), workload.batch_size
        tested = len(data.test.y) / workload.evaluate_every * cost.forward
        weights = cost.weight_bytes(workload.momentum > 0)
        print(f"\n{workload.name}")
        print(
            f"  {cost.parameters:,} weights; a sample: {cost.forward / 1e6:.2f} Mop forward,",
            end=" ",
        )
        print(
            f"{cost.step / 1e6:.1f} a step, {cost.activation_bytes() / 1e6:.2f} MB of activations"
        )
        print(f"  a round: {count:.0f} steps of {batch}, {weights / 1e6:.1f} MB of weights each")
        for name, rate_of in rates.items():
            ops = count * batch * cost.step + tested
            width = 2 if name == "bf16" else 4
            moved = count * (weights + batch * cost.activation_bytes(width))
            sample = batch / max(batch * cost.step / rate_of, moved / count / memory)
            print(f"  {name}: {ops / 1e9:,.1f} Gop {ops / rate_of * 1e3:.2f} ms,", end=" ")
            print(
                f"weights {count * weights / 1e9:.2f} GB {count * weights / memory * 1e3:.2f} ms,",
                end=" ",
            )
            print(f"with activations {moved / 1e9:.2f} GB {moved / memory * 1e3:.2f} ms;", end=" ")
            print(f"training at most {sample:,.0f} samples/s")


if __name__ == "__main__":
    main()
