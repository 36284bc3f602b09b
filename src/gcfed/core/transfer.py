"""Small tensors on their way to a device."""

import torch
from torch import Tensor


def on_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; a GPU is not waited for, which only pinned memory allows.

    Any other copy would wait until all that the GPU was asked for is done.
    """
    if device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)
