"""Tensors of one client as operators read them, and results put together from what they give."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def packed(w: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """Kernels [outputs, inputs, rows, columns] as rows of places, each of so many channels."""
    rows = functional.pad(w.permute(0, 2, 3, 1), (0, channels - w.shape[1]))
    return rows.to(dtype).flatten(1, 3)


def turned(rows: Tensor, shape: torch.Size, outputs: int) -> Tensor:
    """`packed` kernels turned to [places and inputs, outputs], padded to so many outputs."""
    out, inputs, *size = shape
    places = rows.reshape(out, size[0] * size[1], -1)[..., :inputs]
    return padded(places.permute(1, 2, 0), 0, outputs - out).contiguous().flatten(0, 1)


def unpacked(rows: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `packed`."""
    out, inputs, *size = shape
    return rows.reshape(out, *size, -1)[..., :inputs].permute(0, 3, 1, 2)


def summed(parts: Tensor) -> Tensor:
    """The sum over the first axis, in order; a few terms are compiled better one by one."""
    if len(parts) > 16:
        return parts.sum(0)
    total = parts[0]
    for i in range(1, len(parts)):
        total = total + parts[i]
    return total


class Halves(torch.autograd.Function):
    """Float32 cut in two of bfloat16, number by number: whatever axes are mapped, the same.

    Torch 2.11 cannot map the view of numbers as bits.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        rounded = ((x.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
        return rounded.to(torch.bfloat16), (x - rounded).to(torch.bfloat16)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        return Halves.apply(x), in_dims * 2  # type: ignore[no-untyped-call]


def halves(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A tensor rounded to bfloat16, and the rest in bfloat16; None if the tensor is bfloat16.

    Both together keep 16 bits of a number.  It is rounded by its bits, since the compiler of a step
    leaves out a cast there and back.  Numbers that are not finite stay so, and those rounded beyond
    bfloat16's largest number are no longer finite.
    """
    if x.dtype == torch.bfloat16:
        return x, None
    both: tuple[Tensor, Tensor] = Halves.apply(x)  # type: ignore[no-untyped-call]
    return both


def both_halves(x: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
    """What gradients of weights are made of: the operands and their rests, of one client."""
    (x, x_rest), (g, g_rest) = halves(x[None]), halves(g[None])
    return x, g, x_rest, g_rest


def padded(x: Tensor, *widths: int) -> Tensor:
    """x with zeros around it; itself, and no copy, where there are none."""
    return functional.pad(x, widths) if any(widths) else x
