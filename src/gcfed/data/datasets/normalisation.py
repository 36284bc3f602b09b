"""How images of people's own are normalised: by the mean and deviation that they have."""

import numpy as np
import torch

from gcfed.core.lazy import LazyInputs, Stored, loaded
from gcfed.data.augmentation import ImageTransform

SAMPLED = 1000
"""So many images are read for the mean and deviation of those that are read lazily."""


def normalisation(x: Stored) -> ImageTransform | None:
    """Normalisation of images of bytes by their own mean and deviation; None for other inputs.

    Of images that are still to be read, some from everywhere stand for all.
    """
    if isinstance(x, dict) or x.dtype != torch.uint8 or x.ndim != 4:
        return None
    if isinstance(x, LazyInputs):
        x = loaded(x[np.unique(np.linspace(0, len(x) - 1, SAMPLED).astype(np.int64))])
    counts = torch.zeros(x.shape[1], 256, dtype=torch.int64)
    for images in torch.split(x, 1024):
        for channel, values in enumerate(images.unbind(1)):
            counts[channel] += torch.bincount(values.flatten(), minlength=256)
    levels, shares = torch.arange(256).double() / 255, counts / x[:, 0].numel()
    mean = (shares.double() * levels).sum(1)
    deviation = (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
    deviation = torch.where(deviation > 0, deviation, 1.0)  # a channel that is all of one value
    return ImageTransform(tuple(mean.tolist()), tuple(deviation.tolist()))
