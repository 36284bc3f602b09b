"""Trees of tensors as safetensors: bit for bit, with their order and their layout in memory."""

import json
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

OUTLINE = "outline"


def to_bytes(value: Any) -> bytes:
    """Nested dicts of tensors as the bytes of a safetensors file."""
    tensors: dict[str, Tensor] = {}
    outline = _outline(value, tensors)
    return save(tensors, {OUTLINE: json.dumps(outline)})


def from_bytes(data: bytes, device: torch.device | None = None) -> Any:
    """Undo `to_bytes`; tensors that were not in the host's memory go to ``device``."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return _fill(json.loads(header["__metadata__"][OUTLINE]), load(data), device)


def _outline(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree with each tensor replaced by its name, its strides and whether it is the host's.

    Sums depend on strides, where kernels do.
    """
    if not isinstance(value, Tensor):
        return {key: _outline(inner, tensors) for key, inner in value.items()}
    name = str(len(tensors))
    tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    strides = list(value.stride()) if _is_permuted(value) else None
    return [name, strides, value.device.type == "cpu"]


def _fill(outline: Any, tensors: dict[str, Tensor], device: torch.device | None) -> Any:
    if isinstance(outline, dict):
        return {key: _fill(inner, tensors, device) for key, inner in outline.items()}
    name, strides, on_host = outline
    value = tensors[name]
    if strides is not None:
        value = torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
    return value if on_host or device is None else value.to(device)


def _is_permuted(x: Tensor) -> bool:
    """Whether ``x`` is dense, but its dimensions do not lie in their order."""
    if x.is_contiguous():
        return False
    dense = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride != dense:
            return False
        dense *= size
    return True
