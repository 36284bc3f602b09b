"""Which tiles of a kernel are fastest, for the layers of the paper's models: `tile_sizes`.

    python -m benchmarks.tiles --clients 5,60

For each layer the five fastest tiles that were tried, in microseconds, the one in use marked.  A
time is the mean of forty launches inside a CUDA graph; data are random.
"""

import argparse
from collections.abc import Callable, Iterable

import torch

from gcfed.kernels import tiles
from gcfed.kernels.tile_sizes import convolve_tile, weights_tile

Tile = tuple[int, ...]

LAYERS = {  # images, side with its border, channels in, size of the kernel, channels out, pooled
    "cnn conv1": (50, 36, 4, 5, 32, True),
    "cnn conv2": (50, 20, 32, 5, 64, True),
    "cnn conv2, back": (50, 20, 64, 5, 32, False),
    "resnet18 layer1": (50, 34, 64, 3, 64, False),
    "resnet18 layer2": (50, 18, 128, 3, 128, False),
    "resnet18 layer3": (50, 10, 256, 3, 256, False),
    "resnet18 layer4": (50, 6, 512, 3, 512, False),
}


def convolve(layer: str, clients: int, tile: Tile) -> Callable[[], object]:
    images, side, inputs, size, out, pool = LAYERS[layer]
    bm, bn, be, warps, stages = tile
    rows = (side - size + 1) // (2 if pool else 1)
    m, e = images * rows * rows, size * size * inputs
    x = _random(clients, images, side, side, inputs)
    w, bias = _random(clients, out, e), torch.randn(clients, out, device="cuda")
    y = torch.empty(clients, m, out, device="cuda", dtype=x.dtype)
    code = torch.empty(clients, m, out, device="cuda", dtype=torch.uint8)
    back = out if layer.endswith("back") else 0
    return lambda: tiles.convolve[(-(-m // bm), -(-out // bn), clients)](
        x, w, bias, y, code, w.stride(0), m, rows, rows, side, side, inputs, out, size, e, 1,
        pool, pool, pool, back, bm, bn, be, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def weights(layer: str, clients: int, tile: Tile) -> Callable[[], object]:
    images, side, inputs, size, out, _ = LAYERS[layer]
    be, bn, bm, stages, per = tile
    rows = side - size + 1
    m, e = images * rows * rows, size * size * inputs
    x, g = _random(clients, images, side, side, inputs), _random(clients, images, rows, rows, out)
    parts = torch.empty(-(-m // per), clients, out, e, device="cuda")
    biases = torch.empty(-(-m // per), clients, out, device="cuda")
    return lambda: tiles.convolution_weights[(-(-e // be) * -(-out // bn), clients, len(parts))](
        x, g, parts, biases, clients, m, per, rows, rows, side, side, inputs, out, size, e, 1,
        rows, rows, 0, be, bn, bm, num_warps=4, num_stages=stages,
    )  # fmt: skip


def convolve_tiles(layer: str) -> tuple[Tile, set[Tile]]:
    """The tile in use, and those to try."""
    images, side, inputs, size, out, pool = LAYERS[layer]
    rows = (side - size + 1) // (2 if pool else 1)
    m, e = images * rows * rows, size * size * inputs
    widths = {min(n, out) for n in ((32, 64) if pool else (32, 64, 128))}
    depths = [n for n in (32, 64, 128) if n <= 1 << (e - 1).bit_length()]
    tried = {
        (bm, bn, be, warps, stages)
        for bm in (64, 128, 256)
        for bn in widths
        for be in depths
        for warps, stages in ((4, 2), (4, 3), (8, 3))
        if bm * bn * (4 if pool else 1) <= 32768 and (warps == 8) == (bm * bn >= 8192)
    }
    return convolve_tile(m, e, out, pool, 2), tried


def weights_tiles(layer: str) -> tuple[Tile, set[Tile]]:
    """The tile in use, and those to try."""
    images, side, inputs, size, out, _ = LAYERS[layer]
    m, e = images * (side - size + 1) ** 2, size * size * inputs
    used = weights_tile(m, e, out)
    tried = set()
    for be in (64, 128):
        for bn in {min(n, out) for n in (64, 128)}:
            for bm, stages in ((64, 3), (64, 4), (128, 2)):
                parts = -(-64 // (-(-e // be) * -(-out // bn)))
                tried.add((be, bn, bm, stages, max(2 * bm, -(-m // parts // bm) * bm)))
    return used, tried


def microseconds(launch: Callable[[], object], times: int = 20) -> float:
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            launch()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / (2 * times)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def _show(name: str, clients: int, found: Iterable[tuple[float, Tile]], used: Tile) -> None:
    best = " ".join(f"{t:.1f}{tile}{'*' if tile == used else ''}" for t, tile in sorted(found)[:5])
    print(f"{name:28} {clients:3} clients  {best}", flush=True)


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--clients", default="5")
    options = parser.parse_args()
    for layer in LAYERS:
        for clients in map(int, options.clients.split(",")):
            used, tried = convolve_tiles(layer)
            found = [(microseconds(convolve(layer, clients, t)), t) for t in tried | {used}]
            _show(f"{layer}", clients, found, used)
            if not layer.endswith("back"):
                used, tried = weights_tiles(layer)
                found = [(microseconds(weights(layer, clients, t)), t) for t in tried | {used}]
                _show(f"{layer}, weights", clients, found, used)


if __name__ == "__main__":
    main()
