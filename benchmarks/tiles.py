"""Which tiles of a kernel are fastest, for the layers of the paper's models: `tile_sizes`.

    python -m benchmarks.tiles --clients 5,60 --layers resnet18 --precision tf32

For each layer the five fastest tiles that were tried, in microseconds, the one in use marked.  A
time is the mean of forty launches inside a CUDA graph; data are random.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from triton.runtime.errors import OutOfResources

from gcfed.kernels import norm_tiles, tiles, weight_tiles
from gcfed.kernels.tile_sizes import back_tile, convolve_tile, norm_tile, weights_tile

Tile = tuple[int, ...]
Kernel = Callable[[str, int, Tile, torch.dtype], Callable[[], object]]
Sizes = Callable[[str, int], tuple[Tile, set[Tile]]]

IMAGES = 50
LAYERS = {  # side in memory, channels in, border not in memory, kernel, channels out, pooled
    "cnn conv1": (36, 4, 0, 5, 32, True),
    "cnn conv2": (20, 32, 0, 5, 64, True),
    "cnn conv2, back": (16, 64, 2, 5, 32, False),
    "resnet18 layer1, bordered": (34, 64, 0, 3, 64, False),
    "resnet18 layer1": (32, 64, 1, 3, 64, False),
    "resnet18 layer1, back": (32, 64, 1, 3, 64, False),
    "resnet18 layer2": (16, 128, 1, 3, 128, False),
    "resnet18 layer3": (8, 256, 1, 3, 256, False),
    "resnet18 layer4": (4, 512, 1, 3, 512, False),
    "resnet18 layer4, back": (4, 512, 1, 3, 512, False),
}
NORMS = {f"resnet18 norm{k}": (32 >> k, 64 << k) for k in range(4)}  # side, channels
GROUPS = 32


def _sizes(layer: str) -> tuple[int, int, int]:
    """Rows, pixels and inputs of an output."""
    side, inputs, pad, size, _, pool = LAYERS[layer]
    rows = (side + 2 * pad - size + 1) // (2 if pool else 1)
    return rows, IMAGES * rows * rows, size * size * inputs


def convolve(layer: str, clients: int, tile: Tile, dtype: torch.dtype) -> Callable[[], object]:
    side, inputs, pad, size, out, pool = LAYERS[layer]
    bm, bn, be, warps, stages = tile
    rows, m, e = _sizes(layer)
    x = _random(clients, IMAGES, side, side, inputs, dtype=dtype)
    w = _random(clients, out, e, dtype=dtype)  # of any order
    bias = torch.randn(clients, out, device="cuda")
    y = torch.empty(clients, m, out, device="cuda", dtype=x.dtype)
    code = torch.empty(clients, m, out, device="cuda", dtype=torch.uint8)
    if layer.endswith("back"):
        return lambda: tiles.convolve_back[(-(-m // bm), -(-out // bn), clients)](
            x, w, y, w.stride(0), m, rows, rows, side, side, inputs, out, size,
            size * size * out, inputs, 1, pad, dtype == torch.float32, bm, bn, be,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return lambda: tiles.convolve[(-(-m // bm), -(-out // bn), clients)](
        x, w, bias, y, code, w.stride(0), m, rows, rows, side, side, inputs, out, size, e, 1, pad,
        pool, pool, pool, bm, bn, be, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def weights(layer: str, clients: int, tile: Tile, dtype: torch.dtype) -> Callable[[], object]:
    side, inputs, pad, size, out, pool = LAYERS[layer]
    be, bn, bm, warps, stages, per = tile
    rows, m, e = _sizes(layer)
    if pool:
        rows, m = 2 * rows, 4 * m
    x, x_rest = _random(2, clients, IMAGES, side, side, inputs)
    g, g_rest = _random(2, clients, m, out)
    parts = torch.empty(-(-m // per), clients, out, e, device="cuda")
    grid = (-(-e // be) * -(-out // bn), clients, len(parts))
    return lambda: weight_tiles.convolution_weights[grid](
        x, g, x_rest, g_rest, parts, clients, m, per, rows, rows, side, side, inputs, out,
        size, e, 1, pad, dtype == torch.float32, be, bn, bm, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def norms(
    layer: str, clients: int, tile: Tile, dtype: torch.dtype, *, back: bool
) -> Callable[[], object]:
    """A group norm with a residual and ReLU, or its gradient."""
    side, channels = NORMS[layer]
    bc, bp, warps = tile
    x, g, y, other = _random(4, clients * IMAGES, side, side, channels, dtype=dtype)
    w, bias = torch.randn(2, clients, channels, device="cuda")
    mean, rstd, dw, dbias = torch.randn(4, clients * IMAGES, channels, device="cuda")
    dother = torch.empty_like(x)
    grid, sizes = (channels // bc * len(x),), (side * side, channels, channels // GROUPS)
    if back:
        return lambda: norm_tiles.normalize_back[grid](
            g, x, w, bias, y, mean, rstd, other, dother, dw, dbias, IMAGES, *sizes,
            True, True, bc, bp, num_warps=warps,
        )  # fmt: skip
    return lambda: norm_tiles.normalize[grid](
        x, w, bias, other, y, mean, rstd, IMAGES, 1e-5, *sizes, True, True, bc, bp, num_warps=warps
    )


def convolve_tiles(layer: str, item: int) -> tuple[Tile, set[Tile]]:
    """The tile in use, and those to try."""
    _, inputs, pad, _, out, pool = LAYERS[layer]
    _, m, e = _sizes(layer)
    widths = {min(n, out) for n in ((32, 64) if pool else (64, 128, 256))}
    depths = [n for n in (32, 64, 128) if (inputs % n == 0 if pad else n <= 2 * e)]
    tried = {
        (bm, bn, be, warps, stages)
        for bm in (64, 128, 256)
        for bn in widths
        for be in depths
        for warps, stages in ((4, 3), (8, 3), (4, 4), (8, 4))
        if bm * bn * (4 if pool else 1) <= 32768
        and (warps == 8) == (bm * bn >= 8192)
        and (bm + bn) * be * stages * item < 220_000
    }
    used = (
        back_tile(m, inputs, out, item)
        if layer.endswith("back")
        else convolve_tile(m, e, out, pool, item)
    )
    return used, tried


def weights_tiles(layer: str, item: int) -> tuple[Tile, set[Tile]]:
    """The tile in use, and those to try."""
    _, inputs, pad, _, out, pool = LAYERS[layer]
    _, m, e = _sizes(layer)
    m *= 4 if pool else 1
    used = weights_tile(m, e, out, item // 2, inputs if pad else 0)
    tried = set()
    for be in (64, 128, 256):
        if pad and inputs % be:
            continue
        for bn in {min(n, out) for n in (64, 128, 256)}:
            for bm, warps, stages in ((64, 4, 3), (64, 8, 3), (64, 8, 4), (128, 4, 2), (32, 8, 4)):
                parts = -(-64 // (-(-e // be) * -(-out // bn)))
                if be * bn <= 32768 and (be + bn) * bm * stages * item < 220_000:
                    per = max(2 * bm, -(-m // parts // bm) * bm)
                    tried.add((be, bn, bm, warps, stages, per))
    return used, tried


def norms_tiles(layer: str, _: int) -> tuple[Tile, set[Tile]]:
    """The tile in use, and those to try."""
    side, channels = NORMS[layer]
    pixels = side * side
    tried = {
        (bc, bp, warps)
        for bc in (8, 16, 32, 64, 128)
        for bp in {pixels, min(pixels, 4096 // bc)}
        for warps in (1, 2, 4, 8, 16)
        if bc >= channels // GROUPS and bc <= channels and 16 <= bc * bp / warps / 32 <= 128
    }
    return norm_tile(pixels, channels, channels // GROUPS), tried


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


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def _show(name: str, clients: int, dtype: torch.dtype, kernel: Kernel, sizes: Sizes) -> None:
    """Show the fastest tiles of a kernel."""
    layer = name.removesuffix(", weights")
    layer = layer if layer in LAYERS else layer.removesuffix(", back")
    used, tried = sizes(layer, dtype.itemsize)
    found: list[tuple[float, Tile]] = []
    for tile in tried | {used}:
        try:
            found.append((microseconds(kernel(layer, clients, tile, dtype)), tile))
        except (RuntimeError, OutOfResources):  # too much for the registers or the shared memory
            continue
    best = sorted(found)[:5] + [each for each in found if each[1] == used]
    shown = " ".join(f"{t:.1f}{tile}{'*' if tile == used else ''}" for t, tile in best)
    print(f"{name:34} {clients:3} clients  {shown}", flush=True)


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--clients", default="5")
    parser.add_argument("--layers", default="", help="those whose names begin so")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "tf32"])
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    for layer in (*LAYERS, *NORMS):
        for clients in map(int, options.clients.split(",")):
            if not layer.startswith(options.layers):
                continue
            show = partial(_show, clients=clients, dtype=dtype)
            if layer in NORMS:
                show(layer, kernel=partial(norms, back=False), sizes=norms_tiles)
                show(f"{layer}, back", kernel=partial(norms, back=True), sizes=norms_tiles)
                continue
            show(layer, kernel=convolve, sizes=convolve_tiles)
            if not layer.endswith("back"):
                show(f"{layer}, weights", kernel=weights, sizes=weights_tiles)


if __name__ == "__main__":
    main()
