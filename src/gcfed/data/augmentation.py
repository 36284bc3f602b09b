"""What is done to images between the data set and the model: crop, flip and normalise."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gcfed.core import keys
from gcfed.core.types import Inputs
from gcfed.errors import InputError

CROP_AND_FLIP = 0x63726F70  # keeps these draws apart from those of a transform beside this one


@dataclass(frozen=True)
class ImageTransform:
    """Images of shape [n, channels, rows, columns], normalised by channel.

    Pixels of uint8 are divided by 255 and become float32; floats are taken to lie in [0, 1] already
    and keep their dtype.  With a key (training) every image is first shifted by up to ``padding``
    pixels along both axes, black coming in at the border, and with ``flip`` mirrored left to right
    half of the time.  Example i's numbers are the i-th of their key's, whatever the batch's length.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise InputError(f"one mean and one std a channel; not {self.mean} and {self.std}")
        if not all(s > 0 for s in self.std):
            raise InputError(f"std is above 0 in every channel; not {self.std}")
        if self.padding < 0:
            raise InputError(f"padding is at least 0; not {self.padding}")

    def __call__(self, x: Inputs, key: Tensor | None) -> Inputs:
        """Transform a batch: with a key as in training, with None as in evaluation."""
        images = self._images(x)
        if key is not None and (self.padding or self.flip):
            images = self._augment(images, key)
        # in the pixels' own scale: to divide by 255 would be one more pass over the batch
        scale, dtype = (255, torch.float32) if images.dtype == torch.uint8 else (1, images.dtype)
        mean = _channels(self.mean, scale, dtype, images.device)
        std = _channels(self.std, scale, dtype, images.device)
        return (images - mean) / std

    def _images(self, x: Inputs) -> Tensor:
        if isinstance(x, dict):
            raise InputError(f"ImageTransform takes one tensor; not several ({', '.join(x)})")
        if x.ndim != 4 or x.shape[1] != len(self.mean):
            raise InputError(
                f"ImageTransform normalises {len(self.mean)} channels and takes images of shape "
                f"[n, {len(self.mean)}, rows, columns]; not {list(x.shape)}"
            )
        if x.dtype != torch.uint8 and not x.is_floating_point():
            raise InputError(f"images are uint8, or floats in [0, 1]; not {x.dtype}")
        return x

    def _augment(self, x: Tensor, key: Tensor) -> Tensor:
        """Crop and flip as one gather: its index says where each pixel comes from."""
        n, channels, num_rows, num_columns = x.shape
        draws = keys.uniform(keys.fold(key, CROP_AND_FLIP), (n, 3))
        top, left = (draws[:, :2] * (2 * self.padding + 1)).to(torch.int64).unsqueeze(2).unbind(1)
        rows = top + torch.arange(num_rows, device=x.device)
        columns = torch.arange(num_columns, device=x.device)
        if self.flip:
            columns = torch.where(draws[:, 2:] < 0.5, num_columns - 1 - columns, columns)
        x = functional.pad(x, 4 * (self.padding,))
        index = rows[:, :, None] * x.shape[3] + (left + columns)[:, None, :]
        index = index.flatten(1).unsqueeze(1).expand(-1, channels, -1)
        return x.flatten(2).gather(2, index).reshape(n, channels, num_rows, num_columns)


def _channels(
    values: tuple[float, ...], scale: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """One value a channel, made by fills alone: a graph's capture allows no copy from the host."""
    return torch.stack([torch.full((1, 1), scale * v, dtype=dtype, device=device) for v in values])
